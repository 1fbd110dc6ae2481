//! The state that the threads of a server share: the session registry, and a message queue for each thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_fabric::transport::Stream;
use farfork_wire::rpc::Status;
use rustix::event::{EventfdFlags, eventfd};

use super::reply::{ReplySink, RequestKey};
use super::session_registry::{SessionLocation, SessionRegistry};

/// Maximum number of bytes that are held for all connections of a server. Beyond it, requests are refused on
/// connections that hold more than `FAIR_HELD_BYTES`. Parked sessions have a separate limit.
const HELD_BYTES_MAX: usize = 1 << 30;

/// A message to a thread.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// A new connection, and the peer's address.
    NewConnection(Box<dyn Stream>, String),
    /// A session of this connection was resumed on another connection.
    CloseConnection(u64),
    /// A deferred reply for a session of this connection.
    DeferredReply { peer: u64, ticket: RequestKey, status: Status, payload: Vec<u8> },
}

/// The state that all threads share.
#[derive(Debug)]
pub(crate) struct SharedState {
    registry: Mutex<SessionRegistry>,
    worker_queues: Vec<WorkerQueue>,
    /// Bytes held for all connections, each as of its last turn.
    held_bytes: AtomicUsize,
    held_bytes_max: usize,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct WorkerQueue {
    wakeup_fd: OwnedFd,
    messages: Mutex<Vec<WorkerMessage>>,
}

impl SharedState {
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        Self::with_limit(workers, HELD_BYTES_MAX)
    }

    /// As [`SharedState::new`], with the given limit for the bytes held for all connections.
    pub(crate) fn with_limit(workers: usize, held_bytes_max: usize) -> io::Result<Self> {
        let new_queue = || -> io::Result<WorkerQueue> {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(WorkerQueue { wakeup_fd: wake, messages: Mutex::default() })
        };
        let queues = (0..workers).map(|_| new_queue()).collect::<io::Result<_>>()?;
        let stopped = AtomicBool::new(false);
        Ok(Self {
            registry: Mutex::default(),
            worker_queues: queues,
            held_bytes: AtomicUsize::new(0),
            held_bytes_max,
            stopped,
        })
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.worker_queues.len()
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, SessionRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the number of held bytes of a connection.
    pub(super) fn update_held_bytes(&self, counted_bytes: &mut usize, now_bytes: usize) {
        let before = std::mem::replace(counted_bytes, now_bytes);
        match now_bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => _ = self.held_bytes.fetch_add(more, Ordering::Relaxed),
            None => _ = self.held_bytes.fetch_sub(before - now_bytes, Ordering::Relaxed),
        }
    }

    /// Whether all connections together hold more than the limit.
    pub(super) fn is_over_memory_limit(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) > self.held_bytes_max
    }

    /// Whether there are messages for a thread, for callers that do not wait for [`SharedState::wakeup_fd`].
    pub(crate) fn has_messages(&self, worker: usize) -> bool {
        !self.worker_queues[worker].messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the eventfd(2) that becomes readable when there is a message.
    pub(super) fn wakeup_fd(&self, worker: usize) -> &OwnedFd {
        &self.worker_queues[worker].wakeup_fd
    }

    pub(crate) fn send_message(&self, worker: usize, worker_message: WorkerMessage) {
        let queue = &self.worker_queues[worker];
        queue.messages.lock().unwrap_or_else(PoisonError::into_inner).push(worker_message);
        queue.signal_wakeup();
    }

    /// Removes the messages for a thread and returns them.
    pub(super) fn take_messages(&self, worker: usize) -> Vec<WorkerMessage> {
        let queue = &self.worker_queues[worker];
        let _ = rustix::io::read(&queue.wakeup_fd, &mut [0; 8]);
        std::mem::take(&mut *queue.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.worker_queues.iter().for_each(WorkerQueue::signal_wakeup);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

impl WorkerQueue {
    fn signal_wakeup(&self) {
        // The write fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wakeup_fd, &1u64.to_ne_bytes());
    }
}

impl ReplySink for SharedState {
    fn deliver(&self, ticket: RequestKey, status: Status, payload: Vec<u8>) {
        let mut registry = self.registry();
        match registry.find(&ticket.session) {
            Some(SessionLocation::Parked(session)) => session.complete_deferred(ticket, status, payload, None),
            Some(SessionLocation::Attached(location)) => {
                self.send_message(
                    location.worker,
                    WorkerMessage::DeferredReply { peer: location.connection, ticket, status, payload },
                );
            }
            // The session was closed: drop the reply.
            None => {}
        }
    }
}
