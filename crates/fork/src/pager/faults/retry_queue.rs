//! The queue of work to retry later: a memory map is changing, or memory, descriptors or connections are exhausted.

use std::time::{Duration, Instant};

use farfork_fabric::Buffer;

use crate::pager::journal::AddressSpaceId;
use crate::pager::owner_connections::{OwnerKey, PageRead, PrefetchRequest};

/// Most attempts after a pause: with 10 ms between them, ten seconds without memory.
pub(in crate::pager) const PAUSED_TRIES_MAX: u32 = 1000;

/// Rounds that only yield before the loop sleeps between them. Twice as many as were ever seen to be needed.
const YIELDS_MAX: u32 = 20_000;

/// Sleep between further rounds.
const RETRY_SLEEP: Duration = Duration::from_millis(1);

/// Something to be done again.
#[derive(Debug)]
pub(in crate::pager) enum RetryTask {
    /// Answer a fault: what it needs may have changed.
    Fault(PageFault),
    /// Install the pages of a reply.
    CompletedRead(CompletedRead),
    /// Watch a space again.
    WatchSpace {
        /// Of this child.
        child: u64,
        /// The space.
        space: AddressSpaceId,
    },
    /// Find out which changes of its parent's a forked process has.
    ResolveFork {
        /// Of this child.
        child: u64,
        /// Its space.
        space: AddressSpaceId,
    },
    /// Fetch slots ahead.
    Prefetch(OwnerKey, PrefetchRequest),
}

/// A thread that waits for a page.
#[derive(Debug, Clone, Copy)]
pub(in crate::pager) struct PageFault {
    /// Of this child.
    pub(in crate::pager) child: u64,
    /// In this space.
    pub(in crate::pager) space: AddressSpaceId,
    /// Address of the page.
    pub(in crate::pager) address: u64,
    /// Nothing was fetched ahead for its sake yet: however often it is judged, the process touched the page once.
    pub(in crate::pager) is_first: bool,
    /// The thread, as the message has it.
    pub(in crate::pager) thread: u32,
    /// When it was heard.
    pub(in crate::pager) received_at: Instant,
    /// When it is asked why nothing can be installed, where nothing can.
    pub(in crate::pager) growth_check_at: Instant,
}

/// Pages that arrived.
#[derive(Debug)]
pub(in crate::pager) struct CompletedRead {
    /// What was asked; slots that are installed are cut away.
    pub(in crate::pager) read: PageRead,
    /// The bytes of the reply.
    pub(in crate::pager) data: Buffer,
    /// Where in them those of the first slot begin.
    pub(in crate::pager) offset: usize,
}

#[derive(Debug)]
struct RetryEntry {
    task: RetryTask,
    due: Instant,
    paused_tries: u32,
}

/// The tasks that wait.
#[derive(Debug, Default)]
pub(in crate::pager) struct RetryQueue {
    waiting: Vec<RetryEntry>,
    yields: u32,
}

impl RetryQueue {
    /// Has a task done again after a pause; `paused_tries` is how often it was paused before.
    pub(in crate::pager) fn push(&mut self, task: RetryTask, now: Instant, pause: Duration, paused_tries: u32) {
        let paused_tries = if pause.is_zero() { paused_tries } else { paused_tries + 1 };
        self.waiting.push(RetryEntry { task, due: now + pause, paused_tries });
    }

    /// The tasks that are due, each with how often it was paused.
    pub(in crate::pager) fn take_due(&mut self, now: Instant) -> Vec<(RetryTask, u32)> {
        if self.waiting.is_empty() {
            self.yields = 0;
            return Vec::new();
        }
        let (due, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|retry| retry.due <= now);
        self.waiting = waiting;
        let due: Vec<RetryEntry> = due;
        due.into_iter().map(|retry| (retry.task, retry.paused_tries)).collect()
    }

    /// When the first of these tasks is due.
    pub(in crate::pager) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|retry| retry.due).min()
    }

    /// How long the loop may sleep for the sake of these tasks; gives the CPU away where it should not sleep at all.
    pub(in crate::pager) fn backoff_timeout(&mut self, now: Instant) -> Option<Duration> {
        let first = self.next_due()?;
        if first > now {
            return Some(first - now);
        }
        if self.yields >= YIELDS_MAX {
            return Some(RETRY_SLEEP);
        }
        self.yields += 1;
        std::thread::yield_now();
        Some(Duration::ZERO)
    }
}
