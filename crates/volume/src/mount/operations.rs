//! Operations that several FUSE requests share.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Instant;

use fuser::{FileAttr, FileHandle, FopenFlags, INodeNo, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request};
use rustix::io::Errno;

use super::answer::{CachedAttributes, answer_empty, answer_entry, answer_write};
use super::calling_thread::CallingThread;
use super::client::{ClientState, VolumeClient};
use super::conversion::{attributes_of, error_of, name_of, number_of};
use super::data::mapped_bytes;
use super::execution::{CatalogWait, PlannedOperation};
use super::filesystem::VolumeFilesystem;
use super::interrupts::{InterruptibleAnswer, RequestIdentity};
use super::permission_check::{AttributeRequest, XattrChange, is_sticky};
use super::stale_entries::{check_changed_path, check_path, check_paths};
use crate::record::{EntryKey, EntryName, InodeNumber, RecordEffect};
use crate::view::{
    CallerIdentity, Inode, InodeContent, NewInode, PrivilegeLoss, RenameKind, RenameRequest, VolumeNamespace, XattrMode,
};

/// Maximum number of lookups for a retried open(2), while other clients drop each found file before it can be opened. Each
/// lookup needs a refresh.
const HOLD_ATTEMPTS_MAX: u32 = 20;

/// A lookup by a thread of a program.
#[derive(Debug)]
struct LookupRequest {
    thread: u32,
    entry: EntryKey,
}

/// Plans the removal of an entry of a directory.
type RemovalPlan = fn(&VolumeNamespace, InodeNumber, &EntryName, CallerIdentity) -> Result<Vec<RecordEffect>, Errno>;

/// A write of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteRequest {
    pub(super) inode: INodeNo,
    pub(super) place: WritePlace,
    pub(super) source: WriteSource,
    /// Whether the write keeps the set-user-ID and set-group-ID bits. None if the kernel does not report it.
    pub(super) keeps_bits: Option<bool>,
}

/// The source of a write's data. It decides what the kernel does with the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteSource {
    /// A call that also fills the kernel's pages. The kernel may keep a page locked until the answer.
    Cached,
    /// A call that bypasses the kernel's pages, and locks none.
    Uncached,
    /// Pages of a mapping, which the kernel writes back. It keeps these pages until the answer.
    Mapping,
}

/// The result of a write.
#[derive(Clone, Copy, Debug)]
struct WrittenRange {
    offset: u64,
    /// Whether the mode of the file changes, which the kernel does not know.
    loses_bits: bool,
}

/// Where a write begins in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum WritePlace {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, with O_APPEND. The kernel assumes that the data begins at `assumed`, which is wrong if
    /// another client has changed the size.
    End {
        /// The end of the file as the kernel knows it.
        assumed: u64,
    },
}

impl VolumeFilesystem {
    /// Answers an open(2) or opendir(3) when the view and the kernel's caches of inodes have all changes that other clients
    /// have logged before the call. No thread waits, because an invalidation may need other requests of this mount to be
    /// served.
    pub(super) fn answer_opening(
        &self,
        request: &Request,
        only_reads: bool,
        reply: ReplyOpen,
        answer: impl FnOnce(&Arc<VolumeClient>, ReplyOpen) + Send + 'static,
    ) {
        let client = Arc::clone(&self.client);
        let refuse = |reply: ReplyOpen| reply.error(error_of(Errno::INTR));
        let call = client.interrupts.register(RequestIdentity::of(request), reply, refuse);
        let answer = move |client: &Arc<VolumeClient>, refreshed: Result<(), Errno>| match (call.claim(), refreshed) {
            (Some(reply), Ok(())) => answer(client, reply),
            (Some(reply), Err(error)) => reply.error(error_of(error)),
            (None, _) => {}
        };
        if !client.may_be_stale() {
            let answering = Arc::clone(&client);
            return client.answer_invalidated(Box::new(move || answer(&answering, Ok(()))));
        }
        let refresh_answer = move |refreshed| {
            let answering = Arc::clone(&client);
            client.answer_invalidated(Box::new(move || answer(&answering, refreshed)));
        };
        self.client.answer_refreshed(only_reads, Box::new(refresh_answer));
    }

    /// Answers an opendir(3).
    pub(super) fn open_directory(&self, request: &Request, inode: INodeNo, reply: ReplyOpen) {
        let (inode, thread) = (number_of(inode), request.pid());
        let watch = self.client.watch_path(inode);
        self.answer_opening(request, true, reply, move |client, reply| {
            let checked = check_path(watch.as_ref(), thread);
            match checked.and_then(|()| client.lock().namespace.entries(inode).map(drop)) {
                Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
                Err(error) => reply.error(error_of(error)),
            }
        });
    }

    /// Answers a lookup when the view has all changes that other clients have logged before the request, because the kernel
    /// caches the answer.
    pub(super) fn answer_lookup(&self, request: &Request, entry: EntryKey, reply: ReplyEntry) {
        let lookup = LookupRequest { thread: request.pid(), entry };
        if self.client.may_be_stale() {
            let refuse = |reply| answer_entry(reply, Err(Errno::INTR));
            let call = self.client.interrupts.register(RequestIdentity::of(request), reply, refuse);
            answer_refreshed_lookup(Arc::clone(&self.client), lookup, call, HOLD_ATTEMPTS_MAX);
        } else {
            answer_entry(reply, look_up(&self.client, &lookup));
        }
    }

    /// Creates an inode, counts the kernel's reference to it, and calls `answer`.
    pub(super) fn create_inode(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: NewInode,
        answer: impl FnOnce(Result<FileAttr, Errno>) + Send + 'static,
    ) {
        let caller = CallingThread::of(request);
        let name = match name_of(name) {
            Ok(name) => name,
            Err(error) => return answer(Err(error)),
        };
        let entry = EntryKey { parent: number_of(parent), name };
        let key = entry.clone();
        let watch = self.client.watch_path(key.parent);
        let plan = move |namespace: &VolumeNamespace| {
            check_path(watch.as_ref(), caller.thread)?;
            let planned = namespace.plan_create(key.parent, &key.name, &new, caller.identity)?;
            caller.check_addition(namespace, key.parent)?;
            Ok(PlannedOperation::new(planned.effects, planned.inode))
        };
        let (client, request) = (Arc::clone(&self.client), RequestIdentity::of(request));
        self.client.execute(Some(request), CatalogWait::Limited, &[], plan, move |created| {
            answer(created.and_then(|inode| client.answer_created(&entry, inode)));
        });
    }

    pub(super) fn change_attributes(
        &self,
        request: &Request,
        inode: INodeNo,
        attributes: AttributeRequest,
        answer: impl FnOnce(Result<CachedAttributes, Errno>) + Send + 'static,
    ) {
        let (caller, inode, client) = (CallingThread::of(request), number_of(inode), Arc::clone(&self.client));
        // ftruncate(2) has a handle, and no path.
        let (watch, catalog_wait) = match attributes.has_handle {
            true => (None, CatalogWait::Unlimited),
            false => (self.client.watch_path(inode), CatalogWait::Limited),
        };
        let plan = move |namespace: &VolumeNamespace| {
            match attributes.change.size {
                Some(_) => check_path(watch.as_ref(), caller.thread)?,
                None => check_changed_path(watch.as_ref(), caller)?,
            }
            let change = caller.check_attributes(namespace, inode, &attributes)?;
            let loss = caller.attribute_privilege_loss(&namespace.inode(inode)?.attributes, &change)?;
            Ok(PlannedOperation::new(namespace.plan_set_attributes(inode, change, loss, caller.identity)?, ()))
        };
        self.client.execute(Some(RequestIdentity::of(request)), catalog_wait, &[], plan, move |changed| {
            answer(changed.and_then(|()| client.attributes(inode)))
        });
    }

    pub(super) fn with_inode<T>(
        &self,
        inode: INodeNo,
        read: impl FnOnce(&Inode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        read(self.client.lock().namespace.inode(number_of(inode))?)
    }

    /// Executes a write, and answers with the number of bytes.
    pub(super) fn write_data(&self, request: &Request, write: WriteRequest, data: &[u8], reply: ReplyWrite) {
        let (WriteRequest { inode, place, source, keeps_bits }, arrived) = (write, Instant::now());
        let (caller, number, bytes) = (CallingThread::of(request), number_of(inode), data.len() as u32);
        if data.is_empty() {
            return reply.written(0);
        }
        let plan = move |namespace: &VolumeNamespace| {
            let attributes = &namespace.inode(number)?.attributes;
            let size = attributes.size;
            let offset = match place {
                WritePlace::Offset(offset) => offset,
                WritePlace::End { .. } => size,
            };
            let logged = if source == WriteSource::Mapping { mapped_bytes(offset, bytes, size) } else { bytes };
            if logged == 0 {
                return Ok(PlannedOperation::new(Vec::new(), WrittenRange { offset, loses_bits: false }));
            }
            let loss = match source {
                WriteSource::Mapping => PrivilegeLoss::Nothing,
                _ => caller.data_privilege_loss(attributes, keeps_bits),
            };
            let effects = namespace.plan_write(number, offset, logged, loss, caller.identity)?;
            let written = WrittenRange { offset, loses_bits: loss.apply_to(attributes.mode) != attributes.mode };
            Ok(PlannedOperation { data_bytes: logged as usize, ..PlannedOperation::new(effects, written) })
        };
        let (client, request) = (Arc::clone(&self.client), RequestIdentity::of(request));
        self.client.execute(Some(request), CatalogWait::Unlimited, data, plan, move |written| {
            if written.is_ok_and(|written| written.loses_bits) {
                client.invalidate_attributes(number);
            }
            let (written, answered) = (written.map(|written| written.offset), written.map(|_| bytes));
            match (place, source, written) {
                (WritePlace::End { assumed }, _, Ok(offset)) if assumed != offset => client.invalidate_file(number),
                // A reader may have cached the last page without the new data.
                (WritePlace::End { .. }, WriteSource::Uncached, Ok(offset)) if client.base_files.is_shared(number) => {
                    client.invalidate_data(number, offset, bytes);
                }
                (_, WriteSource::Cached, Ok(offset)) => {
                    client.invalidate_reread_data(number, offset, bytes, arrived);
                }
                _ => return answer_write(reply, answered),
            }
            // Otherwise the invalidation may wait for a page that the kernel keeps locked until the answer.
            match source {
                WriteSource::Uncached => {
                    let call =
                        client.interrupts.register(request, reply, |reply| answer_write(reply, Err(Errno::INTR)));
                    client.answer_invalidated(Box::new(move || {
                        if let Some(reply) = call.claim() {
                            answer_write(reply, answered);
                        }
                    }));
                }
                WriteSource::Cached | WriteSource::Mapping => answer_write(reply, answered),
            }
        });
    }

    pub(super) fn set_xattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        mode: XattrMode,
        reply: ReplyEmpty,
    ) {
        let (caller, inode) = (CallingThread::of(request), number_of(inode));
        let (name, value) = (name.as_bytes().to_vec(), value.map(<[u8]>::to_vec));
        let watch = self.client.watch_path(inode);
        self.change_and_answer(request, reply, move |namespace| {
            check_changed_path(watch.as_ref(), caller)?;
            let change = if value.is_some() { XattrChange::Set } else { XattrChange::Remove };
            caller.check_xattr(namespace, inode, &name, change)?;
            namespace.plan_set_xattr(inode, &name, value.as_deref(), mode, caller.identity)
        });
    }

    /// Executes unlink(2) or rmdir(2), and answers. The kernel considers a directory removed if it knows one by this name.
    /// If the parent is sticky, the kernel has checked the owner of the file that it knows by this name. In both cases, the
    /// kernel's entry must match the view.
    pub(super) fn remove_entry(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEmpty,
        plan: RemovalPlan,
    ) {
        let caller = CallingThread::of(request);
        let entry = match name_of(name) {
            Ok(name) => EntryKey { parent: number_of(parent), name },
            Err(error) => return answer_empty(reply, Err(error)),
        };
        let (checking, client, key) = (Arc::clone(&self.client), Arc::clone(&self.client), entry.clone());
        let watch = self.client.watch_path(key.parent);
        let checked_plan = move |namespace: &VolumeNamespace| {
            check_path(watch.as_ref(), caller.thread)?;
            let effects = plan(namespace, key.parent, &key.name, caller.identity)?;
            let target = namespace.lookup(key.parent, &key.name)?;
            if namespace.inode(target)?.is_directory() || is_sticky(&namespace.inode(key.parent)?.attributes) {
                checking.check_entry(caller.thread, &key, Some(target))?;
            }
            caller.check_removal(namespace, key.parent, target)?;
            Ok(effects)
        };
        self.client.change(Some(RequestIdentity::of(request)), checked_plan, move |removed| {
            answer_empty(reply, removed);
            client.invalidate_previous(&entry);
        });
    }

    /// Executes rename(2), and answers. The kernel moves the inode that it knows by the old name. If it knows a directory by
    /// the new name, it considers this directory removed.
    pub(super) fn rename_entry(&self, request: &Request, rename: RenameRequest, reply: ReplyEmpty) {
        let caller = CallingThread::of(request);
        let (checking, client) = (Arc::clone(&self.client), Arc::clone(&self.client));
        let target_entry = rename.target_entry();
        let watches = [rename.parent, rename.new_parent].map(|parent| self.client.watch_path(parent));
        let checked_plan = move |namespace: &VolumeNamespace| {
            check_paths(&watches, caller.thread)?;
            let effects = namespace.plan_rename(&rename, caller.identity)?;
            let (source, target) = (rename.source_entry(), rename.target_entry());
            let moved = namespace.lookup(source.parent, &source.name)?;
            checking.check_entry(caller.thread, &source, Some(moved))?;
            let must_match = rename.kind == RenameKind::Exchange
                || namespace.inode(moved)?.is_directory()
                || is_sticky(&namespace.inode(target.parent)?.attributes);
            if must_match {
                checking.check_entry(caller.thread, &target, namespace.lookup(target.parent, &target.name).ok())?;
            }
            caller.check_rename(namespace, &rename)?;
            Ok(effects)
        };
        self.client.change(Some(RequestIdentity::of(request)), checked_plan, move |renamed| {
            answer_empty(reply, renamed);
            client.invalidate_previous(&target_entry);
        });
    }

    /// Executes an operation without data and without a result, and answers.
    pub(super) fn change_and_answer(
        &self,
        request: &Request,
        reply: ReplyEmpty,
        plan: impl Fn(&VolumeNamespace) -> Result<Vec<RecordEffect>, Errno> + Send + 'static,
    ) {
        let request = Some(RequestIdentity::of(request));
        self.client.change(request, plan, move |changed| answer_empty(reply, changed));
    }

    /// Answers fsync(2) when each live replica has the log.
    pub(super) fn answer_committed(&self, request: &Request, reply: ReplyEmpty) {
        let refuse = |reply| answer_empty(reply, Err(Errno::INTR));
        let call = self.client.interrupts.register(RequestIdentity::of(request), reply, refuse);
        self.client.answer_committed(Box::new(move || {
            if let Some(reply) = call.claim() {
                reply.ok();
            }
        }));
    }
}

impl VolumeClient {
    /// Returns the attributes of an inode for the answer to the creation of `entry`. Counts the kernel's reference.
    pub(super) fn answer_created(&self, entry: &EntryKey, inode: InodeNumber) -> Result<FileAttr, Errno> {
        let mut state = self.lock();
        self.note_answer(None, entry, Some(inode));
        let attributes = count_reference(&mut state, inode)?;
        drop(state);
        Ok(self.with_blocks(attributes))
    }

    fn with_blocks(&self, mut attributes: FileAttr) -> FileAttr {
        self.count_blocks(&mut attributes);
        attributes
    }

    fn note_answer(&self, thread: Option<u32>, entry: &EntryKey, inode: Option<InodeNumber>) {
        let Some(caches) = self.kernel_caches.get() else { return };
        caches.stale_entries.note_answer(thread, entry, inode);
        if let (Some(thread), Some(inode)) = (thread, inode) {
            caches.stale_sizes.note_lookup(thread, inode);
        }
    }

    fn check_entry(&self, thread: u32, entry: &EntryKey, target: Option<InodeNumber>) -> Result<(), Errno> {
        self.kernel_caches.get().map_or(Ok(()), |caches| caches.stale_entries.check(thread, entry, target))
    }

    /// Invalidates the attributes of the inodes to which a removed entry led before: the kernel may have decremented the
    /// link count of a wrong inode.
    fn invalidate_previous(&self, entry: &EntryKey) {
        if let Some(caches) = self.kernel_caches.get() {
            let previous = caches.stale_entries.previous_inodes(entry);
            previous.into_iter().for_each(|inode| caches.invalidate_attributes(inode));
        }
    }

    pub(super) fn attributes(&self, inode: InodeNumber) -> Result<CachedAttributes, Errno> {
        let state = self.lock();
        let found = state.namespace.readable_inode(inode)?;
        let mut attributes = attributes_of(inode, found);
        if found.is_unlinked_elsewhere && !found.is_directory() && !self.base_files.is_open(inode) {
            // The kernel has the inode by a name that it has not dropped yet. With a link count of 0, link(2) would fail
            // with ENOENT without a request, although the name may lead to another file.
            attributes.nlink = 1;
        }
        if let Some(caches) = self.kernel_caches.get() {
            caches.stale_entries.note_attributes(inode);
        }
        drop(state);
        let cache_time = self.count_blocks(&mut attributes);
        Ok(CachedAttributes { attributes, cache_time })
    }
}

/// Answers a lookup after a refresh. A thread that repeats an open(2) gets a file that it can open: the lookup is repeated
/// if another client has just dropped the file.
fn answer_refreshed_lookup(
    client: Arc<VolumeClient>,
    lookup: LookupRequest,
    call: InterruptibleAnswer<ReplyEntry>,
    attempts: u32,
) {
    let refreshing = Arc::clone(&client);
    let answer = move |refreshed: Result<(), Errno>| {
        // Locked, because a lookup that is counted must be answered.
        let mut unanswered = call.lock();
        if unanswered.is_none() {
            return;
        }
        let may_repeat = client.open_retries.contains(lookup.thread) && attempts > 1;
        let found = match refreshed {
            Ok(()) if may_repeat => look_up_again(&client, &lookup),
            Ok(()) => Some(look_up(&client, &lookup)),
            Err(error) => {
                client.open_retries.give_up(lookup.thread);
                Some(Err(error))
            }
        };
        let reply = found.and_then(|found| Some((unanswered.take()?, found)));
        drop(unanswered);
        match reply {
            Some((reply, found)) => answer_entry(reply, found),
            None => answer_refreshed_lookup(client, lookup, call, attempts - 1),
        }
    };
    // A call that changes something looks up names, too, but then waits for the write permission.
    refreshing.answer_refreshed(true, Box::new(answer));
}

/// Finds an entry, and counts the kernel's reference to the inode.
fn look_up(client: &VolumeClient, lookup: &LookupRequest) -> Result<FileAttr, Errno> {
    let mut state = client.lock();
    let inode = find_inode(client, &state, lookup)?;
    let attributes = count_reference(&mut state, inode)?;
    drop(state);
    Ok(client.with_blocks(attributes))
}

fn find_inode(client: &VolumeClient, state: &ClientState, lookup: &LookupRequest) -> Result<InodeNumber, Errno> {
    let found = state.namespace.lookup_by_path(lookup.entry.parent, &lookup.entry.name);
    client.note_answer(Some(lookup.thread), &lookup.entry, found.ok());
    if found.is_err() {
        // The call fails here: the next open(2) of the thread is not a retry.
        client.open_retries.give_up(lookup.thread);
    }
    found
}

/// As `look_up`, and keeps the data of a file open for the thread. None if another client has just dropped the file.
fn look_up_again(client: &VolumeClient, lookup: &LookupRequest) -> Option<Result<FileAttr, Errno>> {
    // The data is opened under the lock of the view, so that the view cannot change after the lookup.
    let mut state = client.lock();
    let inode = match find_inode(client, &state, lookup) {
        Ok(inode) => inode,
        Err(error) => return Some(Err(error)),
    };
    let is_file = state.namespace.inode(inode).is_ok_and(|inode| matches!(inode.content, InodeContent::File(_)));
    if is_file && !state.is_new(inode) {
        match client.base_files.get(&client.shared, inode) {
            Ok(Some(data)) => client.open_retries.hold(lookup.thread, inode, data),
            Ok(None) => return None,
            Err(error) => tracing::warn!(%error, ?inode, "a file of the shared tree cannot be opened"),
        }
    }
    let attributes = count_reference(&mut state, inode);
    drop(state);
    Some(attributes.map(|attributes| client.with_blocks(attributes)))
}

fn count_reference(state: &mut ClientState, inode: InodeNumber) -> Result<FileAttr, Errno> {
    state.namespace.count_lookup(inode);
    Ok(attributes_of(inode, state.namespace.inode(inode)?))
}
