//! Notes for the user about pipes and connections with only one end in a running process tree: a child finds the other end
//! closed, or the connection reset.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use farfork_sys::pidfd;
use farfork_sys::process::FdInfo;
use farfork_sys::sock_diag::SockDiag;

use super::pipe_state::{PipeWriters, has_readers, is_reader_noticed};
use super::{FdKind, O_ACCMODE, O_RDONLY, O_RDWR, O_WRONLY, OpenFd, open_sockets, sockets};
use crate::capture::error::CaptureError;

/// Maximum number of ends that are named. A server may have thousands of connections.
const NAMED_ENDS_MAX: usize = 16;

/// An end of a pipe or of a connection, as a process of the tree has it.
#[derive(Debug)]
struct OwnEnd<'a> {
    pid: i32,
    fd: &'a OpenFd,
    peer: PeerEnd,
}

/// How the other end of an `OwnEnd` is found in the tree.
#[derive(Debug)]
enum PeerEnd {
    /// A pipe with this access mode: the opposite mode, or both in one descriptor. If no process has it open, a child finds
    /// the same. `lost_bytes` is the number of unread bytes that children do not get.
    Pipe { mode: u32, is_open: bool, lost_bytes: u64 },
    /// A TCP socket with exchanged addresses, or one that listens on the peer's address and has not accepted it yet.
    Tcp { own: SocketAddr, peer: SocketAddr, end: TcpPeerEnd },
    /// The Unix socket with this inode.
    Unix { inode: u64 },
}

/// The state of the other end of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TcpPeerEnd {
    /// It has shut the connection down, and all its data has arrived.
    ShutDown,
    /// It was closed with data that has not arrived.
    ClosedWithData,
    Open,
}

/// Returns the notes. The first process of the tree must be the first of `processes`.
///
/// # Errors
/// The open files of a process cannot be read.
pub(in crate::capture) fn outside_end_notes(processes: &[(i32, Vec<OpenFd>)]) -> Result<Vec<String>, CaptureError> {
    let mut tree = TreeEnds::default();
    for (pid, fds) in processes {
        tree.add_pipes(*pid, fds)?;
        tree.add_sockets(*pid, fds).map_err(CaptureError::reading(*pid, "the sockets"))?;
    }
    let first = processes.first().map(|(pid, _)| *pid);
    let outside: Vec<&OwnEnd<'_>> = tree.ends.iter().filter(|end| !tree.has_peer_of(end)).collect();
    let object = |pid: i32, number: u32| {
        let owner = if Some(pid) == first { String::new() } else { format!("pid {pid}, ") };
        format!("{owner}fd {number}")
    };
    let note =
        |end: &&OwnEnd<'_>| format!("{}: {}", object(end.pid, end.fd.number), end.describe(tree.has_files_in_flight));
    let more = outside.len().saturating_sub(NAMED_ENDS_MAX);
    let mut notes: Vec<String> = outside.iter().take(NAMED_ENDS_MAX).map(note).collect();
    let waiting = tree.waiting_data.iter().take(NAMED_ENDS_MAX);
    let waiting_note = |(pid, number, reason): &(i32, u32, Cow<'static, str>)| {
        format!("{}: a prepare is refused while {reason}", object(*pid, *number))
    };
    notes.extend(waiting.map(waiting_note));
    let lost_note = |end: &OwnEnd<'_>| match end.peer {
        PeerEnd::Pipe { lost_bytes: lost @ 1.., .. } => Some(format!(
            "{}: {lost} bytes wait in a pipe that no process has open for reading: children do not get them",
            object(end.pid, end.fd.number)
        )),
        _ => None,
    };
    notes.extend(tree.ends.iter().filter_map(lost_note).take(NAMED_ENDS_MAX));
    notes.extend((more > 0).then(|| format!("{more} more pipes and connections lead out of the process tree")));
    Ok(notes)
}

/// The ends of pipes and connections of a tree.
#[derive(Debug, Default)]
struct TreeEnds<'a> {
    ends: Vec<OwnEnd<'a>>,
    /// Inodes of all Unix sockets.
    unix_inodes: BTreeSet<u64>,
    /// Ports of the TCP sockets that listen.
    listening_ports: BTreeSet<u16>,
    /// Inodes of the sockets that were read: descriptors of several processes may share one.
    known_sockets: BTreeSet<u64>,
    /// Process and descriptor of each socket with data that a prepare refuses, and why.
    waiting_data: Vec<(i32, u32, Cow<'static, str>)>,
    /// Whether descriptors are in flight in a Unix socket. `check` cannot see to what they refer.
    has_files_in_flight: bool,
}

impl<'a> TreeEnds<'a> {
    fn add_pipes(&mut self, pid: i32, fds: &'a [OpenFd]) -> Result<(), CaptureError> {
        for fd in fds.iter().filter(|fd| matches!(fd.kind, FdKind::Pipe | FdKind::NamedPipe) && !fd.is_standard_stream)
        {
            let flags = match FdInfo::read(pid, fd.number) {
                Ok(info) => info.flags,
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(CaptureError::reading(pid, format!("fd {}", fd.number))(source)),
            };
            self.ends.push(OwnEnd { pid, fd, peer: PeerEnd::of_pipe(pid, fd, flags) });
        }
        Ok(())
    }

    fn add_sockets(&mut self, pid: i32, fds: &'a [OpenFd]) -> io::Result<()> {
        let mut diagnosis = None;
        for (fd, copy) in open_sockets(pid, fds)? {
            // A socket that cannot be read is refused by another check, or was closed.
            if self.known_sockets.insert(fd.inode)
                && let Ok(Some(peer)) = self.read_socket(pid, fd, copy.as_fd(), &mut diagnosis)
            {
                self.ends.push(OwnEnd { pid, fd, peer });
            }
        }
        Ok(())
    }

    /// Returns the peer of a connected socket. Records sockets that may be peers of others.
    fn read_socket(
        &mut self,
        pid: i32,
        fd: &OpenFd,
        copy: BorrowedFd<'_>,
        diagnosis: &mut Option<SockDiag>,
    ) -> io::Result<Option<PeerEnd>> {
        let diagnosis = match diagnosis {
            Some(diagnosis) => diagnosis,
            None => diagnosis.insert(SockDiag::open(pid)?),
        };
        if sockets::is_unix(copy)? {
            self.unix_inodes.insert(fd.inode);
            self.has_files_in_flight |= FdInfo::read(pid, fd.number)?.files_in_flight > 0;
            let unix = diagnosis.unix_socket(fd.inode as u32)?;
            let waiting = sockets::waiting_data_reason(copy, Some(&unix), diagnosis)?;
            self.waiting_data.extend(waiting.map(|reason| (pid, fd.number, reason)));
            let peer = unix.peer.filter(|inode| *inode != 0);
            return Ok(peer.map(|inode| PeerEnd::Unix { inode: inode.into() }));
        }
        let waiting = sockets::waiting_data_reason(copy, None, diagnosis)?;
        self.waiting_data.extend(waiting.map(|reason| (pid, fd.number, reason)));
        if let Some(port) = sockets::tcp_listening_port(copy)? {
            self.listening_ports.insert(port);
        }
        let Some((own, peer)) = sockets::tcp_addresses(copy)? else { return Ok(None) };
        let end = match sockets::is_tcp_ended_by_peer(copy)? {
            true => TcpPeerEnd::ShutDown,
            false if peer.ip().is_loopback() && diagnosis.is_closed(peer, own)? => TcpPeerEnd::ClosedWithData,
            false => TcpPeerEnd::Open,
        };
        Ok(Some(PeerEnd::Tcp { own, peer, end }))
    }

    fn has_peer_of(&self, end: &OwnEnd<'_>) -> bool {
        let pipe_modes =
            || self.ends.iter().filter(|other| other.fd.inode == end.fd.inode).filter_map(OwnEnd::pipe_mode);
        match end.peer {
            PeerEnd::Pipe { mode, is_open, .. } if mode == O_RDWR || !is_open => true,
            PeerEnd::Pipe { .. } => {
                let modes: BTreeSet<u32> = pipe_modes().collect();
                modes.contains(&O_RDWR) || (modes.contains(&O_RDONLY) && modes.contains(&O_WRONLY))
            }
            PeerEnd::Unix { inode } => self.unix_inodes.contains(&inode),
            PeerEnd::Tcp { own, peer, .. } => {
                let is_peer = |other: &OwnEnd<'_>| matches!(other.peer, PeerEnd::Tcp { own: its, peer: of, .. } if (its, of) == (peer, own));
                self.listening_ports.contains(&peer.port()) || self.ends.iter().any(is_peer)
            }
        }
    }
}

impl OwnEnd<'_> {
    /// Says what a child finds, for a note. An end that is in no process of the tree may be in flight in a socket.
    fn describe(&self, has_files_in_flight: bool) -> String {
        let place = match has_files_in_flight {
            true => "leads to no process that children get; unless its other end is in flight in a socket, in a child",
            false => "leads to a process that children do not get: in a child,",
        };
        match self.peer {
            PeerEnd::Tcp { peer, end: TcpPeerEnd::ShutDown, .. } => {
                format!("{peer} has shut down its TCP connection: in a child, that end is closed")
            }
            PeerEnd::Tcp { peer, end: TcpPeerEnd::ClosedWithData, .. } => format!(
                "{peer} has closed its TCP connection with data that has not arrived: in a child, the connection is reset \
                 before that data; let the process read first"
            ),
            PeerEnd::Tcp { peer, .. } => format!("its TCP connection to {peer} {place} it is reset"),
            PeerEnd::Pipe { .. } | PeerEnd::Unix { .. } => {
                format!("{} {place} the other end is closed", String::from_utf8_lossy(&self.fd.link))
            }
        }
    }

    fn pipe_mode(&self) -> Option<u32> {
        if let PeerEnd::Pipe { mode, .. } = self.peer { Some(mode) } else { None }
    }
}

impl PeerEnd {
    /// Finds the other end of a pipe. It counts as open if it cannot be read. `flags` are the O_* flags of the descriptor.
    fn of_pipe(pid: i32, fd: &OpenFd, flags: u32) -> Self {
        let mode = flags & O_ACCMODE;
        let read_peer = |copy: OwnedFd| {
            let is_open = match mode {
                O_RDONLY => PipeWriters::read(&copy)? == PipeWriters::Open,
                O_WRONLY => has_readers(&copy)?,
                _ => true,
            };
            let is_lost = mode == O_WRONLY && !is_open && is_reader_noticed(&fd.kind, flags);
            let lost_bytes = if is_lost { rustix::io::ioctl_fionread(&copy)? } else { 0 };
            Ok(Self::Pipe { mode, is_open, lost_bytes })
        };
        let copy = pidfd::open(pid).and_then(|process| fd.duplicate(&process));
        copy.and_then(read_peer).unwrap_or(Self::Pipe { mode, is_open: true, lost_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::{DaemonSockets, list_open_fds};
    use super::outside_end_notes;

    #[test]
    fn bytes_that_nobody_can_read_are_named() {
        use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let open_for = |mode: OFlags| open(&path, mode | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let reader = open_for(OFlags::RDONLY);
        let writer = open_for(OFlags::WRONLY);
        rustix::io::write(&writer, b"left").unwrap();
        drop(reader);
        let pid = std::process::id().cast_signed();
        let wanted = format!("fd {}: 4 bytes wait in a pipe that no process has open for reading", writer.as_raw_fd());
        // A process that another test starts has a copy of each descriptor until its execve(2).
        let give_up = Instant::now() + Duration::from_secs(30);
        let notes =
            || outside_end_notes(&[(pid, list_open_fds(pid, &DaemonSockets::default(), None).unwrap())]).unwrap();
        while !notes().iter().any(|note| note.starts_with(&wanted)) {
            assert!(Instant::now() < give_up, "{:?}", notes());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn connections_with_both_ends_in_the_tree_get_no_note() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inside = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        drop(listener);
        let pid = std::process::id().cast_signed();
        let notes = || {
            let fds = list_open_fds(pid, &DaemonSockets::default(), None).unwrap();
            outside_end_notes(&[(pid, fds)]).unwrap()
        };
        let link = std::fs::read_link(format!("/proc/self/fd/{}", one.as_raw_fd())).unwrap();
        let port = inside.local_addr().unwrap().port().to_string();
        let names = |text: &str| notes().iter().any(|note| note.contains(text));
        // A process that another test starts has a copy of each descriptor until its execve(2).
        let becomes = |is_named: bool, text: &str| {
            let give_up = Instant::now() + Duration::from_secs(30);
            while names(text) != is_named && Instant::now() < give_up {
                thread::sleep(Duration::from_millis(10));
            }
            names(text) == is_named
        };
        let socket = link.to_str().unwrap();
        assert!(becomes(false, &port) && becomes(false, socket), "{:?}", notes());
        // A closed end counts as such; only an end in another process leads out.
        drop((accepted, other));
        assert!(becomes(false, socket), "{:?}", notes());
        // The kernel still has the other end of the connection, but no process of the tree does.
        let own = inside.peer_addr().unwrap();
        let closed = format!("{own} has shut down its TCP connection: in a child, that end is closed");
        assert!(becomes(true, &closed), "{:?}", notes());
    }
}
