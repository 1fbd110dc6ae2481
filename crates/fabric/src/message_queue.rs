//! The queue of messages that an owner has received, and that its user has not taken yet.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_wire::frame::reply::Refusal;
use rustix::event::{EventfdFlags, eventfd};

/// Maximum number of queued messages. If the queue is full, the sender gets an error, and may send the message again.
pub const QUEUE_MESSAGES_MAX: usize = 1024;

/// Maximum size of all queued messages, in bytes: 64 messages of the largest size.
pub const QUEUE_BYTES_MAX: usize = 4 << 20;

/// A message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The sender's name, as in the log.
    pub sender: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes from {})", self.bytes.len(), self.sender)
    }
}

/// A bounded queue of messages. Its descriptor is readable while the queue is not empty.
#[derive(Debug)]
pub struct MessageQueue {
    state: Mutex<MessageQueueState>,
    readable_fd: OwnedFd,
}

#[derive(Debug, Default)]
struct MessageQueueState {
    messages: VecDeque<Message>,
    bytes: usize,
}

impl MessageQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// The process cannot create another file descriptor.
    pub fn new() -> io::Result<Self> {
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), readable_fd: readable })
    }

    /// Removes and returns the oldest message.
    pub fn receive(&self) -> Option<Message> {
        let mut waiting = self.lock();
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.bytes.len();
        if waiting.messages.is_empty() {
            // Reset the eventfd(2). The read cannot block: the counter is 1 since the first message was added.
            let _ = rustix::io::read(&self.readable_fd, &mut [0; 8]);
        }
        Some(message)
    }

    /// Appends a message.
    ///
    /// # Errors
    /// [`Refusal::MessageQueueFull`].
    pub fn deliver(&self, from: &str, bytes: &[u8]) -> Result<(), Refusal> {
        let mut waiting = self.lock();
        if waiting.messages.len() >= QUEUE_MESSAGES_MAX || waiting.bytes + bytes.len() > QUEUE_BYTES_MAX {
            return Err(Refusal::MessageQueueFull);
        }
        if waiting.messages.is_empty() {
            // Make the eventfd(2) readable. The counter is 0, so the write cannot block.
            let _ = rustix::io::write(&self.readable_fd, &1u64.to_ne_bytes());
        }
        waiting.bytes += bytes.len();
        waiting.messages.push_back(Message { sender: from.to_owned(), bytes: bytes.to_vec() });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, MessageQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for MessageQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable_fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(inbox: &MessageQueue) -> bool {
        poll(&mut [PollFd::new(inbox, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_message_queue_is_ordered_and_bounded() {
        let inbox = MessageQueue::new().unwrap();
        for number in 0..QUEUE_MESSAGES_MAX {
            inbox.deliver("n1", &number.to_le_bytes()).unwrap();
        }
        assert_eq!(inbox.deliver("n1", b""), Err(Refusal::MessageQueueFull));
        for number in 0..QUEUE_MESSAGES_MAX {
            assert!(is_readable(&inbox));
            assert_eq!(inbox.receive().unwrap().bytes, number.to_le_bytes());
        }
        assert!(inbox.receive().is_none() && !is_readable(&inbox));
        for _ in 0..4 {
            inbox.deliver("n1", &vec![0; QUEUE_BYTES_MAX / 4]).unwrap();
        }
        assert_eq!(inbox.deliver("n1", b"x"), Err(Refusal::MessageQueueFull));
        inbox.receive().unwrap();
        inbox.deliver("n1", b"x").unwrap();
    }
}
