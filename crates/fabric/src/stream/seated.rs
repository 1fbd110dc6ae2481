//! A connection as a worker has it: the peer, and what the worker's epoll waits for.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::peer::Peer;
use super::rim::Interest;
use crate::LinkError;

/// A connection, and what the epoll waits for.
pub(super) struct Seated {
    pub(super) peer: Peer,
    pub(super) interest: Interest,
}

impl Seated {
    /// Waits for what can help.
    pub(super) fn watch(&mut self, epoll: &OwnedFd, token: u64) -> Result<(), LinkError> {
        let interest = self.peer.interest();
        if interest != self.interest
            && let Some(socket) = self.peer.stream().socket()
        {
            modify(epoll, socket, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn modify(epoll: &OwnedFd, socket: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), LinkError> {
    epoll::modify(epoll, socket, epoll::EventData::new_u64(token), interest.flags())
        .map_err(|errno| LinkError::Broken(errno.into()))
}
