//! Builds the open files of a descriptor from the descriptor tables of a tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_sys::fd_owner::{FdOwner, SignalTarget};
use farfork_sys::pidfd;
use farfork_sys::process::{FdInfo, LockEntry, TaskFd};
use farfork_wire::descriptor::{
    FileDescriptor, FileLock, FileOwner, FileStatus, FileVersion, MessageSender, MovedEpollTarget, OpenFile,
    OpenFileAttributes, PseudoTerminal, Socket, StandardStream,
};

use super::anon_inode::LockHolder;
use super::epoll_targets::WatchingEpoll;
use super::open_file_index::{KnownOpenFile, OpenFileIndex};
use super::pipe_state::{PipeState, PipeWriters};
use super::sockets::{self, SocketDefaultsCache, SocketTable};
use super::states::OpenFileStates;
use super::terminal::TerminalEnd;
use super::{
    FOREIGN_PIDFD_REASON, FdKind, O_ACCMODE, O_RDONLY, O_WRONLY, OpenFd, THREAD_PIDFD_REASON, TreeStreams, anon_inode,
    fd_object, is_thread_pidfd, versions,
};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::shared::SharedCopies;
use crate::capture::state::tree_root::TreeRoot;
use crate::capture::survey::ThreadProfile;

const O_CLOEXEC: u32 = 0o2_000_000;

/// The open files of a tree of processes, while they are being built.
#[derive(Debug, Default)]
pub(crate) struct OpenFileTable {
    pub(crate) files: Vec<OpenFile>,
    /// Pseudo-terminals whose master a process of the tree has open, in ascending order.
    pub(crate) terminals: Vec<PseudoTerminal>,
    pub(crate) versions: Vec<FileVersion>,
    /// Registrations of epoll instances whose files are not open at the registered numbers.
    pub(crate) moved_epoll_targets: Vec<MovedEpollTarget>,
    /// Attributes of pipes and sockets that have any, ascending by open file.
    pub(crate) attributes: Vec<OpenFileAttributes>,
    pub(super) index: OpenFileIndex,
    /// Epoll instances whose registrations are not resolved yet.
    pub(super) epolls: Vec<WatchingEpoll>,
    /// Inodes of sockets, by the index of the open file.
    pub(super) sockets: BTreeMap<u32, u64>,
    /// Paths of named pipes that have, or had, a writer.
    pub(super) written_pipes: BTreeSet<String>,
    /// Set once the first process was added.
    streams: Option<TreeStreams>,
    socket_defaults: SocketDefaultsCache,
}

impl OpenFileTable {
    /// Returns an empty table of a tree with these terminals.
    pub(crate) fn with_terminals(terminals: Vec<PseudoTerminal>) -> Self {
        Self { terminals, ..Self::default() }
    }

    /// Sets the standard streams, which the first process determines.
    pub(crate) fn set_streams(&mut self, streams: TreeStreams) {
        self.streams = Some(streams);
    }

    /// The standard streams of the tree. `None` until the first process was added.
    pub(crate) fn streams(&self) -> Option<&TreeStreams> {
        self.streams.as_ref()
    }
}

/// The files of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessFiles {
    pub(crate) descriptors: Vec<FileDescriptor>,
    pub(crate) locks: Vec<FileLock>,
    pub(crate) owners: Vec<FileOwner>,
}

/// Translates ids of signal recipients and message senders to the ids that the program knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PidTranslation<'a> {
    /// The captured process.
    pub(crate) pid: i32,
    pub(crate) profiles: &'a BTreeMap<i32, ThreadProfile>,
    /// Inner ids of the tree's processes, by their pids in farfork's pid namespace.
    pub(crate) inner_ids: &'a BTreeMap<i32, u32>,
}

/// The reason for refusing a file that sends signals to another process.
pub(super) const FOREIGN_OWNER_REASON: &str = "it signals its readiness, or urgent data, to another process or a group (F_SETOWN), which is not carried; make the process its owner first";

/// The child writes the data of a named pipe with write(2), which fills each buffer.
const FULL_NAMED_PIPE_REASON: &str = "it is a full pipe whose buffers are not full, so that a write(2) that waits would \
     succeed in a child: not carried; let the process read from it first";

impl PidTranslation<'_> {
    /// Returns the recipient of a file's readiness signals. `None` if it is another process or a group.
    pub(super) fn translate_owner(&self, number: u32, owner: &FdOwner) -> Option<FileOwner> {
        let signal = owner.signal;
        match owner.target {
            SignalTarget::Process(pid) if pid == self.pid => Some(FileOwner { number, tid: 0, signal }),
            SignalTarget::Thread(tid) => Some(FileOwner { number, tid: self.profiles.get(&tid)?.inner_id(), signal }),
            SignalTarget::Process(_) | SignalTarget::Group(_) | SignalTarget::Nobody => None,
        }
    }
}

/// Returns why a child cannot bind a socket to a path. The child binds a socket with a file to its original name, and then
/// moves the file to its present name.
pub(super) fn bound_path_refusal(root: TreeRoot, name: &[u8]) -> Option<String> {
    let path = Path::new(OsStr::from_bytes(name));
    let is_there = |directory: &Path| directory.is_absolute() && root.has_directory(directory);
    (!path.parent().is_some_and(is_there)).then(|| {
        format!(
            "it was bound to {}, a path that is relative, or whose directory does not exist in its mount namespace: not \
             carried; bind it to an absolute path, or close it first",
            path.display()
        )
    })
}

/// Builds open files from the descriptor table of `fd_pid`: the captured process, or this process for files in flight.
pub(super) struct FileTableBuilder<'a> {
    pub(super) fd_pid: i32,
    pub(super) root: TreeRoot,
    pub(super) fds: &'a [OpenFd],
    pub(super) file_states: &'a OpenFileStates,
    /// State of the pipes and sockets of all processes of the tree.
    pub(super) tree_states: &'a OpenFileStates,
    pub(super) shared_copies: &'a SharedCopies,
    pub(super) pids: PidTranslation<'a>,
    pub(super) process_files: ProcessFiles,
    pub(super) table: &'a mut OpenFileTable,
    pub(super) refusals: Vec<Refusal>,
    /// Whether the descriptors are copies of files in flight in sockets, in this process.
    pub(super) are_inflight: bool,
}

impl<'a> FileTableBuilder<'a> {
    /// Builds the files of a stopped process. `infos` are the `fdinfo` of its descriptors, in their order. The table
    /// receives the open files that no earlier process has. The first process must be built first.
    pub(super) fn build_process_files(mut self, infos: &[FdInfo]) -> Result<ProcessFiles, CaptureError> {
        for (fd, info) in self.fds.iter().zip(infos) {
            self.add_fd(fd, info)?;
        }
        if self.refusals.is_empty() {
            Ok(self.process_files)
        } else {
            Err(CaptureError::refused(self.pids.pid, self.refusals))
        }
    }

    fn add_fd(&mut self, fd: &OpenFd, now: &FdInfo) -> Result<(), CaptureError> {
        let open_file = self.index_of(fd, now)?;
        let close_on_exec = self.fdinfo_of(fd, now)?.flags & O_CLOEXEC != 0;
        self.process_files.descriptors.push(FileDescriptor { number: fd.number, open_file, close_on_exec });
        Ok(())
    }

    /// Returns the `fdinfo` that was read during the clone, if any; otherwise `now`.
    fn fdinfo_of<'i>(&'i self, fd: &OpenFd, now: &'i FdInfo) -> Result<&'i FdInfo, CaptureError> {
        match self.file_states.fdinfo.get(&fd.number) {
            Some(then) if (then.mount, then.inode) == (now.mount, now.inode) => Ok(then),
            _ if fd.has_shared_state() => Err(self.changed_error(fd)),
            _ => Ok(now),
        }
    }

    /// Returns the index of the open file that a descriptor refers to. Adds the file if it is new.
    pub(super) fn index_of(&mut self, fd: &OpenFd, now: &FdInfo) -> Result<u32, CaptureError> {
        let info = &self.fdinfo_of(fd, now)?.clone();
        let (identity, descriptor) = (fd.open_file_key(info), TaskFd { pid: self.fd_pid, fd: fd.number });
        // Each descriptor of a standard stream gets its own open file.
        let known =
            if fd.is_standard_stream { Err(None) } else { self.table.index.find(identity, descriptor).map_err(Some) };
        Ok(match known {
            Ok(KnownOpenFile { first: TaskFd { pid: first, .. }, index }) => {
                let is_own = first == self.fd_pid;
                let is_duplicate =
                    is_own || self.process_files.descriptors.iter().any(|known| known.open_file == index);
                if !is_duplicate && !self.are_inflight {
                    self.add_locks(fd, info.process_locks());
                }
                index
            }
            Err(position) => {
                let file = self.build_open_file(fd, info)?;
                let index = self.table.files.len() as u32;
                self.table.attributes.extend(self.build_attributes(fd, &file, index));
                self.table.versions.extend(versions::open_file_version(fd, &file, index));
                self.table.files.push(file);
                let known = KnownOpenFile { first: descriptor, index };
                match position {
                    Some(position) => {
                        if !self.are_inflight {
                            self.add_locks_and_owner(fd, info);
                        }
                        self.table.index.insert(identity, position, known);
                    }
                    None => self.table.index.add_stream(known),
                }
                if fd.kind == FdKind::Epoll && !fd.is_standard_stream {
                    let entries = info.epoll.clone();
                    self.table.epolls.push(WatchingEpoll { open_file: index, first: descriptor, entries });
                }
                index
            }
        })
    }

    /// Returns the attributes of a pipe or socket, if it has any.
    fn build_attributes(&self, fd: &OpenFd, file: &OpenFile, index: u32) -> Option<OpenFileAttributes> {
        const PIPE_MODE: u32 = 0o600;
        const SOCKET_MODE: u32 = 0o777;
        let (attributes, new_mode) = match file {
            OpenFile::Pipe { content, .. } => {
                let state = self.tree_states.pipe(fd.inode).filter(|_| !content.is_empty());
                let pipe_buffers = state.map_or(Vec::new(), |state| state.buffers.clone());
                (OpenFileAttributes { pipe_buffers, ..OpenFileAttributes::default() }, PIPE_MODE)
            }
            OpenFile::Socket(_) => {
                let contents = self.tree_states.sockets.get(&fd.inode)?;
                (SocketTable(&self.tree_states.sockets).build_attributes(contents), SOCKET_MODE)
            }
            _ => return None,
        };
        let is_new = fd.status == FileStatus { mode: new_mode, uid: 0, gid: 0 };
        let attributes = OpenFileAttributes { open_file: index, status: (!is_new).then_some(fd.status), ..attributes };
        (!attributes.is_default()).then_some(attributes)
    }

    fn changed_error(&self, fd: &OpenFd) -> CaptureError {
        CaptureError::Unstable { pid: self.pids.pid, what: format!("fd {}", fd.number) }
    }

    fn build_open_file(&mut self, fd: &OpenFd, info: &FdInfo) -> Result<OpenFile, CaptureError> {
        if fd.is_standard_stream {
            return Ok(OpenFile::StandardStream(self.choose_stream(fd, info)));
        }
        let flags = info.flags & !O_CLOEXEC;
        let offset = info.offset;
        Ok(match fd.kind {
            FdKind::NamedPipe => self.build_named_pipe(fd, flags)?,
            FdKind::TimerFd => self.or_refusal(fd, anon_inode::build_timer_fd(info, flags))?,
            FdKind::SignalFd => self.or_refusal(fd, anon_inode::build_signal_fd(info, flags))?,
            FdKind::Inotify => {
                let unread = *self.file_states.unread_bytes.get(&fd.number).ok_or_else(|| self.changed_error(fd))?;
                self.or_refusal(fd, anon_inode::build_inotify(self.root, info, unread, flags))?
            }
            FdKind::PidFd => self.build_pidfd(fd, info, flags)?,
            FdKind::Socket => self.build_socket(fd, flags)?,
            FdKind::Regular => OpenFile::Regular { path: self.path(fd), flags, offset },
            FdKind::Directory => OpenFile::Directory { path: self.path(fd), flags, offset },
            FdKind::DeletedDirectory(status) => OpenFile::DeletedDirectory { status, flags },
            FdKind::Device => OpenFile::Device { path: self.path(fd), flags },
            FdKind::Pipe => self.build_pipe(fd, flags)?,
            FdKind::EventFd => {
                let counter = info.event_counter.ok_or_else(|| self.changed_error(fd))?;
                OpenFile::EventFd { count: counter.count, semaphore: counter.semaphore, flags }
            }
            FdKind::Epoll => OpenFile::Epoll { flags, targets: Vec::new() },
            FdKind::Memory => {
                let object = self.shared_copies.index_of(fd.device, fd.inode).ok_or_else(|| self.changed_error(fd))?;
                OpenFile::MemFd { object, flags, offset }
            }
            FdKind::DaemonSocket { is_caller } => OpenFile::CheckpointSocket { is_caller, flags },
            FdKind::Terminal | FdKind::TerminalMaster => {
                let path = self.path(fd);
                let is_master = fd.kind == FdKind::TerminalMaster;
                let number = self.file_states.terminals.get(&fd.number).and_then(TerminalEnd::pts_number);
                let terminal = self.table.terminals.iter().position(|terminal| Some(terminal.number) == number);
                let terminal = terminal.ok_or_else(|| self.changed_error(fd))? as u32;
                OpenFile::Terminal { terminal, path, is_master, flags }
            }
            FdKind::Other(_) => return Err(self.changed_error(fd)),
        })
    }

    /// Path of the file, relative to the root of the tree.
    fn path(&self, fd: &OpenFd) -> String {
        String::from_utf8_lossy(&fd.link).into_owned()
    }

    /// Returns the built file, or turns the reason against it into a refusal.
    fn or_refusal(&self, fd: &OpenFd, made: Result<OpenFile, String>) -> Result<OpenFile, CaptureError> {
        let refuse = |reason| CaptureError::refused(self.pids.pid, vec![Refusal::new(self.fd_name(fd), reason)]);
        made.map_err(refuse)
    }

    /// Builds a pidfd. Refuses a pidfd of a thread, and of a process outside the tree: a child's container lacks that process.
    fn build_pidfd(&self, fd: &OpenFd, info: &FdInfo, flags: u32) -> Result<OpenFile, CaptureError> {
        let known = info.process.and_then(|pid| self.pids.inner_ids.get(&pid));
        let made = match known {
            _ if is_thread_pidfd(info) => Err(THREAD_PIDFD_REASON),
            Some(pid) => Ok(OpenFile::PidFd { pid: *pid, flags }),
            None => Err(FOREIGN_PIDFD_REASON),
        };
        self.or_refusal(fd, made.map_err(str::to_owned))
    }

    /// Adds these locks on the file, or refuses them.
    fn add_locks<'b>(&mut self, fd: &OpenFd, entries: impl Iterator<Item = &'b LockEntry>) {
        let holder = LockHolder::new(self.pids.pid, self.pids.profiles);
        for entry in entries {
            match anon_inode::build_lock(holder, fd, entry) {
                Ok(lock) => self.process_files.locks.push(lock),
                Err(reason) => self.refusals.push(Refusal::new(fd_object(self.pids.pid, fd.number), reason)),
            }
        }
    }

    /// Adds the locks and the signal recipient of a new open file.
    fn add_locks_and_owner(&mut self, fd: &OpenFd, info: &FdInfo) {
        self.add_locks(fd, info.locks.iter());
        let Some(owner) = self.file_states.signal_owners.get(&fd.number) else { return };
        match self.pids.translate_owner(fd.number, owner) {
            Some(owner) => self.process_files.owners.push(owner),
            None => self.refusals.push(Refusal::new(fd_object(self.pids.pid, fd.number), FOREIGN_OWNER_REASON)),
        }
    }

    fn build_socket(&mut self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let Some(contents) = self.tree_states.sockets.get(&fd.inode) else { return Err(self.changed_error(fd)) };
        let mut socket = match SocketTable(&self.tree_states.sockets).build_socket(fd.inode, contents, flags) {
            Ok(socket) => socket,
            Err(reason) => return self.or_refusal(fd, Err(reason)),
        };
        if let Err(reason) = self.translate_senders(fd.inode, &mut socket).and_then(|()| self.check_bound_path(&socket))
        {
            return self.or_refusal(fd, Err(reason));
        }
        self.table.sockets.insert(self.table.files.len() as u32, fd.inode);
        let copy = pidfd::open(self.fd_pid).and_then(|process| pidfd::get_fd(&process, fd.number));
        let options = copy.and_then(|copy| {
            if let Some(reason) = contents.protection_refusal(copy.as_fd(), &socket.state) {
                return Ok(Err(reason.to_owned()));
            }
            sockets::read_options(copy.as_fd(), &mut self.table.socket_defaults)
        });
        match options.map_err(CaptureError::reading(self.pids.pid, format!("the options of fd {}", fd.number)))? {
            Ok(options) => socket.options.extend(options),
            Err(reason) => return self.or_refusal(fd, Err(reason)),
        }
        Ok(OpenFile::Socket(socket))
    }

    fn check_bound_path(&self, socket: &Socket) -> Result<(), String> {
        let name = socket.bind_path().filter(|_| socket.file.is_some());
        name.and_then(|name| bound_path_refusal(self.root, name)).map_or(Ok(()), Err)
    }

    /// Sets the senders of received messages, with the ids that the program knows.
    fn translate_senders(&self, inode: u64, socket: &mut Socket) -> Result<(), String> {
        let arrived = self.tree_states.sockets.get(&inode).map_or(&[][..], |contents| &contents.receive_queue);
        for (message, arrived) in socket.received_messages.iter_mut().zip(arrived) {
            let Some(sender) = arrived.sender else { continue };
            let pid = self.pids.inner_ids.get(&sender.pid).ok_or_else(|| {
                format!(
                    "a message waits in it with the credentials of process {}, which does not descend from the one captured: not carried; let the process read it first",
                    sender.pid
                )
            })?;
            message.sender = Some(MessageSender { pid: *pid, uid: sender.uid, gid: sender.gid });
        }
        Ok(())
    }

    fn build_named_pipe(&mut self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let can_read = flags & O_ACCMODE != O_WRONLY;
        let state = self.pipe_state(fd, can_read)?;
        if state.has_packets() {
            return self.or_refusal(fd, Err("packets (O_DIRECT) wait in it, which are not carried".to_owned()));
        }
        if state.is_full_of_parts() {
            return self.or_refusal(fd, Err(FULL_NAMED_PIPE_REASON.to_owned()));
        }
        let path = self.path(fd);
        if state.writers != PipeWriters::NeverOpened {
            self.table.written_pipes.insert(path.clone());
        }
        let is_first = |file: &OpenFile| matches!(file, OpenFile::NamedPipe { path: other, content, .. } if *other == path && !content.is_empty());
        let has_content = can_read && !self.table.files.iter().any(is_first);
        let content = if has_content { state.content.clone() } else { Vec::new() };
        Ok(OpenFile::NamedPipe { path, flags, capacity: state.capacity, content })
    }

    fn build_pipe(&self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let is_write_end = flags & O_ACCMODE == O_WRONLY;
        let state = self.pipe_state(fd, !is_write_end)?;
        // The first readable end has the content. If no end is readable, the first end has it.
        let can_be_read = self.tree_states.pipes.contains_key(&fd.inode);
        let may_have_content = |is_write_end: bool| !is_write_end || !can_be_read;
        let has_content = |file: &OpenFile| matches!(file, OpenFile::Pipe { pipe, is_write_end, .. } if *pipe == fd.inode && may_have_content(*is_write_end));
        let is_first = may_have_content(is_write_end) && !self.table.files.iter().any(has_content);
        let content = if is_first { state.content.clone() } else { Vec::new() };
        let (capacity, packets) = (state.capacity, Vec::new());
        Ok(OpenFile::Pipe { pipe: fd.inode, is_write_end, flags, capacity, content, packets })
    }

    /// The state of the pipe of a descriptor.
    fn pipe_state(&self, fd: &OpenFd, can_read: bool) -> Result<&'a PipeState, CaptureError> {
        let states = self.tree_states;
        let state = if can_read { states.pipes.get(&fd.inode) } else { states.pipe(fd.inode) };
        state.ok_or_else(|| self.changed_error(fd))
    }

    /// Chooses the standard stream for a descriptor. Descriptors 0, 1 and 2 of the first process get the stream of their
    /// number. Any other descriptor gets a stream with the same file: if possible, the stream of its number, else a stream
    /// of its direction.
    fn choose_stream(&self, fd: &OpenFd, info: &FdInfo) -> StandardStream {
        const STREAMS: [StandardStream; 3] = [StandardStream::Input, StandardStream::Output, StandardStream::Error];
        let order: [u32; 3] = if info.flags & O_ACCMODE == O_RDONLY { [0, 1, 2] } else { [1, 2, 0] };
        let streams = self.table.streams.as_ref();
        let led_to: Vec<u32> =
            streams.into_iter().flat_map(|streams| streams.matching_streams(self.fd_pid, fd)).collect();
        let mut preferred = std::iter::once(fd.number).chain(order);
        let number = preferred.find(|number| led_to.contains(number)).unwrap_or(order[0]);
        STREAMS[number as usize]
    }
}
