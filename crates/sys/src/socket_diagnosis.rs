//! What the kernel tells of Unix sockets by their inodes (sock_diag(7)): who is at the other end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use crate::{namespace, pidfd};

/// A connection to the kernel in one network namespace.
#[derive(Debug)]
pub struct Diagnosis(OwnedFd);

/// What the kernel tells of a Unix socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// TCP_*: 1 connected, 7 not, 10 listening.
    pub state: u8,
    /// Inode of the other end; 0 where that was closed, `None` where there never was one.
    pub peer: Option<u32>,
    /// Bytes that wait; of a listening socket, connections.
    pub waiting: u32,
    /// Of a listening socket, how many connections may wait.
    pub backlog: u32,
    /// Whether it was shut down for reading (1) and for writing (2).
    pub shut_down: u8,
}

const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 16;

impl Diagnosis {
    /// In the network namespace of a process.
    ///
    /// # Errors
    /// As setns(2) and socket(2).
    pub fn open(pid: i32) -> io::Result<Self> {
        // A socket belongs to the namespace that it was made in: a thread of its own goes there.
        let open = move || -> io::Result<OwnedFd> {
            namespace::enter_network_of(pidfd::open(pid)?.as_fd())?;
            let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
            Ok(socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?)
        };
        thread::spawn(open).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map(Self)
    }

    /// Asks about one socket.
    ///
    /// # Errors
    /// ENOENT where there is none of that inode in the namespace.
    pub fn unix_socket(&self, inode: u32) -> io::Result<UnixSocket> {
        const SOCK_DIAG_BY_FAMILY: u16 = 20;
        const REQUEST: u16 = 1;
        const SHOW_PEER_AND_QUEUE: u32 = 0x4 | 0x10;
        const ANY: u32 = u32::MAX;
        let mut request = Vec::with_capacity(40);
        request.extend(40_u32.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(REQUEST.to_ne_bytes());
        request.extend([0; 8]);
        request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
        [ANY, inode, SHOW_PEER_AND_QUEUE, ANY, ANY].iter().for_each(|word| request.extend(word.to_ne_bytes()));
        send(&self.0, &request, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        parse(&answer[..length])
    }
}

/// A header (length, type, flags, sequence, port), then a message and its attributes, or an error.
fn parse(answer: &[u8]) -> io::Result<UnixSocket> {
    const ERROR: u16 = 2;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "an answer of sock_diag is not of its form");
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    if half(4).ok_or_else(malformed)? == ERROR {
        let errno = word(HEADER_BYTES).ok_or_else(malformed)?.cast_signed();
        return Err(io::Error::from_raw_os_error(-errno));
    }
    let state = *answer.get(HEADER_BYTES + 2).ok_or_else(malformed)?;
    let mut told = UnixSocket { state, ..UnixSocket::default() };
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    while let (Some(length @ 4..), Some(kind)) = (half(at), half(at + 2)) {
        match kind {
            2 => told.peer = word(at + 4),
            4 => {
                (told.waiting, told.backlog) =
                    (word(at + 4).ok_or_else(malformed)?, word(at + 8).ok_or_else(malformed)?);
            }
            6 => told.shut_down = *answer.get(at + 4).ok_or_else(malformed)?,
            _ => {}
        }
        at += usize::from(length).next_multiple_of(4);
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    fn inode(socket: &UnixStream) -> u32 {
        std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(socket))).unwrap().ino() as u32
    }

    #[test]
    fn the_other_end_is_told() {
        use std::io::Write;
        let diagnosis = Diagnosis::open(std::process::id() as i32).unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"five!").unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let told = diagnosis.unix_socket(inode(&one)).unwrap();
        assert_eq!(told, UnixSocket { state: 1, peer: Some(inode(&other)), waiting: 5, backlog: 0, shut_down: 1 });
        drop(other);
        assert_eq!(diagnosis.unix_socket(inode(&one)).unwrap().peer, Some(0));
        assert!(diagnosis.unix_socket(1).is_err());
        assert!(parse(&[0; 3]).is_err());
    }
}
