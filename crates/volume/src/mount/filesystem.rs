//! The handlers of FUSE requests. Each handler converts its arguments, executes one operation, and answers.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use rustix::fs::{OFlags, fstatvfs};
use rustix::io::Errno;

use super::answer::{CACHE_TIME, GENERATION, answer_attributes, answer_empty, answer_entry, answer_xattr};
use super::calling_thread::CallingThread;
use super::client::VolumeClient;
use super::conversion::{
    caller_of, error_of, file_type_of, kind_of, name_of, number_of, requested_time, space_request,
};
use super::data::SeekTarget;
use super::execution::{CatalogWait, PlannedOperation};
use super::interrupts::RequestIdentity;
use super::open_modes::{bypasses_cache, is_appending, only_reads};
use super::operations::{WritePlace, WriteRequest, WriteSource};
use super::passthrough::enable_passthrough;
use super::permission_check::AttributeRequest;
use super::stale_entries::check_paths;
use crate::publish::available_bytes;
use crate::record::{EntryKey, FileKind};
use crate::view::{
    AttributeChange, Inode, InodeContent, NewInode, RenameKind, RenameRequest, SpaceRequest, VolumeNamespace, XattrMode,
};

/// Largest write: half of the data that a record can hold.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// O_EXCL of open(2).
const EXCLUSIVE_CREATION: i32 = OFlags::EXCL.bits() as i32;

/// Handles the FUSE requests of a mounted volume.
#[derive(Debug)]
pub struct VolumeFilesystem {
    pub(super) client: Arc<VolumeClient>,
}

impl VolumeFilesystem {
    /// Creates the handler for a client.
    pub fn new(client: Arc<VolumeClient>) -> Self {
        Self { client }
    }
}

impl Filesystem for VolumeFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel then does not read security.capability before each write.
        let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        // Files that are opened with O_APPEND use direct I/O. This lets programs map them.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        if self.client.options.read_passthrough {
            enable_passthrough(config);
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name_of(name) {
            Ok(name) => {
                let entry = EntryKey { parent: number_of(parent), name };
                self.answer_lookup(request, entry, reply);
            }
            Err(error) => reply.error(error_of(error)),
        }
    }

    /// The kernel reports a signal of the thread that waits for the answer to a request.
    fn interrupt(&self, _request: &Request, interrupted: RequestId) -> Result<(), fuser::Errno> {
        self.client.interrupts.add_interrupt(interrupted);
        Ok(())
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.client.forget(number_of(inode), count);
    }

    /// Answers immediately: the kernel drops attributes that are invalidated between request and answer.
    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        answer_attributes(reply, self.client.attributes(number_of(inode)));
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_on_mac: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = caller_of(request).now;
        let change = AttributeChange {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            user,
            group,
            size,
            accessed: accessed.map(|time| requested_time(time, now)),
            modified: modified.map(|time| requested_time(time, now)),
        };
        let is_touch = matches!((accessed, modified), (Some(TimeOrNow::Now), Some(TimeOrNow::Now)));
        let attributes = AttributeRequest { change, is_touch, has_handle: handle.is_some() };
        self.change_attributes(request, inode, attributes, move |changed| answer_attributes(reply, changed));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let target = self.with_inode(inode, |inode| match &inode.content {
            InodeContent::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        });
        match target {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error_of(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of(mode) else { return reply.error(error_of(Errno::INVAL)) };
        let is_device = matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice);
        let device = if is_device { device } else { 0 };
        let new = NewInode { kind, mode: (mode & 0o7777) as u16, device, symlink_target: Vec::new() };
        self.create_inode(request, parent, name, new, move |created| answer_entry(reply, created));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let (kind, mode) = (FileKind::Directory, (mode & 0o7777) as u16);
        let new = NewInode { kind, mode, device: 0, symlink_target: Vec::new() };
        self.create_inode(request, parent, name, new, move |created| answer_entry(reply, created));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(request, parent, name, reply, VolumeNamespace::plan_unlink);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(request, parent, name, reply, VolumeNamespace::plan_rmdir);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let symlink_target = target.as_os_str().as_bytes().to_vec();
        let new = NewInode { kind: FileKind::Symlink, mode: 0o777, device: 0, symlink_target };
        self.create_inode(request, parent, name, new, move |created| answer_entry(reply, created));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let kind = match flags {
            RenameFlags::RENAME_NOREPLACE => RenameKind::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameKind::Exchange,
            flags if flags.is_empty() => RenameKind::Replace,
            _ => return reply.error(error_of(Errno::INVAL)),
        };
        let (parent, new_parent) = (number_of(parent), number_of(new_parent));
        let names = name_of(name).and_then(|name| Ok((name, name_of(new_name)?)));
        match names {
            Ok((name, new_name)) => {
                self.rename_entry(request, RenameRequest { parent, name, new_parent, new_name, kind }, reply);
            }
            Err(error) => reply.error(error_of(error)),
        }
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, inode, client) = (CallingThread::of(request), number_of(inode), Arc::clone(&self.client));
        let entry = match name_of(name) {
            Ok(name) => EntryKey { parent: number_of(parent), name },
            Err(error) => return reply.error(error_of(error)),
        };
        let key = entry.clone();
        let watches = [key.parent, inode].map(|walked| self.client.watch_path(walked));
        self.client.change(
            Some(RequestIdentity::of(request)),
            move |namespace| {
                check_paths(&watches, caller.thread)?;
                let effects = namespace.plan_link(inode, key.parent, &key.name, caller.identity)?;
                caller.check_link(namespace, inode)?;
                caller.check_addition(namespace, key.parent)?;
                Ok(effects)
            },
            move |linked| answer_entry(reply, linked.and_then(|()| client.answer_created(&entry, inode))),
        );
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opening = self.client.begin_opening(number_of(inode), request.pid(), flags.0);
        self.answer_opening(request, only_reads(flags.0), reply, move |client, reply| {
            match client.open_file(&opening) {
                Ok(()) => client.answer_opened(opening.inode, flags.0, reply),
                Err(error) => reply.error(error_of(error)),
            }
        });
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_directory(request, inode, reply);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.client.read(number_of(inode), offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error_of(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let keeps_bits = Some(!write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        // Pages of a mapping are written at their own offset.
        let is_writeback = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = is_appending(flags.0) && !is_writeback;
        let place = if appends { WritePlace::End { assumed: offset } } else { WritePlace::Offset(offset) };
        let source = match is_writeback {
            true => WriteSource::Mapping,
            false if bypasses_cache(handle) => WriteSource::Uncached,
            false => WriteSource::Cached,
        };
        self.write_data(request, WriteRequest { inode, place, source, keeps_bits }, data, reply);
    }

    fn flush(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Every write is in the log already, and the kernel itself keeps the locks. After ENOSYS, it sends no more flush
        // requests.
        reply.error(error_of(Errno::NOSYS));
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.client.release_file(number_of(inode), handle);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _inode: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.answer_committed(request, reply);
    }

    fn fsyncdir(&self, request: &Request, _inode: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.answer_committed(request, reply);
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let state = self.client.lock();
        let (entries, parent) = match state.namespace.inode(number_of(inode)) {
            Ok(Inode { content: InodeContent::Directory { entries, .. }, parent, .. }) => (entries, parent),
            Ok(_) => return reply.error(error_of(Errno::NOTDIR)),
            Err(error) => return reply.error(error_of(error)),
        };
        let is_full = (offset < 1 && reply.add(inode, 1, fuser::FileType::Directory, "."))
            || (offset < 2 && reply.add(INodeNo(parent.0), 2, fuser::FileType::Directory, ".."));
        if !is_full {
            for entry in entries.after(offset) {
                let Ok(target) = state.namespace.inode(entry.inode) else { continue };
                let (kind, name) = (file_type_of(target.attributes.kind), OsStr::from_bytes(entry.name.as_bytes()));
                if reply.add(INodeNo(entry.inode.0), entry.offset, kind, name) {
                    break;
                }
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let state = match fstatvfs(self.client.shared.tree()) {
            Ok(state) => state,
            Err(error) => return reply.error(error_of(error)),
        };
        let client = self.client.lock();
        let logged_blocks = client.log.ring().used_bytes() / state.f_frsize.max(1);
        let is_writer = client.permission.term().is_some();
        let available = client.space.available_bytes(available_bytes(&state), is_writer) / state.f_frsize.max(1);
        let free = state.f_bfree.saturating_sub(logged_blocks);
        let frsize = state.f_frsize as u32;
        reply.statfs(state.f_blocks, free, available, state.f_files, state.f_ffree, frsize, 255, frsize);
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        // XATTR_CREATE and XATTR_REPLACE of <linux/xattr.h>.
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return reply.error(error_of(Errno::INVAL)),
        };
        self.set_xattr(request, inode, name, Some(value), mode, reply);
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = serde_bytes::ByteBuf::from(name.as_bytes());
        let value = self.with_inode(inode, |inode| inode.xattrs.get(&name).cloned().ok_or(Errno::NODATA));
        answer_xattr(reply, size, value.map(serde_bytes::ByteBuf::into_vec));
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let is_listed = |name: &[u8]| request.uid() == 0 || !name.starts_with(b"trusted.");
        let names = self.with_inode(inode, |inode| {
            let names = inode.xattrs.keys().filter(|name| is_listed(name));
            Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
        });
        answer_xattr(reply, size, names);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.set_xattr(request, inode, name, None, XattrMode::Replace, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (kind, mode) = (FileKind::Regular, (mode & 0o7777) as u16);
        let new = NewInode { kind, mode, device: 0, symlink_target: Vec::new() };
        let client = Arc::clone(&self.client);
        self.create_inode(request, parent, name, new, move |created| match created {
            Ok(attributes) => {
                let inode = number_of(attributes.ino);
                client.base_files.open(inode);
                let (handle, cache_use) = client.choose_cache_use(inode, flags);
                reply.created(&CACHE_TIME, &attributes, GENERATION, handle, cache_use);
            }
            // Another client has created the file after the kernel's lookup. After ESTALE, the kernel looks it up again and
            // opens it.
            Err(Errno::EXIST) if flags & EXCLUSIVE_CREATION == 0 => reply.error(error_of(Errno::STALE)),
            Err(error) => reply.error(error_of(error)),
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(space) = space_request(mode) else { return reply.error(error_of(Errno::OPNOTSUPP)) };
        let (caller, inode, client) = (CallingThread::of(request), number_of(inode), Arc::clone(&self.client));
        let plan = move |namespace: &VolumeNamespace| {
            let attributes = &namespace.inode(inode)?.attributes;
            let loss = caller.data_privilege_loss(attributes, None);
            let effects = namespace.plan_allocate(inode, space, offset, length, loss, caller.identity)?;
            let allocated_bytes = if space == SpaceRequest::PunchHole { 0 } else { length };
            let loses_bits = loss.apply_to(attributes.mode) != attributes.mode;
            Ok(PlannedOperation { allocated_bytes, ..PlannedOperation::new(effects, loses_bits) })
        };
        let request = RequestIdentity::of(request);
        self.client.execute(Some(request), CatalogWait::Unlimited, &[], plan, move |allocated| {
            if allocated == Ok(true) {
                client.invalidate_attributes(inode);
            }
            answer_empty(reply, allocated.map(drop));
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        _source_handle: FileHandle,
        source_offset: u64,
        target: INodeNo,
        _target_handle: FileHandle,
        target_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // A shorter copy is a valid answer; the caller continues.
        let length = length.min(WRITE_BYTES_MAX.into()) as usize;
        let data = match self.client.read(number_of(source), source_offset, length) {
            Ok(data) => data,
            Err(error) => return reply.error(error_of(error)),
        };
        let (place, source) = (WritePlace::Offset(target_offset), WriteSource::Cached);
        let write = WriteRequest { inode: target, place, source, keeps_bits: None };
        self.write_data(request, write, &data, reply);
    }

    /// Answers as the default of fuser, but does not log each call.
    fn ioctl(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _answer_bytes: u32,
        reply: ReplyIoctl,
    ) {
        // The program gets ENOTTY.
        reply.error(error_of(Errno::NOSYS));
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // SEEK_DATA and SEEK_HOLE; the kernel handles the other values itself.
        let target = match whence {
            3 => SeekTarget::Data,
            4 => SeekTarget::Hole,
            _ => return reply.error(error_of(Errno::INVAL)),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(error_of(Errno::NXIO)) };
        match self.client.seek(number_of(inode), offset, target) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(error_of(error)),
        }
    }
}
