//! A worker's record of a server connection, with the events that are registered in the worker's epoll(7).

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::event_source::Interest;
use super::server_connection::ServerConnection;
use crate::LinkError;

/// A connection, and the events that are registered for it.
pub(super) struct WatchedConnection {
    pub(super) connection: ServerConnection,
    pub(super) interest: Interest,
}

impl WatchedConnection {
    /// Registers the events for which the connection waits now.
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
