//! What fork(2) shares of open files, read inside the pause: positions, counters, pipe contents, what epolls watch.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::owner::Owner;
use farfork_sys::pidfd;
use farfork_sys::process::{FdDirectory, FdInfo};
use farfork_sys::socket_diagnosis::Diagnosis;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};
use rustix::time::timerfd_gettime;

use super::flights::Flights;
use super::sockets::{self, SocketContents};
use super::terminal::{self, HeldEnd, TerminalEnd};
use super::{Kind, O_ACCMODE, O_WRONLY, OpenFd};
use crate::capture::error::CaptureError;

/// A pipe as it was inside the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) capacity: u32,
    pub(crate) content: Vec<u8>,
    /// How the content is divided; one piece, unless its writer is in packet mode (O_DIRECT).
    pub(crate) packets: Vec<u32>,
}

/// The shared state of open files at one moment.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// By descriptor number.
    pub(super) infos: BTreeMap<u32, FdInfo>,
    /// By inode.
    pub(super) pipes: BTreeMap<u64, PipeState>,
    /// Bytes of events in the queue of each inotify, by descriptor number.
    pub(super) unread: BTreeMap<u32, u64>,
    /// Who is told of readiness, by descriptor number.
    pub(super) owners: BTreeMap<u32, Owner>,
    /// By inode.
    pub(super) sockets: BTreeMap<u64, SocketContents>,
    /// Ends of pseudo-terminals, by descriptor number.
    pub(super) terminals: BTreeMap<u32, TerminalEnd>,
    /// Files on their way in its sockets.
    pub(super) flights: Flights,
    /// The process, opened when copies of its descriptors are wanted.
    process: Option<OwnedFd>,
}

impl PipeState {
    /// A pipe as pipe(2) makes it: 16 pages.
    pub(crate) const EMPTY: Self = Self { capacity: 65_536, content: Vec::new(), packets: Vec::new() };
}

impl Contents {
    /// Reads what is shared. The process stands still; `surveyed` says what its descriptors were shortly before, so
    /// that only new ones must be looked at in full.
    pub(crate) fn read(pid: i32, surveyed: &[OpenFd], diagnosis: Option<&Diagnosis>) -> Result<Self, CaptureError> {
        let mut contents = Self::default();
        let unread = || CaptureError::read(pid, "the open files");
        let table = FdDirectory::infos(pid).map_err(unread())?;
        let numbers = table.numbers().map_err(unread())?;
        for number in numbers {
            let known = surveyed.binary_search_by_key(&number, |fd| fd.number).ok().map(|index| &surveyed[index]);
            contents.read_one(pid, (&table, number), known, diagnosis).map_err(|error| {
                // What the kernel says of a number that was used again since the survey depends on what it leads to now.
                let is_another = known.is_some_and(|known| !known.is_there_still(pid));
                super::unread(pid, number, if is_another { io::ErrorKind::NotFound.into() } else { error })
            })?;
        }
        contents.follow(diagnosis).map_err(CaptureError::read(pid, "what is on its way in its sockets"))?;
        Ok(contents)
    }

    pub(super) fn read_one(
        &mut self,
        pid: i32,
        (table, number): (&FdDirectory, u32),
        known: Option<&OpenFd>,
        diagnosis: Option<&Diagnosis>,
    ) -> io::Result<()> {
        if known.is_some_and(|fd| !fd.has_contents()) {
            return Ok(());
        }
        let known = match known {
            Some(fd) => fd.kind.clone(),
            None => OpenFd::read(&FdDirectory::links(pid)?, number)?.kind,
        };
        if known == Kind::TimerFd {
            // What went off since it was last read is counted only when somebody asks.
            timerfd_gettime(self.copy_of(pid, number)?)?;
        }
        let info = table.info(number)?;
        let is_pipe = match known {
            // A number that was reused is found out later: the template has a pipe of which nothing was read.
            Kind::Pipe | Kind::NamedPipe => OpenFd::read(&FdDirectory::links(pid)?, number)?.inode == info.inode,
            _ => false,
        };
        if is_pipe && info.flags & O_ACCMODE != O_WRONLY && !self.pipes.contains_key(&info.inode) {
            let copy = self.copy_of(pid, number)?;
            self.pipes.insert(info.inode, read_pipe(&copy)?);
        }
        if known == Kind::Socket && !self.sockets.contains_key(&info.inode) {
            let copy = self.copy_of(pid, number)?;
            self.sockets.insert(info.inode, sockets::read(&copy, info.inode, diagnosis)?);
        }
        if known == Kind::Inotify {
            let unread = rustix::io::ioctl_fionread(self.copy_of(pid, number)?)?;
            self.unread.insert(number, unread);
        }
        if matches!(known, Kind::Terminal | Kind::TerminalMaster) {
            let copy = self.copy_of(pid, number)?;
            self.terminals.insert(number, terminal::read(&copy, &known)?);
        }
        if info.flags & O_ASYNC != 0 {
            let owner = farfork_sys::owner::of_file(self.copy_of(pid, number)?.as_fd())?;
            self.owners.insert(number, owner);
        }
        self.infos.insert(number, info);
        Ok(())
    }

    /// The ends of pseudo-terminals that a process has.
    pub(crate) fn terminals(&self, pid: i32) -> impl Iterator<Item = HeldEnd<'_>> + Clone {
        self.terminals.iter().map(move |(number, end)| (pid, *number, end))
    }

    /// Takes on what another process of the tree has, by inode: pipes and sockets are between them.
    pub(crate) fn absorb(&mut self, other: &mut Self) {
        self.pipes.append(&mut other.pipes);
        self.sockets.append(&mut other.sockets);
        self.flights.append(&mut other.flights);
    }

    /// A copy of a descriptor of the process.
    fn copy_of(&mut self, pid: i32, number: u32) -> io::Result<OwnedFd> {
        if self.process.is_none() {
            self.process = Some(pidfd::open(pid)?);
        }
        let process = self.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
        pidfd::get_fd(process, number)
    }
}

/// A file tells of its readiness by a signal.
pub(super) const O_ASYNC: u32 = 0o20_000;

/// Copies what is in a pipe and leaves it there: tee(2) into a pipe of ours that is as large. The source is the process's own
/// open file: one of ours would tell those who watch the pipe (O_ASYNC) when it is closed.
fn read_pipe(source: &OwnedFd) -> io::Result<PipeState> {
    let capacity = fcntl_getpipe_size(source)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if fcntl_getpipe_size(&writer)? < capacity {
        fcntl_setpipe_size(&writer, capacity)?;
    }
    let (mut content, mut packets) = (Vec::new(), Vec::new());
    match tee(source, &writer, capacity, SpliceFlags::NONBLOCK) {
        Ok(_) => {
            drop(writer);
            let (mut reader, mut piece) = (File::from(reader), vec![0; capacity]);
            while let length @ 1.. = reader.read(&mut piece)? {
                content.extend_from_slice(&piece[..length]);
                packets.push(length as u32);
            }
        }
        // Empty.
        Err(rustix::io::Errno::AGAIN) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(PipeState { capacity: capacity as u32, content, packets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use crate::capture::root::Root;

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
    fn an_empty_pipe_is_empty() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let state = read_pipe(&reader.into()).unwrap();
        assert_eq!(state.content, b"");
    }

    #[test]
    fn a_number_that_leads_elsewhere_since_the_survey_is_looked_at_again() {
        let (_held, input) = std::io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let mut sleeper =
            Command::new("sleep").arg("60").stdin(Stdio::from(input)).stdout(Stdio::null()).spawn().unwrap();
        let pid = sleeper.id().cast_signed();
        let links = FdDirectory::links(pid).unwrap();
        let now = OpenFd::read(&links, 0).unwrap();
        let outcome_if_it_was = |kind: Kind| {
            let link = format!("{kind:?}").into_bytes();
            let before = [OpenFd { link, kind, inode: now.inode + 1, ..now.clone() }];
            let refusals = super::super::refusals((pid, Root::of(pid).unwrap()), &before);
            (Contents::read(pid, &before, None).map(|_| ()), refusals)
        };
        let read_as_a_pipe = Contents::read(pid, std::slice::from_ref(&now), None);
        let outcomes = [Kind::Socket, Kind::TimerFd, Kind::TerminalMaster].map(outcome_if_it_was);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        read_as_a_pipe.unwrap();
        for (read, refusals) in outcomes {
            assert!(matches!(read, Err(CaptureError::Unstable { .. })), "{read:?}");
            assert!(refusals.as_ref().is_ok_and(Vec::is_empty), "{refusals:?}");
        }
    }
}
