//! The queue of a container's stub: a socket that is connected to itself, with a message for each userfaultfd of the child's
//! processes in it. The stub holds it and reads nothing; it is what is left where keeper, pager and holder die together.
//!
//! ```text
//!  message    space u32                 with the userfaultfd
//!             0xffffffff, nonce u32     none: where a rotation began
//! ```
//!
//! The restorer sends those of the child's own processes, the pager those of what they fork, as soon as it has read of a fork.
//! Of processes that have ended the userfaultfds are taken out by a *rotation*: each message that is to stay is sent again
//! before it is taken from the front, so that at no moment it is not there.

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use farfork_sys::fdpass;

use crate::pager::journal::SpaceNumber;

/// Messages after which those of ended processes are taken out.
const ROTATE_AFTER: usize = 128;

/// Room that the queue has at first, and at most, in bytes: a message takes some 800 as the kernel counts.
const ROOM_BYTES: usize = 1 << 20;
const ROOM_BYTES_MAX: usize = 64 << 20;

/// Begins the message where a rotation began.
const MARK: SpaceNumber = SpaceNumber::MAX;

/// A queue, from the pager's side. Like a userfaultfd, never closed by a drop.
#[derive(Debug)]
pub(in crate::pager) struct StubQueue {
    socket: ManuallyDrop<OwnedFd>,
    /// Messages sent since the last rotation.
    sent: usize,
    room_bytes: usize,
    /// Rotations begun.
    rotations: u32,
}

impl StubQueue {
    /// The queue behind this socket.
    pub(in crate::pager) fn new(socket: OwnedFd) -> Self {
        Self { socket: ManuallyDrop::new(socket), sent: 0, room_bytes: 0, rotations: 0 }
    }

    /// Its descriptor's number.
    pub(in crate::pager) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Closes it; the stub holds it on.
    pub(in crate::pager) fn close(self) {
        drop(ManuallyDrop::into_inner(self.socket));
    }

    /// Puts the userfaultfd of a process there that was just forked, by the number that the kernel gave.
    ///
    /// # Errors
    /// As sendmsg(2), where there is no room to be had.
    pub(in crate::pager) fn add_forked(&mut self, space: SpaceNumber, number: RawFd) -> io::Result<()> {
        self.sent += 1;
        self.with_room(|socket| fdpass::send_number(socket, &space.to_ne_bytes(), number))
    }

    /// Puts a userfaultfd there.
    ///
    /// # Errors
    /// As [`Self::add_forked`].
    pub(in crate::pager) fn add(&mut self, space: SpaceNumber, uffd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_forked(space, uffd.as_raw_fd())
    }

    /// Whether enough was put there for a rotation to be worth it.
    pub(in crate::pager) fn is_due(&self) -> bool {
        self.sent >= ROTATE_AFTER
    }

    /// Takes out what belongs to no space that is wanted.
    ///
    /// # Errors
    /// As recvmsg(2), sendmsg(2).
    pub(in crate::pager) fn rotate(&mut self, mut is_wanted: impl FnMut(SpaceNumber) -> bool) -> io::Result<()> {
        self.sent = 0;
        self.pass_all(|space, _| is_wanted(space))
    }

    /// A copy of each userfaultfd that is there.
    ///
    /// # Errors
    /// As [`Self::rotate`].
    pub(in crate::pager) fn copies(&mut self) -> io::Result<BTreeMap<SpaceNumber, OwnedFd>> {
        let mut copies = BTreeMap::new();
        self.pass_all(|space, uffd| {
            copies.insert(space, uffd);
            true
        })?;
        Ok(copies)
    }

    /// Has every message go round once, but those that `keep` says no of.
    fn pass_all(&mut self, mut keep: impl FnMut(SpaceNumber, OwnedFd) -> bool) -> io::Result<()> {
        self.rotations += 1;
        let own = [MARK.to_ne_bytes(), self.rotations.to_ne_bytes()].concat();
        self.with_room(|socket| fdpass::send_at_once(socket, &own, &[]))?;
        loop {
            let mut bytes = [0; 8];
            let (length, mut fds) = fdpass::peek(self.socket.as_fd(), &mut bytes, 1)?;
            let space = SpaceNumber::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let is_own_mark = bytes[..length] == own[..];
            if let Some(uffd) = fds.pop().filter(|_| length == size_of::<SpaceNumber>()) {
                let again = uffd.try_clone()?;
                if keep(space, uffd) {
                    self.with_room(|socket| fdpass::send_at_once(socket, &bytes[..length], &[again.as_fd()]))?;
                }
            }
            // A mark of another rotation is one of a pager that was killed meanwhile.
            fdpass::receive(self.socket.as_fd(), &mut bytes, 1)?;
            if is_own_mark {
                return Ok(());
            }
        }
    }

    /// Sends, in a queue that is full after having made it longer.
    fn with_room(&mut self, send: impl Fn(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        loop {
            match send(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.room_bytes < ROOM_BYTES_MAX => {
                    self.room_bytes = (2 * self.room_bytes).max(ROOM_BYTES);
                    fdpass::make_room(self.socket.as_fd(), self.room_bytes)?;
                }
                sent => return sent,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inode of an open file tells which it is.
    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn what_is_wanted_stays_and_the_rest_goes() {
        let socket = fdpass::self_connected().unwrap();
        let stub = socket.try_clone().unwrap();
        let mut queue = StubQueue::new(socket);
        let files: Vec<_> = (0..600).map(|_| tempfile::tempfile().unwrap()).collect();
        for (space, file) in files.iter().enumerate() {
            queue.add(space as SpaceNumber, file.as_fd()).unwrap();
        }
        assert!(queue.is_due());
        queue.rotate(|space| space % 3 == 0).unwrap();
        assert!(!queue.is_due());
        let all = queue.copies().unwrap();
        assert!(all.keys().copied().eq((0..600).step_by(3)), "{:?}", all.keys());
        assert!(all.iter().all(|(space, copy)| inode(copy) == inode(&files[*space as usize])));
        // The pager's end goes, and another's pager begins with the stub's.
        queue.close();
        let mut queue = StubQueue::new(stub);
        assert_eq!(queue.copies().unwrap().len(), 200);
        queue.rotate(|_| false).unwrap();
        assert!(queue.copies().unwrap().is_empty());
        queue.close();
    }

    #[test]
    fn a_rotation_that_was_cut_short_is_passed_over() {
        let mut queue = StubQueue::new(fdpass::self_connected().unwrap());
        let file = tempfile::tempfile().unwrap();
        queue.add(0, file.as_fd()).unwrap();
        fdpass::send_at_once(queue.socket.as_fd(), &[0xff, 0xff, 0xff, 0xff, 9, 9, 9, 9], &[]).unwrap();
        // Sent again, and not yet taken from the front.
        queue.add(0, file.as_fd()).unwrap();
        assert!(queue.copies().unwrap().keys().eq([&0]));
        queue.close();
    }
}
