//! Messages over a Unix stream socket: length (u32, little-endian), then postcard. Both ends run the same version of the
//! program.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use farfork_sys::pidfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::store::ignore_missing;
use crate::log::LOG_BYTES_MAX;

/// Largest message, in bytes: enough for a change set of the largest log, as after a restart. A change set may have half more
/// bytes than its records.
const MESSAGE_BYTES_MAX: u32 = 3 << 30;
const _: () = assert!(MESSAGE_BYTES_MAX as u64 >= LOG_BYTES_MAX / 2 * 3);

/// Memory that is reserved for a message before its bytes arrive, in bytes.
const MESSAGE_CAPACITY_MAX: u32 = 1 << 20;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct MessageChannel {
    stream: UnixStream,
}

impl MessageChannel {
    /// Connects to a role's socket.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(path)? })
    }

    /// Accepts a connection.
    pub(super) fn accept(listener: &UnixListener) -> io::Result<Self> {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(false)?;
        Ok(Self { stream })
    }

    /// A second handle for another thread.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()? })
    }

    /// Returns the id of the process at the other end. For a connection that this process has made, it is the process that
    /// called listen(2).
    pub(super) fn peer_process_id(&self) -> io::Result<i32> {
        Ok(socket_peercred(self.stream.as_fd())?.pid.as_raw_nonzero().get())
    }

    /// Whether the other end has closed the connection.
    pub(super) fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::HUP)
    }

    /// Sets how long `receive` waits for the next bytes; none for no limit.
    pub(super) fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    /// Sets how long `send` waits while the receiver reads nothing; none for no limit.
    pub(super) fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(timeout)
    }

    /// Shuts down the connection for all its handles.
    pub(super) fn shut_down(&self) {
        // An error means that the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends one message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        write_message(&mut self.stream, message)
    }

    /// Receives one message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        read_message(&mut self.stream)
    }
}

/// Writes one message in a single call.
pub(super) fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&bytes)
}

/// Reads one message.
pub(super) fn read_message<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Memory grows with the bytes that arrive: a length alone reserves little.
    let mut bytes = Vec::with_capacity(length.min(MESSAGE_CAPACITY_MAX) as usize);
    if stream.take(length.into()).read_to_end(&mut bytes)? < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Kills a process that does not answer, and waits for its end. `has_ended` returns whether the process has ended by itself,
/// because its lock is free. The pidfd is opened before `has_ended` is called, so the signal cannot reach another process
/// that gets the same id.
pub(super) fn kill_silent_process(
    pid: i32,
    limit: Duration,
    has_ended: impl FnOnce() -> io::Result<bool>,
) -> io::Result<()> {
    let pidfd = pidfd::open(pid)?;
    if !has_ended()? {
        tracing::warn!(pid, "a process does not answer and is killed");
        pidfd::send_signal(&pidfd, Signal::KILL.as_raw())?;
        pidfd::wait_exit(&pidfd, limit)?;
    }
    Ok(())
}

/// Listens on a role's socket. The caller holds the lock of the role, so a socket that exists has no listener.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    ignore_missing(std::fs::remove_file(path))?;
    UnixListener::bind(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_received_as_sent_and_its_length_is_limited() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (MessageChannel { stream: one }, MessageChannel { stream: other });
        one.send(&(7_u32, "text".to_owned())).unwrap();
        assert_eq!(other.receive::<(u32, String)>().unwrap(), (7, "text".to_owned()));
        assert!(!other.is_hung_up());
        one.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(other.receive::<u32>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(one);
        assert!(other.is_hung_up());
    }
}
