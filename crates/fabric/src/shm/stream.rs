//! A Unix socket as a stream that passes file descriptors, from the owner to the requester only.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::transport;

/// Maximum number of file descriptors that one receive accepts. An owner sends at most one per message.
const FDS_MAX: usize = 2;

/// A connected, nonblocking Unix socket.
#[derive(Debug)]
pub(super) struct ShmStream {
    socket: OwnedFd,
    /// Received descriptors; `None` if the peer must not send any.
    received_fds: Option<VecDeque<OwnedFd>>,
}

impl ShmStream {
    /// Creates the requester's end.
    pub(super) fn for_requester(socket: OwnedFd) -> Self {
        Self { socket, received_fds: Some(VecDeque::new()) }
    }

    /// Creates the owner's end. A received descriptor is a protocol violation.
    pub(super) fn for_owner(socket: OwnedFd) -> Self {
        Self { socket, received_fds: None }
    }

    fn send_message(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> io::Result<Option<usize>> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match rustix::net::sendmsg(&self.socket, slices, ancillary, flags) {
                Ok(sent) => return Ok(Some(sent)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl transport::Stream for ShmStream {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let room = if self.received_fds.is_some() { &mut space[..] } else { &mut [] };
        let mut ancillary = RecvAncillaryBuffer::new(room);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = loop {
            match rustix::net::recvmsg(&self.socket, spaces, &mut ancillary, flags) {
                Ok(message) => break message,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer passed unexpected file descriptors"));
        }
        for message in ancillary.drain() {
            if let (RecvAncillaryMessage::ScmRights(passed), Some(descriptors)) = (message, &mut self.received_fds) {
                descriptors.extend(passed);
            }
        }
        Ok(Some(message.bytes))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.send_message(slices, &mut SendAncillaryBuffer::default())
    }

    fn may_have_buffered(&self) -> bool {
        false
    }

    fn send_with_fd(&mut self, slices: &[IoSlice<'_>], descriptor: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [descriptor];
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        assert!(fits, "there is space for one descriptor");
        self.send_message(slices, &mut ancillary)
    }

    fn take_fd(&mut self) -> Option<OwnedFd> {
        self.received_fds.as_mut()?.pop_front()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
