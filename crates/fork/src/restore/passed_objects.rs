//! Kernel objects without a path that the daemon creates for a child: pipes, eventfds, memfds, standard streams. The
//! daemon passes the objects to the stub; `plan` refers to them by index. The restorer itself opens objects with a
//! path.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_container::resolve_on_node;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{
    FileIdentity, FileStatus, OpenFile, OpenFileAttributes, PipeBuffer, SharedObjectKind, WrittenRun,
};
use rustix::event::EventfdFlags;
use rustix::fs::{Gid, Mode, OFlags, Uid, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::RestoreError;
use super::plan_layout::PASSED_RESERVED_COUNT;
use super::{inotify_overflow, pseudo_terminals};
use crate::file_identity;

/// The flag that open(2) adds on 64-bit machines; rustix has no name for its number.
const O_LARGEFILE: u32 = 0o100_000;

/// Flags that have no effect on memory, and that the program may read again.
const CACHE_FLAGS: OFlags = OFlags::NOATIME.union(OFlags::SYNC).union(OFlags::DIRECT);

/// The standard streams of a child.
#[derive(Debug)]
pub struct StandardStreams {
    /// Becomes the child's standard input.
    pub input: OwnedFd,
    /// Becomes the child's standard output.
    pub output: OwnedFd,
    /// Becomes the child's standard error.
    pub error: OwnedFd,
}

/// Contents of shared memory. They are complete before a child runs.
#[derive(Debug, Default)]
pub struct SharedContents {
    /// A memfd for each shared object, in the descriptor's order.
    pub objects: Vec<File>,
    /// Pages that were written through private mappings of files, if there are any ([`Descriptor::written_runs`]).
    pub written_pages: Option<File>,
}

/// The objects to pass, and the index of each among the passed descriptors.
#[derive(Debug)]
pub(super) struct PassedObjects {
    fds: Vec<OwnedFd>,
    by_open_file: HashMap<u32, u32>,
    shared_objects: Vec<u32>,
    /// Index of the memfd with the pages that were written through private mappings of files, and the runs of those pages.
    written_pages: Option<(u32, Vec<WrittenRun>)>,
    /// Index of the memfd with the barrier page, which all processes of a tree map.
    barrier: Option<u32>,
    /// Index of the terminal that controls a session, by the session's leader.
    controlling_terminals: HashMap<u32, u32>,
    roots: RootPaths,
}

impl PassedObjects {
    /// Creates all objects of a descriptor. `checkpoint_socket` replaces the socket on which the parent waited for the
    /// reply to its checkpoint.
    pub(super) fn create(
        descriptor: &Descriptor,
        streams: StandardStreams,
        SharedContents { objects: shared, written_pages: written }: SharedContents,
        checkpoint_socket: Option<OwnedFd>,
        roots: RootPaths,
    ) -> Result<Self, RestoreError> {
        let mut objects = Self { roots, ..Self::empty() };
        objects.create_barrier(descriptor)?;
        let standard = [streams.input, streams.output, streams.error].map(|stream| objects.add(stream));
        for (index, memfd) in (0..).zip(&shared) {
            // Read-only: a file that is open for writing cannot be executed (ETXTBSY).
            let passed = if is_executed(descriptor, index) {
                reopen_memfd(memfd, 0, 0)
            } else {
                memfd.try_clone().map(OwnedFd::from)
            };
            let passed = objects.add(passed.map_err(|e| RestoreError::from_object_error("shared memory", e))?);
            objects.shared_objects.push(passed);
        }
        let mut making = ObjectBuilder {
            descriptor,
            shared: &shared,
            checkpoint_socket,
            pipes: HashMap::new(),
            opened_memfds: HashSet::new(),
        };
        for (index, file) in (0..).zip(&descriptor.open_files) {
            let passed = match file {
                OpenFile::StandardStream(stream) => Some(standard[*stream as usize]),
                _ => making.create_object(file)?.map(|made| objects.add(made)),
            };
            objects.by_open_file.extend(passed.map(|passed| (index, passed)));
        }
        finalize_shared_memory(descriptor, &shared)?;
        objects.create_terminals(descriptor)?;
        objects.written_pages = written.map(|file| (objects.add(file.into()), descriptor.written_runs()));
        Ok(objects)
    }

    /// Returns a value without objects.
    pub(super) fn empty() -> Self {
        let nowhere = RootPaths { node_root: PathBuf::new(), container_root: PathBuf::new(), is_origin_machine: false };
        let (by_open_file, controlling) = (HashMap::new(), HashMap::new());
        let shared = Vec::new();
        Self {
            fds: Vec::new(),
            by_open_file,
            shared_objects: shared,
            written_pages: None,
            barrier: None,
            controlling_terminals: controlling,
            roots: nowhere,
        }
    }

    fn create_barrier(&mut self, descriptor: &Descriptor) -> Result<(), RestoreError> {
        if !descriptor.descendants.is_empty() {
            let memfd = farfork_sys::memfd::create("farfork-gate", false);
            let barrier = memfd.and_then(|file| file.set_len(farfork_wire::PAGE_SIZE).map(|()| file));
            let barrier = barrier.map_err(|e| RestoreError::from_object_error("the barrier of its processes", e))?;
            self.barrier = Some(self.add(barrier.into()));
        }
        Ok(())
    }

    fn create_terminals(&mut self, descriptor: &Descriptor) -> Result<(), RestoreError> {
        let created = pseudo_terminals::create_terminals(descriptor, &self.roots)?;
        for (created, terminal) in created.into_iter().zip(&descriptor.terminals) {
            let master = self.add(created.master);
            self.by_open_file.insert(created.open_file, master);
            if let (Some(session), Some(slave)) = (terminal.session, created.slave) {
                let slave = self.add(slave);
                self.controlling_terminals.insert(session.leader, slave);
            }
        }
        Ok(())
    }

    fn add(&mut self, fd: OwnedFd) -> u32 {
        self.fds.push(fd);
        PASSED_RESERVED_COUNT + self.fds.len() as u32 - 1
    }

    /// Adds a duplicate of the caller's descriptor. Returns its index.
    pub(super) fn add_borrowed(&mut self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        Ok(self.add(fd.try_clone_to_owned()?))
    }

    /// Index of the terminal that controls the session of this leader.
    pub(super) fn controlling_terminal(&self, leader: u32) -> Option<u32> {
        self.controlling_terminals.get(&leader).copied()
    }

    /// Whether the child's writes to a path are private to the child: the directory is on another device than the
    /// node's.
    pub(super) fn is_private_path(&self, path: &str) -> bool {
        self.roots.is_private_path(path)
    }

    /// Whether the path refers to the same file as at capture, which is at least as long now. It may grow until the child has
    /// opened it.
    pub(super) fn may_have_grown(&self, path: &str, then: &FileIdentity) -> bool {
        let here = resolve_on_node(&self.roots.node_root, Path::new(path), OFlags::empty());
        let now = here.and_then(|here| file_identity::stat_path_identity(&here));
        let is_it = |now: &FileIdentity| (now.device, now.inode) == (then.device, then.inode);
        self.roots.is_origin_machine && now.is_ok_and(|now| is_it(&now) && now.bytes >= then.bytes)
    }

    /// Index of an open file's object among the passed descriptors; `None` if the restorer opens it.
    pub(super) fn slot_of_open_file(&self, index: u32) -> Option<u32> {
        self.by_open_file.get(&index).copied()
    }

    /// Index of the tree's barrier page among the passed descriptors.
    pub(super) fn barrier(&self) -> Option<u32> {
        self.barrier
    }

    /// Index of a shared object among the passed descriptors.
    pub(super) fn slot_of_shared_object(&self, index: u32) -> u32 {
        self.shared_objects[index as usize]
    }

    /// Returns the index of the memfd with written pages among the passed descriptors, and its runs of one process.
    pub(super) fn written_pages(&self, process: u32) -> Option<(u32, impl Iterator<Item = &WrittenRun>)> {
        let (passed, runs) = self.written_pages.as_ref()?;
        Some((*passed, runs.iter().filter(move |run| run.process == process)))
    }

    /// Returns all objects, in the order in which they are passed after farfork's own descriptors.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    pub(super) fn count(&self) -> usize {
        self.fds.len()
    }
}

/// Creates the objects of open files.
struct ObjectBuilder<'a> {
    descriptor: &'a Descriptor,
    shared: &'a [File],
    /// The socket for the checkpoint's caller, until the object of its open file is created.
    checkpoint_socket: Option<OwnedFd>,
    pipes: PipeTable,
    /// Indices of memfds whose first open file was created.
    opened_memfds: HashSet<u32>,
}

impl ObjectBuilder<'_> {
    /// Creates the object of an open file; `None` if the restorer opens or creates it.
    fn create_object(&mut self, file: &OpenFile) -> Result<Option<OwnedFd>, RestoreError> {
        let (what, made) = match file {
            OpenFile::Pipe { .. } => ("a pipe", open_pipe_end(file, &mut self.pipes, self.descriptor)),
            OpenFile::EventFd { count, semaphore, flags } => ("an eventfd", create_eventfd(*count, *semaphore, *flags)),
            OpenFile::MemFd { object, .. } if has_path(self.descriptor, *object) => return Ok(None),
            OpenFile::MemFd { object, flags, offset } => ("a memfd", self.open_memory(*object, *flags, *offset)),
            OpenFile::CheckpointSocket { is_caller, flags } => {
                let caller = if *is_caller { self.checkpoint_socket.take() } else { None };
                ("a connection to the daemon", create_program_socket(*flags, caller))
            }
            OpenFile::Inotify { has_lost: true, flags, .. } => {
                ("an inotify that has lost events", inotify_overflow::create_overflowed_inotify(*flags))
            }
            OpenFile::StandardStream(_)
            | OpenFile::Regular { .. }
            | OpenFile::Directory { .. }
            | OpenFile::DeletedDirectory { .. }
            | OpenFile::Device { .. }
            | OpenFile::Epoll { .. }
            | OpenFile::NamedPipe { .. }
            | OpenFile::TimerFd { .. }
            | OpenFile::SignalFd { .. }
            | OpenFile::Inotify { .. }
            | OpenFile::PidFd { .. }
            | OpenFile::Terminal { .. }
            | OpenFile::Socket(_) => return Ok(None),
        };
        made.map(Some).map_err(|cause| RestoreError::from_object_error(what, cause))
    }
}

impl ObjectBuilder<'_> {
    /// Opens shared memory. The first open file of a memfd gets the open file description of memfd_create(2), which
    /// does not count as a writer. Any other writable description would prevent execution (ETXTBSY).
    /// memfd_create(2) sets none of [`CACHE_FLAGS`], so a file with one of them is opened again.
    fn open_memory(&mut self, object: u32, flags: u32, offset: u64) -> io::Result<OwnedFd> {
        let memfd = &self.shared[object as usize];
        let is_memfd = matches!(self.descriptor.shared_objects[object as usize].kind, SharedObjectKind::MemFd(_));
        let wanted = OFlags::from_bits_retain(flags);
        let can_be_original = wanted & OFlags::RWMODE == OFlags::RDWR && !wanted.intersects(CACHE_FLAGS);
        if !is_memfd || !can_be_original || !self.opened_memfds.insert(object) {
            return reopen_memfd(memfd, flags, offset);
        }
        let mut first = memfd.try_clone()?;
        fcntl_setfl(&first, wanted & (OFlags::APPEND | OFlags::NONBLOCK))?;
        first.seek(SeekFrom::Start(offset))?;
        Ok(first.into())
    }
}

/// The roots of the node and of the child's container, as paths of this process.
#[derive(Debug, Clone)]
pub(super) struct RootPaths {
    pub(super) node_root: PathBuf,
    pub(super) container_root: PathBuf,
    /// Whether the seed was made on this machine.
    pub(super) is_origin_machine: bool,
}

impl RootPaths {
    /// Whether the directory of a path is on different devices in the container and on the node.
    pub(super) fn is_private_path(&self, path: &str) -> bool {
        // Resolve links in the node's root: in the container's, an absolute link would be resolved relative to this
        // process's root.
        let directory = Path::new(path).parent().unwrap_or(Path::new("/"));
        let here = resolve_on_node(&self.node_root, directory, OFlags::empty());
        let Ok(node) = here.and_then(|here| here.canonicalize()) else { return false };
        let below = node.strip_prefix(&self.node_root).or_else(|_| node.strip_prefix("/")).unwrap_or(&node);
        let device = |directory: &Path| directory.metadata().map(|found| found.dev());
        match (device(&node), device(&self.container_root.join(below))) {
            (Ok(node), Ok(container)) => node != container,
            // The directory exists in only one of the roots, or stat(2) failed.
            _ => false,
        }
    }
}

/// Whether shared memory is a file that the child opens by its path.
pub(super) fn has_path(descriptor: &Descriptor, object: u32) -> bool {
    matches!(descriptor.shared_objects[object as usize].kind, SharedObjectKind::PosixShm { .. })
}

/// Whether a seal must be added after all mappings exist. F_SEAL_FUTURE_WRITE allows existing writable mappings, but no
/// new ones.
pub(super) fn is_deferred_seal(seals: u32) -> bool {
    const F_SEAL_FUTURE_WRITE: u32 = 0x10;
    seals & F_SEAL_FUTURE_WRITE != 0
}

/// Whether a process of a seed executes a shared object.
fn is_executed(descriptor: &Descriptor, object: u32) -> bool {
    descriptor.processes().any(|process| process.exe_object == Some(object))
}

/// Sets modes, owners and seals of shared memory. Must be the last step, because they can prevent opening or writing
/// the memory.
fn finalize_shared_memory(descriptor: &Descriptor, shared: &[File]) -> Result<(), RestoreError> {
    for (memfd, object) in shared.iter().zip(&descriptor.shared_objects) {
        if let SharedObjectKind::MemFd(status) | SharedObjectKind::DeletedFile(status) = object.kind {
            set_file_status(memfd, status)
                .map_err(|e| RestoreError::from_object_error("a memfd's mode and owner", e))?;
        }
        if let Some(seals) = object.seals.filter(|seals| !is_deferred_seal(*seals)) {
            farfork_sys::memfd::seal(memfd, seals)
                .map_err(|e| RestoreError::from_object_error("a memfd's seals", e))?;
        }
    }
    Ok(())
}

fn set_file_status(memfd: &File, status: FileStatus) -> io::Result<()> {
    let FileStatus { mode, uid, gid } = status;
    rustix::fs::fchown(memfd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    Ok(rustix::fs::fchmod(memfd, Mode::from_raw_mode(mode))?)
}

/// Returns a connection to a daemon: the caller's socket with the reply to its checkpoint, or a socket whose peer is
/// closed.
fn create_program_socket(flags: u32, caller: Option<OwnedFd>) -> io::Result<OwnedFd> {
    let end = match caller {
        Some(caller) => caller,
        None => farfork_sys::fd_passing::seqpacket_pair()?.0,
    };
    fcntl_setfl(&end, OFlags::from_bits_retain(flags) & OFlags::NONBLOCK)?;
    Ok(end)
}

/// A filled pipe. Its ends stay open until all its open files are created.
struct PipePair {
    ends: (OwnedFd, OwnedFd),
    is_end_used: [bool; 2],
    remaining_files: usize,
}

type PipeTable = HashMap<u64, PipePair>;

/// Opens one end of a pipe. The first call for a pipe creates and fills it.
fn open_pipe_end(file: &OpenFile, pipes: &mut PipeTable, descriptor: &Descriptor) -> io::Result<OwnedFd> {
    let OpenFile::Pipe { pipe, is_write_end, flags, .. } = file else { unreachable!("asked for pipes only") };
    if !pipes.contains_key(pipe) {
        let is_of_it = |(_, file): &(u32, &OpenFile)| matches!(file, OpenFile::Pipe { pipe: of, .. } if of == pipe);
        let files: Vec<(u32, &OpenFile)> = (0..).zip(&descriptor.open_files).filter(is_of_it).collect();
        let attributes: Vec<_> = files.iter().filter_map(|(index, _)| descriptor.attributes_of_file(*index)).collect();
        let ends = create_filled_pipe(files.iter().map(|(_, file)| *file), &attributes)?;
        pipes.insert(*pipe, PipePair { ends, is_end_used: [false; 2], remaining_files: files.len() });
    }
    let made = pipes.get_mut(pipe).expect("it was made");
    let end = duplicate_pipe_end(made, *is_write_end, *flags)?;
    made.remaining_files -= 1;
    if made.remaining_files == 0 {
        pipes.remove(pipe);
    }
    Ok(end)
}

fn duplicate_pipe_end(made: &mut PipePair, is_write_end: bool, flags: u32) -> io::Result<OwnedFd> {
    let end = if is_write_end { &made.ends.1 } else { &made.ends.0 };
    let flags = OFlags::from_bits_retain(flags);
    // Each open file needs its own open file description, so that O_NONBLOCK of one does not affect another. The first
    // open file of an end gets the description of pipe2(2), unless the program had opened it by path in /proc, which
    // O_LARGEFILE in its flags shows.
    let was_opened = flags.contains(OFlags::from_bits_retain(O_LARGEFILE));
    let end = if !was_opened && !std::mem::replace(&mut made.is_end_used[usize::from(is_write_end)], true) {
        end.try_clone()?
    } else {
        let path = format!("/proc/self/fd/{}", end.as_raw_fd());
        let access = flags & OFlags::RWMODE;
        rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, rustix::fs::Mode::empty())?
    };
    fcntl_setfl(&end, flags & (OFlags::NONBLOCK | OFlags::DIRECT))?;
    Ok(end)
}

/// Creates the pipe of these open files, with its contents, mode and owner.
fn create_filled_pipe<'a>(
    files: impl Iterator<Item = &'a OpenFile> + Clone,
    attributes: &[&OpenFileAttributes],
) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let buffers = attributes.iter().map(|attributes| &attributes.pipe_buffers).find(|buffers| !buffers.is_empty());
    let is_in_packet_mode = |file: &OpenFile| matches!(file, OpenFile::Pipe { flags, .. } if OFlags::from_bits_retain(*flags).contains(OFlags::DIRECT));
    let has_packets = files.clone().any(is_in_packet_mode);
    for file in files {
        if let OpenFile::Pipe { capacity, content, packets, .. } = file {
            fcntl_setpipe_size(&write, *capacity as usize)?;
            match buffers.filter(|_| !content.is_empty()) {
                Some(buffers) => write_buffers(&write, content, buffers)?,
                None if packets.is_empty() => File::from(write.try_clone()?).write_all(content)?,
                None => write_packets(&write, content, packets, has_packets)?,
            }
        }
    }
    if let Some(FileStatus { mode, uid, gid }) = attributes.iter().find_map(|attributes| attributes.status) {
        rustix::fs::fchown(&write, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        rustix::fs::fchmod(&write, Mode::from_raw_mode(mode))?;
    }
    Ok((read, write))
}

/// Fills a buffer of a pipe with each piece. splice(2) moves a buffer as it is.
fn write_buffers(write: &OwnedFd, content: &[u8], buffers: &[PipeBuffer]) -> io::Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let mut rest = content;
    for PipeBuffer { length, is_packet } in buffers {
        let (piece, others) = rest.split_at_checked(*length as usize).ok_or(io::ErrorKind::InvalidData)?;
        let mode = if *is_packet { OFlags::DIRECT } else { OFlags::empty() };
        fcntl_setfl(&writer, mode | OFlags::NONBLOCK)?;
        File::from(writer.try_clone()?).write_all(piece)?;
        if splice(&reader, None, write, None, piece.len(), SpliceFlags::NONBLOCK)? != piece.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rest = others;
    }
    if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Calls write(2) once per packet of a descriptor before version 32. Without packet mode, all content is one write.
fn write_packets(write: &OwnedFd, content: &[u8], packets: &[u32], has_packets: bool) -> io::Result<()> {
    if has_packets {
        fcntl_setfl(write, OFlags::NONBLOCK | OFlags::DIRECT)?;
    }
    let mut rest = content;
    for length in packets {
        let (packet, others) = rest.split_at_checked(*length as usize).ok_or(io::ErrorKind::InvalidData)?;
        File::from(write.try_clone()?).write_all(packet)?;
        rest = others;
    }
    if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn create_eventfd(count: u64, semaphore: bool, flags: u32) -> io::Result<OwnedFd> {
    let mut wanted = EventfdFlags::CLOEXEC;
    wanted.set(EventfdFlags::SEMAPHORE, semaphore);
    wanted.set(EventfdFlags::NONBLOCK, OFlags::from_bits_retain(flags).contains(OFlags::NONBLOCK));
    let made = rustix::event::eventfd(0, wanted)?;
    if count > 0 {
        rustix::io::write(&made, &count.to_ne_bytes())?;
    }
    Ok(made)
}

/// Opens a new open file description of the same memory, which may be for its location only (O_PATH). Before Linux 6.6, memory
/// cannot be opened with O_DIRECT.
fn reopen_memfd(memfd: &File, flags: u32, offset: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags);
    let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
    let open = |flags: OFlags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
    if flags.contains(OFlags::PATH) {
        return Ok(open(OFlags::PATH)?);
    }
    let kept = flags & (OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK | CACHE_FLAGS);
    let mut file: File = match open(kept) {
        Err(Errno::INVAL) if kept.contains(OFlags::DIRECT) => open(kept - OFlags::DIRECT)?,
        opened => opened?,
    }
    .into();
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.into())
}
