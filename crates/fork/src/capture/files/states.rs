//! State of open files that fork(2) shares, read in the pause: positions, counters, pipe contents, epoll targets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farfork_sys::fd_owner::{FdOwner, SignalTarget};
use farfork_sys::pidfd;
use farfork_sys::poll::poll_at_once;
use farfork_sys::process::{FdDirectory, FdInfo, ProcStatus};
use farfork_sys::sock_diag::SockDiag;
use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};
use rustix::time::timerfd_gettime;

use super::inflight::InflightFiles;
use super::sockets::{self, SocketContents};
use super::terminal::{self, ProcessTerminalEnd, TerminalEnd};
use super::{DaemonSockets, FdKind, O_ACCMODE, O_WRONLY, OpenFd};
use crate::capture::error::CaptureError;

/// The state of a pipe in the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) capacity: u32,
    pub(crate) content: Vec<u8>,
    /// Sizes of the packets in the content. Without packet mode (O_DIRECT), all content is one packet.
    pub(crate) packets: Vec<u32>,
    /// Lengths of the buffers of a full pipe, if they are not full, too. Empty for other pipes.
    pub(crate) buffers: Vec<u32>,
    /// Of a named pipe that the process reads: its writers.
    pub(super) writers: PipeWriters,
}

/// The writers of a pipe, as a read end shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PipeWriters {
    /// A process has the pipe open for writing. Unknown writers of a pipe with content count as open.
    #[default]
    Open,
    /// All writers have closed it: POLLHUP.
    Closed,
    /// None has opened the named pipe since the read end was opened (O_NONBLOCK).
    NeverOpened,
}

/// The shared state of a process's open files in the pause.
#[derive(Debug, Default)]
pub(crate) struct OpenFileStates {
    /// All descriptors of the process.
    fd_table: ProcessFdTable,
    /// `fdinfo` of the descriptors whose state was read, by number.
    pub(super) fdinfo: BTreeMap<u32, FdInfo>,
    /// By inode.
    pub(super) pipes: BTreeMap<u64, PipeState>,
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

impl PipeState {
    /// A pipe as pipe(2) makes it: 16 pages.
    pub(crate) const EMPTY: Self = Self {
        capacity: 65_536,
        content: Vec::new(),
        packets: Vec::new(),
        buffers: Vec::new(),
        writers: PipeWriters::Open,
    };
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
            let mut state = read_pipe(&copy)?;
            if fd.kind == FdKind::NamedPipe {
                state.writers = PipeWriters::read(&copy)?;
            }
            self.pipes.insert(info.inode, state);
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

/// Copies the contents of a pipe and leaves them there: tee(2) into a new pipe of the same size. `source` must share
/// the process's open file description: closing another one would signal watchers of the pipe (O_ASYNC).
fn read_pipe(source: &OwnedFd) -> io::Result<PipeState> {
    let capacity = fcntl_getpipe_size(source)?;
    if rustix::io::ioctl_fionread(source)? == 0 {
        return Ok(PipeState { capacity: capacity as u32, ..PipeState::default() });
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if fcntl_getpipe_size(&writer)? < capacity {
        fcntl_setpipe_size(&writer, capacity)?;
    }
    let (mut content, mut packets, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    match tee(source, &writer, capacity, SpliceFlags::NONBLOCK) {
        Ok(bytes) => {
            if bytes < capacity && is_full(&writer)? {
                buffers = buffer_lengths(source)?;
            }
            drop(writer);
            let (mut reader, mut piece) = (File::from(reader), vec![0; capacity]);
            while let length @ 1.. = reader.read(&mut piece)? {
                content.extend_from_slice(&piece[..length]);
                packets.push(length as u32);
            }
        }
        // The pipe is empty.
        Err(rustix::io::Errno::AGAIN) => {}
        Err(errno) => return Err(errno.into()),
    }
    // In packet mode, each packet has buffers of its own.
    if packets.len() > 1 {
        buffers.clear();
    }
    Ok(PipeState { capacity: capacity as u32, content, packets, buffers, ..PipeState::EMPTY })
}

impl PipeWriters {
    /// Reads the writers of a pipe from a read end, and leaves its content there.
    pub(super) fn read(reader: &OwnedFd) -> io::Result<Self> {
        if poll_at_once(reader.as_fd(), PollFlags::IN)?.contains(PollFlags::HUP) {
            return Ok(Self::Closed);
        }
        let (_reader, copy) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // tee(2) of an empty pipe with writers fails with EAGAIN.
        match tee(reader, &copy, 1, SpliceFlags::NONBLOCK) {
            Ok(0) => Ok(Self::NeverOpened),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(Self::Open),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a process has the pipe of a write end open for reading.
pub(super) fn has_readers(writer: &OwnedFd) -> io::Result<bool> {
    Ok(!poll_at_once(writer.as_fd(), PollFlags::OUT)?.contains(PollFlags::ERR))
}

/// Whether no buffer of a pipe is free. A write(2) then waits, even if buffers hold less than a page.
fn is_full(writer: &OwnedFd) -> io::Result<bool> {
    Ok(!poll_at_once(writer.as_fd(), PollFlags::OUT)?.contains(PollFlags::OUT))
}

/// Reads the length of each buffer of a pipe, and leaves its contents there. tee(2) into a pipe of one buffer shows the length of
/// the first buffer of a copy, which is then read from the copy.
fn buffer_lengths(source: &OwnedFd) -> io::Result<Vec<u32>> {
    const PAGE_BYTES: usize = 4096;
    let capacity = fcntl_getpipe_size(source)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&writer, capacity)?;
    tee(source, &writer, capacity, SpliceFlags::NONBLOCK)?;
    drop(writer);
    let (first_reader, first_writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&first_writer, PAGE_BYTES)?;
    let (mut lengths, mut piece) = (Vec::new(), [0; PAGE_BYTES]);
    while rustix::io::ioctl_fionread(&reader)? > 0 {
        let length = tee(&reader, &first_writer, PAGE_BYTES, SpliceFlags::NONBLOCK)?;
        for pipe in [&reader, &first_reader] {
            File::from(pipe.try_clone()?).read_exact(&mut piece[..length])?;
        }
        lengths.push(length as u32);
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use crate::capture::state::tree_root::TreeRoot;

    #[test]
    fn a_pipe_is_copied_and_keeps_its_content() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one").unwrap();
        writer.write_all(&[7; 9000]).unwrap();
        let state = read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        assert_eq!((state.capacity, state.content.len(), &state.content[..4]), (65536, 9003, &b"one\x07"[..]));
        let mut again = [0; 3];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"one");
    }

    #[test]
    fn the_buffers_of_a_full_pipe_are_read() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let state_of = |reader: &std::io::PipeReader| read_pipe(&reader.try_clone().unwrap().into()).unwrap();
        (0..15).for_each(|byte| writer.write_all(&[byte; 3000]).unwrap());
        assert!(state_of(&reader).buffers.is_empty(), "one buffer is free");
        writer.write_all(&[15; 3000]).unwrap();
        assert_eq!(writer.write(&[0; 3000]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(state_of(&reader).buffers, [3000; 16]);
        let mut content = [0; 48_000];
        reader.read_exact(&mut content).unwrap();
        assert!(content.iter().zip(0..).all(|(byte, at)| usize::from(*byte) == at / 3000));
        writer.write_all(&[9; 65_536]).unwrap();
        assert!(state_of(&reader).buffers.is_empty(), "the buffers are full");
    }

    #[test]
    fn the_writers_of_a_named_pipe_are_found() {
        use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let open_for = |mode: OFlags| open(&path, mode | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let reader = open_for(OFlags::RDONLY);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::NeverOpened);
        let writer = open_for(OFlags::WRONLY);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Open);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Open);
        assert!(has_readers(&writer).unwrap());
        drop(writer);
        assert_eq!(PipeWriters::read(&reader).unwrap(), PipeWriters::Closed);
        assert_eq!(read_pipe(&reader).unwrap().content, b"x");
        let writer = open_for(OFlags::WRONLY);
        drop(reader);
        assert!(!has_readers(&writer).unwrap());
    }

    #[test]
    fn an_empty_pipe_is_empty() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let state = read_pipe(&reader.into()).unwrap();
        assert_eq!(state.content, b"");
    }

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
