//! How other threads reach a worker: with connections that were let in, and to end it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::transport::Stream;

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Serve.
    Work,
    /// Serve what was received, send what waits, until then at most; then end.
    Finish(Instant),
    /// End at once.
    Stop,
}

/// A connection whose handshake is over, or has begun.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) stream: Box<dyn Stream>,
    /// Who it comes from, as the log names it.
    pub(crate) from: String,
    pub(crate) came_at: Instant,
}

/// The mailbox of one worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// Readable when there is mail.
    pub(crate) wake: OwnedFd,
    mail: Mutex<Mail>,
}

#[derive(Debug)]
struct Mail {
    admitted: Vec<Entered>,
    order: Order,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, mail: Mutex::new(Mail { admitted: Vec::new(), order: Order::Work }) })
    }

    /// Orders its worker.
    pub(crate) fn order(&self, order: Order) {
        self.lock().order = order;
        self.wake();
    }

    pub(crate) fn hand_over(&self, entered: Entered) {
        self.lock().admitted.push(entered);
        self.wake();
    }

    /// What to do, and the connections that were let in since.
    pub(crate) fn take(&self) -> (Order, Vec<Entered>) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut mail = self.lock();
        (mail.order, std::mem::take(&mut mail.admitted))
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
