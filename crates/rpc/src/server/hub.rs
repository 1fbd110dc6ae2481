//! What the threads of a server share: the registry of sessions, and a mailbox for each thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_fabric::transport::Stream;
use farfork_wire::rpc::Status;
use rustix::event::{EventfdFlags, eventfd};

use super::registry::{Registry, Whereabouts};
use super::reply::{Returns, Ticket};

/// Most bytes that are held for all connections of a server. Beyond, those that hold much are refused until they hold less.
/// (Sessions that wait for their clients have a limit of their own.)
const HELD_BYTES_MAX: usize = 1 << 30;

/// Something for a thread.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A new connection, and where it comes from.
    Adopt(Box<dyn Stream>, String),
    /// A session of this connection was resumed elsewhere.
    Close(u64),
    /// An answer for a session of this connection.
    Answer { peer: u64, ticket: Ticket, status: Status, payload: Vec<u8> },
}

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Hub {
    registry: Mutex<Registry>,
    mailboxes: Vec<Mailbox>,
    /// For connections, as of each one's last turn.
    held_bytes: AtomicUsize,
    held_bytes_max: usize,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Mailbox {
    wake: OwnedFd,
    letters: Mutex<Vec<Letter>>,
}

impl Hub {
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        Self::with_limit(workers, HELD_BYTES_MAX)
    }

    /// The same with another limit for what all connections hold.
    pub(crate) fn with_limit(workers: usize, held_bytes_max: usize) -> io::Result<Self> {
        let mailbox = || -> io::Result<Mailbox> {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Mailbox { wake, letters: Mutex::default() })
        };
        let mailboxes = (0..workers).map(|_| mailbox()).collect::<io::Result<_>>()?;
        let stopped = AtomicBool::new(false);
        Ok(Self { registry: Mutex::default(), mailboxes, held_bytes: AtomicUsize::new(0), held_bytes_max, stopped })
    }

    pub(crate) fn workers(&self) -> usize {
        self.mailboxes.len()
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what a connection holds now in the place of what it held before.
    pub(super) fn recount(&self, counted_bytes: &mut usize, now_bytes: usize) {
        let before = std::mem::replace(counted_bytes, now_bytes);
        match now_bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => _ = self.held_bytes.fetch_add(more, Ordering::Relaxed),
            None => _ = self.held_bytes.fetch_sub(before - now_bytes, Ordering::Relaxed),
        }
    }

    /// Whether connections hold more than they may together.
    pub(super) fn is_crowded(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) > self.held_bytes_max
    }

    /// Where there is no descriptor to wait for: whether a letter came.
    pub(crate) fn has_letters(&self, worker: usize) -> bool {
        !self.mailboxes[worker].letters.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// What becomes readable when a letter came.
    pub(super) fn wake_of(&self, worker: usize) -> &OwnedFd {
        &self.mailboxes[worker].wake
    }

    pub(crate) fn post(&self, worker: usize, letter: Letter) {
        let mailbox = &self.mailboxes[worker];
        mailbox.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        mailbox.ring();
    }

    /// The letters that came.
    pub(super) fn take_letters(&self, worker: usize) -> Vec<Letter> {
        let mailbox = &self.mailboxes[worker];
        let _ = rustix::io::read(&mailbox.wake, &mut [0; 8]);
        std::mem::take(&mut *mailbox.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(Mailbox::ring);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

impl Mailbox {
    fn ring(&self) {
        // It can only fail when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Returns for Hub {
    fn take(&self, ticket: Ticket, status: Status, payload: Vec<u8>) {
        let mut registry = self.registry();
        match registry.find(&ticket.session) {
            Some(Whereabouts::Parked(session)) => session.complete(ticket, status, payload, None),
            Some(Whereabouts::Attached(location)) => {
                self.post(location.worker, Letter::Answer { peer: location.peer, ticket, status, payload });
            }
            // The session was closed: nobody waits.
            None => {}
        }
    }
}
