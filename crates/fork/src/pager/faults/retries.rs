//! What could not be done yet, because a child is changing its memory map or has no memory, and is to be done again.

use std::time::{Duration, Instant};

use farfork_fabric::Buffer;

use crate::pager::journal::SpaceNumber;
use crate::pager::owners::{OwnerKey, Read, Wish};

/// Most attempts after a pause: with 10 ms between them, ten seconds without memory.
pub(in crate::pager) const PAUSED_TRIES_MAX: u32 = 1000;

/// Rounds that only yield before the loop sleeps between them. Twice as many as were ever seen to be needed.
const YIELDS_MAX: u32 = 20_000;

/// Sleep between further rounds.
const SLEEP: Duration = Duration::from_millis(1);

/// Something to be done again.
#[derive(Debug)]
pub(in crate::pager) enum Task {
    /// Answer a fault: what it needs may have changed.
    Fault(Fault),
    /// Install the pages of a reply.
    Delivery(Delivery),
    /// Watch a space again.
    Listen {
        /// Of this child.
        child: u64,
        /// The space.
        space: SpaceNumber,
    },
    /// Find out which changes of its parent's a forked process has.
    Doubt {
        /// Of this child.
        child: u64,
        /// Its space.
        space: SpaceNumber,
    },
    /// Fetch slots ahead.
    Ahead(OwnerKey, Wish),
}

/// A thread that waits for a page.
#[derive(Debug, Clone, Copy)]
pub(in crate::pager) struct Fault {
    /// Of this child.
    pub(in crate::pager) child: u64,
    /// In this space.
    pub(in crate::pager) space: SpaceNumber,
    /// Address of the page.
    pub(in crate::pager) address: u64,
    /// Nothing was fetched ahead for its sake yet: however often it is judged, the process touched the page once.
    pub(in crate::pager) is_first: bool,
    /// The thread, as the message has it.
    pub(in crate::pager) thread: u32,
    /// When it was heard.
    pub(in crate::pager) heard_at: Instant,
    /// When it is asked why nothing can be installed, where nothing can.
    pub(in crate::pager) question_due: Instant,
}

/// Pages that arrived.
#[derive(Debug)]
pub(in crate::pager) struct Delivery {
    /// What was asked; slots that are installed are cut away.
    pub(in crate::pager) read: Read,
    /// The bytes of the reply.
    pub(in crate::pager) data: Buffer,
    /// Where in them those of the first slot begin.
    pub(in crate::pager) offset: usize,
}

#[derive(Debug)]
struct Retry {
    task: Task,
    due: Instant,
    paused_tries: u32,
}

/// The tasks that wait.
#[derive(Debug, Default)]
pub(in crate::pager) struct Retries {
    waiting: Vec<Retry>,
    yields: u32,
}

impl Retries {
    /// Has a task done again after a pause; `paused_tries` is how often it was paused before.
    pub(in crate::pager) fn push(&mut self, task: Task, now: Instant, pause: Duration, paused_tries: u32) {
        let paused_tries = if pause.is_zero() { paused_tries } else { paused_tries + 1 };
        self.waiting.push(Retry { task, due: now + pause, paused_tries });
    }

    /// The tasks that are due, each with how often it was paused.
    pub(in crate::pager) fn take_due(&mut self, now: Instant) -> Vec<(Task, u32)> {
        if self.waiting.is_empty() {
            self.yields = 0;
            return Vec::new();
        }
        let (due, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|retry| retry.due <= now);
        self.waiting = waiting;
        let due: Vec<Retry> = due;
        due.into_iter().map(|retry| (retry.task, retry.paused_tries)).collect()
    }

    /// When the first of these tasks is due.
    pub(in crate::pager) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|retry| retry.due).min()
    }

    /// How long the loop may sleep for the sake of these tasks; gives the CPU away where it should not sleep at all.
    pub(in crate::pager) fn patience(&mut self, now: Instant) -> Option<Duration> {
        let first = self.next_due()?;
        if first > now {
            return Some(first - now);
        }
        if self.yields >= YIELDS_MAX {
            return Some(SLEEP);
        }
        self.yields += 1;
        std::thread::yield_now();
        Some(Duration::ZERO)
    }
}
