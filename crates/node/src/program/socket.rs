//! The socket for programs: SOCK_SEQPACKET, so that a message is received as a whole and may carry descriptors.
//! `checkpoint_listener` accepts connections at it.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use farfork_program::REQUEST_BYTES_MAX;
use farfork_sys::fd_passing;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

use crate::async_fd::{FdOwner, watch_read_write};

/// Length of the queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;

/// A connected program.
#[derive(Debug)]
pub(super) struct ProgramSocket(AsyncFd<FdOwner<OwnedFd>>);

/// Creates the listening socket, to which only its owner can connect. Replaces the socket of an earlier daemon.
///
/// # Errors
/// The error of socket(2), bind(2) or listen(2).
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The run directory has mode 0700, so no other user can connect before the mode is set.
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl ProgramSocket {
    /// Wraps the accepted connection of a program, which must be non-blocking. Must be called within the runtime.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub(super) fn new(program: OwnedFd) -> io::Result<Self> {
        Ok(Self(watch_read_write(program)?))
    }

    /// Returns the pid of the process that connected; `None` if it has no pid in this daemon's pid namespace.
    pub(super) fn peer_pid(&self) -> io::Result<Option<i32>> {
        fd_passing::peer_pid(self.fd())
    }

    /// Receives the next message; `None` at the end of the connection. A message longer than any request is an error.
    pub(super) async fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut message = vec![0; REQUEST_BYTES_MAX];
        loop {
            let mut ready = self.0.readable().await?;
            let received = ready.try_io(|_| fd_passing::receive(self.fd(), &mut message, 0));
            if let Ok(received) = received {
                let (length, _) = received?;
                message.truncate(length);
                return Ok((length > 0).then_some(message));
            }
        }
    }

    /// Sends a message with copies of descriptors (SCM_RIGHTS).
    pub(super) async fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.0.writable().await?;
            if let Ok(sent) = ready.try_io(|_| fd_passing::send(self.fd(), message, fds)) {
                return sent;
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_exchanged_until_the_program_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program.sock");
        let listener = listen(&path).unwrap();
        let program =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&program, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = ProgramSocket::new(rustix::net::accept_with(&listener, flags).unwrap()).unwrap();
        assert_eq!(socket.peer_pid().unwrap(), Some(std::process::id() as i32));
        fd_passing::send(program.as_fd(), b"asks", &[]).unwrap();
        assert_eq!(socket.receive().await.unwrap().as_deref(), Some(&b"asks"[..]));
        socket.send(b"answers", &[program.as_fd()]).await.unwrap();
        let mut answer = [0; 16];
        let (length, fds) = fd_passing::receive(program.as_fd(), &mut answer, 1).unwrap();
        assert_eq!((&answer[..length], fds.len()), (&b"answers"[..], 1));
        drop((program, fds));
        assert_eq!(socket.receive().await.unwrap(), None);
    }
}
