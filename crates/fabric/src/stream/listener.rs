//! A listening socket in an epoll(7) descriptor. It limits the number of connections that are accepted at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

/// Maximum number of connections that are accepted before existing connections get their turn.
const ACCEPTS_MAX: usize = 64;

/// Pause after accept(2) has failed, for example for lack of file descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket in an epoll(7) descriptor.
#[derive(Debug)]
pub(crate) struct EpollListener {
    socket: OwnedFd,
    token: u64,
    paused_until: Option<Instant>,
}

impl EpollListener {
    /// Adds the socket to `epoll`. Its events have `token` as data.
    pub(crate) fn new(epoll: &OwnedFd, token: u64, socket: OwnedFd) -> io::Result<Self> {
        epoll::add(epoll, &socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(Self { socket, token, paused_until: None })
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Accepts waiting connections, at most [`ACCEPTS_MAX`].
    pub(crate) fn accept(&mut self, epoll: &OwnedFd, now: Instant) -> Vec<OwnedFd> {
        let mut accepted = Vec::new();
        for _ in 0..ACCEPTS_MAX {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => accepted.push(socket),
                Err(Errno::AGAIN) => break,
                // The peer has disconnected, or a signal interrupted the call. Try the next connection.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "the fabric's server cannot accept connections for now");
                    let _ = epoll::delete(epoll, &self.socket);
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    break;
                }
            }
        }
        accepted
    }

    /// Resumes accepting if the pause is over.
    pub(crate) fn resume(&mut self, epoll: &OwnedFd, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            let data = epoll::EventData::new_u64(self.token);
            if epoll::add(epoll, &self.socket, data, epoll::EventFlags::IN).is_ok() {
                self.paused_until = None;
            }
        }
    }
}
