//! State of open files that fork(2) shares, read in the pause: positions, counters, epoll targets. `pipe_state` reads pipes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farfork_sys::fd_owner::{FdOwner, SignalTarget};
use farfork_sys::pidfd;
use farfork_sys::process::{FdDirectory, FdInfo, ProcStatus};
use farfork_sys::sock_diag::SockDiag;
use rustix::pipe::fcntl_getpipe_size;
use rustix::time::timerfd_gettime;

use super::inflight::InflightFiles;
use super::pipe_state::{self, PipeState, PipeWriters};
use super::sockets::{self, SocketContents};
use super::terminal::{self, ProcessTerminalEnd, TerminalEnd};
use super::{DaemonSockets, FdKind, O_ACCMODE, O_WRONLY, OpenFd};
use crate::capture::error::CaptureError;

/// The shared state of a process's open files in the pause.
#[derive(Debug, Default)]
pub(crate) struct OpenFileStates {
    /// All descriptors of the process.
    fd_table: ProcessFdTable,
    /// `fdinfo` of the descriptors whose state was read, by number.
    pub(super) fdinfo: BTreeMap<u32, FdInfo>,
    /// Pipes that a process of the tree reads, by inode.
    pub(super) pipes: BTreeMap<u64, PipeState>,
    /// Pipes that a process of the tree writes, by inode. The contents are read only if no process can read the pipe.
    pub(super) written_pipes: BTreeMap<u64, PipeState>,
    /// Size of the event queue of each inotify instance, in bytes, by descriptor number.
    pub(super) unread_bytes: BTreeMap<u32, u64>,
    /// Recipients of signals about readiness and urgent data, by descriptor number.
    pub(super) signal_owners: BTreeMap<u32, FdOwner>,
    /// By inode.
    pub(super) sockets: BTreeMap<u64, SocketContents>,
    /// Ends of pseudo-terminals, by descriptor number.
    pub(super) terminals: BTreeMap<u32, TerminalEnd>,
    /// Files in flight in the process's sockets.
    pub(super) inflight: InflightFiles,
    /// The process, opened when the first duplicate is needed.
    pidfd: Option<OwnedFd>,
}

/// The descriptors of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessFdTable {
    /// By ascending number.
    pub(super) fds: Vec<OpenFd>,
    /// The `fdinfo` of each descriptor, in the same order.
    pub(super) infos: Vec<FdInfo>,
}

/// A process whose descriptors are read, in the pause.
#[derive(Debug)]
pub(super) struct FdStateSource<'a> {
    pub(super) pid: i32,
    /// The `fdinfo` directory of the process.
    pub(super) infos: &'a FdDirectory,
    /// Set if the process has sockets whose peers only sock_diag(7) shows.
    pub(super) diagnosis: Option<&'a SockDiag>,
}

/// The links to a process's open files, opened when first needed.
#[derive(Debug)]
pub(super) struct LazyFdLinks {
    pid: i32,
    links: Option<FdDirectory>,
}

impl LazyFdLinks {
    fn new(pid: i32) -> Self {
        Self { pid, links: None }
    }

    /// The directory of the links.
    pub(super) fn open(&mut self) -> io::Result<&FdDirectory> {
        match &mut self.links {
            Some(links) => Ok(links),
            unopened => Ok(unopened.insert(FdDirectory::open_links(self.pid)?)),
        }
    }
}

impl OpenFileStates {
    /// Reads the shared state of a stopped process. `surveyed` are its descriptors at the survey. The link of a descriptor
    /// is read again if its file may have changed since. `sockets` are the process's connections to the daemon.
    pub(crate) fn read(
        pid: i32,
        surveyed: &[OpenFd],
        sockets: &DaemonSockets,
        diagnosis: Option<&SockDiag>,
    ) -> Result<Self, CaptureError> {
        let mut contents = Self::default();
        let unread = || CaptureError::reading(pid, "the open files");
        let infos = FdDirectory::open_infos(pid).map_err(unread())?;
        let numbers = infos.numbers().map_err(unread())?;
        let source = FdStateSource { pid, infos: &infos, diagnosis };
        let mut links = LazyFdLinks::new(pid);
        for number in numbers {
            let known = surveyed.binary_search_by_key(&number, |fd| fd.number).ok().map(|index| &surveyed[index]);
            let found = infos.info(number).and_then(|info| {
                let fd = OpenFd::reuse_known(number, known, &info, sockets, &mut links)?;
                let info = contents.read_fd(&source, &fd, info)?;
                Ok((fd, info))
            });
            let (fd, info) = found.map_err(|error| {
                // If the number was reused since the survey, the error concerns another file: survey again.
                let is_another = known.is_some_and(|known| !known.is_unchanged(pid));
                super::fd_read_error(pid, number, if is_another { io::ErrorKind::NotFound.into() } else { error })
            })?;
            contents.fd_table.fds.push(fd);
            contents.fd_table.infos.push(info);
        }
        // A socket that was opened since the survey has no socket diagnosis: the process must be surveyed again.
        let unread = |error| super::read_error(pid, "the files in flight in its sockets".to_owned(), error);
        contents.read_inflight(pid, diagnosis).map_err(unread)?;
        Ok(contents)
    }

    /// Takes all descriptors of the process. Call it once.
    pub(super) fn take_fds(&mut self) -> ProcessFdTable {
        std::mem::take(&mut self.fd_table)
    }

    /// Reads the state of a file. `info` was read just before. Returns the `fdinfo` that belongs to the state.
    pub(super) fn read_fd(&mut self, source: &FdStateSource<'_>, fd: &OpenFd, mut info: FdInfo) -> io::Result<FdInfo> {
        let FdStateSource { pid, infos, diagnosis } = *source;
        if !fd.has_shared_state() {
            return Ok(info);
        }
        if fd.kind == FdKind::TimerFd {
            // timerfd_gettime(2) makes the kernel update the number of expirations in `fdinfo`.
            timerfd_gettime(self.duplicate_fd(pid, fd)?)?;
            info = infos.info(fd.number)?;
        }
        // Skip a pipe whose number was reused since its link was read.
        let is_pipe = matches!(fd.kind, FdKind::Pipe | FdKind::NamedPipe) && fd.inode == info.inode;
        if is_pipe && info.flags & O_ACCMODE != O_WRONLY && !self.pipes.contains_key(&info.inode) {
            let copy = self.duplicate_fd(pid, fd)?;
            let mut state = pipe_state::read_pipe(&copy)?;
            if fd.kind == FdKind::NamedPipe {
                state.writers = PipeWriters::read(&copy)?;
            }
            self.pipes.insert(info.inode, state);
        }
        if is_pipe && info.flags & O_ACCMODE == O_WRONLY && self.pipe(info.inode).is_none() {
            let state = self.read_written_pipe(pid, fd, info.flags)?;
            self.written_pipes.insert(info.inode, state);
        }
        if fd.kind == FdKind::Socket && !self.sockets.contains_key(&info.inode) {
            let copy = self.duplicate_fd(pid, fd)?;
            self.sockets.insert(info.inode, sockets::read_socket(&copy, info.inode, diagnosis)?);
            let owner = read_signal_owner(copy.as_fd(), info.flags)?;
            self.signal_owners.extend(owner.map(|owner| (fd.number, owner)));
        }
        if fd.kind == FdKind::Inotify {
            let unread = rustix::io::ioctl_fionread(self.duplicate_fd(pid, fd)?)?;
            self.unread_bytes.insert(fd.number, unread);
        }
        if matches!(fd.kind, FdKind::Terminal | FdKind::TerminalMaster) {
            let copy = self.duplicate_fd(pid, fd)?;
            self.terminals.insert(fd.number, terminal::read_terminal_end(&copy, &fd.kind)?);
        }
        if info.flags & O_ASYNC != 0 && !self.signal_owners.contains_key(&fd.number) {
            let owner = read_signal_owner(self.duplicate_fd(pid, fd)?.as_fd(), info.flags)?;
            self.signal_owners.extend(owner.map(|owner| (fd.number, owner)));
        }
        self.fdinfo.insert(fd.number, info.clone());
        Ok(info)
    }

    /// The ends of pseudo-terminals that a process has.
    pub(crate) fn terminals(&self, pid: i32) -> impl Iterator<Item = ProcessTerminalEnd<'_>> + Clone {
        self.terminals.iter().map(move |(number, end)| (pid, *number, end))
    }

    /// Moves the pipes, sockets and files in flight of another process of the tree into this state.
    pub(crate) fn merge(&mut self, other: &mut Self) {
        self.pipes.append(&mut other.pipes);
        self.written_pipes.append(&mut other.written_pipes);
        self.sockets.append(&mut other.sockets);
        self.inflight.merge(&mut other.inflight);
    }

    /// Records who may have connected the sockets of a process. `threads` are the threads of the process.
    pub(super) fn add_socket_holder<'a>(
        &mut self,
        process: &ProcessFdTable,
        threads: impl Iterator<Item = &'a ProcStatus> + Clone,
    ) {
        for fd in process.fds.iter().filter(|fd| fd.kind == FdKind::Socket) {
            if let Some(socket) = self.sockets.get_mut(&fd.inode) {
                socket.add_holder(fd.status, threads.clone());
            }
        }
    }

    /// The state of a pipe as one of its ends shows it; `None` if no process of the tree has this pipe open.
    pub(super) fn pipe(&self, inode: u64) -> Option<&PipeState> {
        self.pipes.get(&inode).or_else(|| self.written_pipes.get(&inode))
    }

    /// Reads a pipe from its write end. The contents are read only if no process has the pipe open for reading, and if no
    /// process notices the read end that this needs.
    fn read_written_pipe(&mut self, pid: i32, fd: &OpenFd, flags: u32) -> io::Result<PipeState> {
        let copy = self.duplicate_fd(pid, fd)?;
        let can_open = !pipe_state::is_reader_noticed(&fd.kind, flags);
        if can_open && rustix::io::ioctl_fionread(&copy)? > 0 && !pipe_state::has_readers(&copy)? {
            return pipe_state::read_unread_pipe(&copy);
        }
        Ok(PipeState { capacity: fcntl_getpipe_size(&copy)? as u32, ..PipeState::EMPTY })
    }

    /// Duplicates a descriptor of the process into this process.
    fn duplicate_fd(&mut self, pid: i32, fd: &OpenFd) -> io::Result<OwnedFd> {
        if self.pidfd.is_none() {
            self.pidfd = Some(pidfd::open(pid)?);
        }
        let process = self.pidfd.as_ref().ok_or(io::ErrorKind::NotFound)?;
        fd.duplicate(process)
    }
}

/// A file status flag: the file sends a signal when it becomes ready.
pub(super) const O_ASYNC: u32 = 0o20_000;

/// Reads the recipient of a file's signals. `flags` are the file's O_* flags. `None` if the file sends none: it is not
/// signal-driven, and has no owner, which would get SIGURG from a socket.
pub(super) fn read_signal_owner(fd: BorrowedFd<'_>, flags: u32) -> io::Result<Option<FdOwner>> {
    let owner = farfork_sys::fd_owner::read_fd_owner(fd)?;
    Ok((flags & O_ASYNC != 0 || owner.target != SignalTarget::Nobody).then_some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    use crate::capture::state::tree_root::TreeRoot;

    #[test]
    fn a_descriptor_number_that_was_reused_is_read_again() {
        let (_held, input) = std::io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let mut sleeper =
            Command::new("sleep").arg("60").stdin(Stdio::from(input)).stdout(Stdio::null()).spawn().unwrap();
        let pid = sleeper.id().cast_signed();
        // The program opens and closes libraries until it sleeps.
        rustix::process::kill_process(rustix::process::Pid::from_child(&sleeper), rustix::process::Signal::STOP)
            .unwrap();
        while farfork_sys::process::ProcStat::read(pid).unwrap().state != 'T' {
            std::thread::yield_now();
        }
        let links = FdDirectory::open_links(pid).unwrap();
        let now = OpenFd::read(&links, 0).unwrap();
        let outcome_if_it_was = |kind: FdKind| {
            let link = format!("{kind:?}").into_bytes();
            let before = [OpenFd { link, kind, inode: now.inode + 1, ..now.clone() }];
            let refusals = super::super::refuse_open_files(pid, TreeRoot::find(pid).unwrap(), &before);
            (OpenFileStates::read(pid, &before, &DaemonSockets::default(), None), refusals)
        };
        let outcomes = [FdKind::Pipe, FdKind::Socket, FdKind::TimerFd, FdKind::TerminalMaster].map(outcome_if_it_was);
        let known = OpenFileStates::read(pid, std::slice::from_ref(&now), &DaemonSockets::default(), None);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        for (read, refusals) in outcomes.into_iter().chain([(known, Ok(Vec::new()))]) {
            let mut contents = read.unwrap();
            assert_eq!(contents.pipes.keys().copied().collect::<Vec<_>>(), [now.inode]);
            assert_eq!(contents.take_fds().fds[0], now);
            assert!(refusals.as_ref().is_ok_and(Vec::is_empty), "{refusals:?}");
        }
    }
}
