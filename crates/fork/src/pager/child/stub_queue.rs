//! The queue of a container's stub: a socket connected to itself, with one message for each userfaultfd of the child.
//! The stub holds the socket open and never reads it. The queue remains when keeper, pager and holder die together, and
//! `stub_recovery` restores the child from it. The restorer sends the userfaultfds of the child's own processes. The
//! pager adds those of forked processes, each as soon as it has read the fork event.

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use farfork_sys::fd_passing;

use crate::pager::journal::AddressSpaceId;

/// Number of sent messages after which the messages of ended processes are removed.
const PRUNE_AFTER_MESSAGES: usize = 128;

/// Sizes of the queue's send buffer in bytes: the first that is set when the queue is full, and the largest. The kernel
/// counts about 800 bytes for each message.
const QUEUE_BYTES: usize = 1 << 20;
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// The first word of the message that marks the start of a rotation.
const ROTATION_MARKER: AddressSpaceId = AddressSpaceId::MAX;

/// The pager's descriptor of the queue. Like a userfaultfd, it is never closed on drop.
///
/// ```text
///  message    space u32                 with the userfaultfd of that address space
///             0xffffffff, nonce u32     without a descriptor: the start of a rotation
/// ```
///
/// A *rotation* removes the userfaultfds of ended processes. A message to keep is first sent again and then removed
/// from the front, so that it is in the queue at all times.
#[derive(Debug)]
pub(in crate::pager) struct StubQueue {
    socket: ManuallyDrop<OwnedFd>,
    /// Number of messages sent since the last rotation.
    sent: usize,
    buffer_bytes: usize,
    /// Number of rotations started. The marker contains it as the nonce.
    rotations: u32,
}

impl StubQueue {
    /// Creates the pager's side of the queue from its socket.
    pub(in crate::pager) fn new(socket: OwnedFd) -> Self {
        Self { socket: ManuallyDrop::new(socket), sent: 0, buffer_bytes: 0, rotations: 0 }
    }

    /// The number of its descriptor.
    pub(in crate::pager) fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Closes this side of the queue. The stub still holds it.
    pub(in crate::pager) fn close(self) {
        drop(ManuallyDrop::into_inner(self.socket));
    }

    /// Adds the userfaultfd of a process that was just forked. `number` is its descriptor number, from the fork event.
    ///
    /// # Errors
    /// As sendmsg(2), if the queue is full and cannot grow.
    pub(in crate::pager) fn add_by_number(&mut self, space: AddressSpaceId, number: RawFd) -> io::Result<()> {
        self.sent += 1;
        self.send_growing_buffer(|socket| fd_passing::try_send_raw_fd(socket, &space.to_ne_bytes(), number))
    }

    /// Adds a userfaultfd.
    ///
    /// # Errors
    /// As [`Self::add_by_number`].
    pub(in crate::pager) fn add(&mut self, space: AddressSpaceId, uffd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_by_number(space, uffd.as_raw_fd())
    }

    /// Whether enough messages were sent since the last rotation to start another.
    pub(in crate::pager) fn needs_pruning(&self) -> bool {
        self.sent >= PRUNE_AFTER_MESSAGES
    }

    /// Removes the userfaultfds of the address spaces that `is_wanted` rejects.
    ///
    /// # Errors
    /// As recvmsg(2), sendmsg(2).
    pub(in crate::pager) fn prune(&mut self, mut is_wanted: impl FnMut(AddressSpaceId) -> bool) -> io::Result<()> {
        self.sent = 0;
        self.rotate_messages(|space, _| is_wanted(space))
    }

    /// Returns a copy of each userfaultfd in the queue.
    ///
    /// # Errors
    /// As [`Self::prune`].
    pub(in crate::pager) fn duplicate_userfaultfds(&mut self) -> io::Result<BTreeMap<AddressSpaceId, OwnedFd>> {
        let mut copies = BTreeMap::new();
        self.rotate_messages(|space, uffd| {
            copies.insert(space, uffd);
            true
        })?;
        Ok(copies)
    }

    /// Moves each message once from the front to the end. Removes the messages that `keep` rejects.
    fn rotate_messages(&mut self, mut keep: impl FnMut(AddressSpaceId, OwnedFd) -> bool) -> io::Result<()> {
        self.rotations += 1;
        let marker = [ROTATION_MARKER.to_ne_bytes(), self.rotations.to_ne_bytes()].concat();
        self.send_growing_buffer(|socket| fd_passing::try_send(socket, &marker, &[]))?;
        loop {
            let mut bytes = [0; 8];
            let (length, mut fds) = fd_passing::peek(self.socket.as_fd(), &mut bytes, 1)?;
            let space = AddressSpaceId::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let is_own_marker = bytes[..length] == marker[..];
            if let Some(uffd) = fds.pop().filter(|_| length == size_of::<AddressSpaceId>()) {
                let duplicate = uffd.try_clone()?;
                if keep(space, uffd) {
                    self.send_growing_buffer(|socket| {
                        fd_passing::try_send(socket, &bytes[..length], &[duplicate.as_fd()])
                    })?;
                }
            }
            // This also removes the marker of an earlier rotation, left by a pager that was killed during the rotation.
            fd_passing::receive(self.socket.as_fd(), &mut bytes, 1)?;
            if is_own_marker {
                return Ok(());
            }
        }
    }

    /// Sends a message. If the queue is full, enlarges its buffer and tries again.
    fn send_growing_buffer(&mut self, send: impl Fn(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        loop {
            match send(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.buffer_bytes < QUEUE_BYTES_MAX => {
                    self.buffer_bytes = (2 * self.buffer_bytes).max(QUEUE_BYTES);
                    fd_passing::set_send_buffer(self.socket.as_fd(), self.buffer_bytes)?;
                }
                sent => return sent,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifies an open file by its inode.
    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn pruning_keeps_only_wanted_userfaultfds() {
        let socket = fd_passing::self_connected_socket().unwrap();
        let stub = socket.try_clone().unwrap();
        let mut queue = StubQueue::new(socket);
        let files: Vec<_> = (0..600).map(|_| tempfile::tempfile().unwrap()).collect();
        for (space, file) in files.iter().enumerate() {
            queue.add(space as AddressSpaceId, file.as_fd()).unwrap();
        }
        assert!(queue.needs_pruning());
        queue.prune(|space| space % 3 == 0).unwrap();
        assert!(!queue.needs_pruning());
        let all = queue.duplicate_userfaultfds().unwrap();
        assert!(all.keys().copied().eq((0..600).step_by(3)), "{:?}", all.keys());
        assert!(all.iter().all(|(space, copy)| inode(copy) == inode(&files[*space as usize])));
        // The pager closes its side. The next pager starts with the stub's copy.
        queue.close();
        let mut queue = StubQueue::new(stub);
        assert_eq!(queue.duplicate_userfaultfds().unwrap().len(), 200);
        queue.prune(|_| false).unwrap();
        assert!(queue.duplicate_userfaultfds().unwrap().is_empty());
        queue.close();
    }

    #[test]
    fn an_interrupted_rotation_is_ignored() {
        let mut queue = StubQueue::new(fd_passing::self_connected_socket().unwrap());
        let file = tempfile::tempfile().unwrap();
        queue.add(0, file.as_fd()).unwrap();
        fd_passing::try_send(queue.socket.as_fd(), &[0xff, 0xff, 0xff, 0xff, 9, 9, 9, 9], &[]).unwrap();
        // As after a kill during a rotation: the first message was sent again, and not yet removed from the front.
        queue.add(0, file.as_fd()).unwrap();
        assert!(queue.duplicate_userfaultfds().unwrap().keys().eq([&0]));
        queue.close();
    }
}
