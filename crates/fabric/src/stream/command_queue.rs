//! The queue through which other threads pass accepted connections and commands to a worker.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::transport::Stream;

/// The current command of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerCommand {
    /// Serve.
    Serve,
    /// Serve received requests and send queued replies, at most until this time. Then end.
    Drain(Instant),
    /// End at once.
    Stop,
}

/// A connection whose handshake is complete or has begun.
#[derive(Debug)]
pub(crate) struct AcceptedStream {
    pub(crate) stream: Box<dyn Stream>,
    /// The peer's name, as in the log.
    pub(crate) peer_name: String,
    pub(crate) accepted_at: Instant,
}

/// The queue of one worker.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    /// An eventfd(2) that is readable when there is a command or a connection.
    pub(crate) wakeup_fd: OwnedFd,
    state: Mutex<CommandQueueState>,
}

#[derive(Debug)]
struct CommandQueueState {
    accepted: Vec<AcceptedStream>,
    command: ServerCommand,
}

impl CommandQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            wakeup_fd: wake,
            state: Mutex::new(CommandQueueState { accepted: Vec::new(), command: ServerCommand::Serve }),
        })
    }

    /// Sets the command of the worker.
    pub(crate) fn set_command(&self, order: ServerCommand) {
        self.lock().command = order;
        self.signal_wakeup();
    }

    pub(crate) fn push_stream(&self, accepted: AcceptedStream) {
        self.lock().accepted.push(accepted);
        self.signal_wakeup();
    }

    /// Returns the current command, and the connections that were added since the last call.
    pub(crate) fn drain(&self) -> (ServerCommand, Vec<AcceptedStream>) {
        let _ = rustix::io::read(&self.wakeup_fd, &mut [0; 8]);
        let mut command_queue_state = self.lock();
        (command_queue_state.command, std::mem::take(&mut command_queue_state.accepted))
    }

    fn signal_wakeup(&self) {
        // The write fails only when the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wakeup_fd, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, CommandQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
