//! A worker's record of a server connection, with the events that the worker's epoll waits for.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::event_source::Interest;
use super::server_connection::ServerConnection;
use crate::LinkError;

/// A connection, and the events that the epoll waits for.
pub(super) struct WatchedConnection {
    pub(super) connection: ServerConnection,
    pub(super) interest: Interest,
}

impl WatchedConnection {
    /// Waits for the events that let the connection proceed.
    pub(super) fn update_interest(&mut self, epoll: &OwnedFd, token: u64) -> Result<(), LinkError> {
        let interest = self.connection.interest();
        if interest != self.interest
            && let Some(socket) = self.connection.stream().socket()
        {
            modify_registration(epoll, socket, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn modify_registration(
    epoll: &OwnedFd,
    socket: BorrowedFd<'_>,
    token: u64,
    interest: Interest,
) -> Result<(), LinkError> {
    epoll::modify(epoll, socket, epoll::EventData::new_u64(token), interest.to_epoll_flags())
        .map_err(|errno| LinkError::Broken(errno.into()))
}
