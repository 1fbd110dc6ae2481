//! The queue of work to retry later: a memory map is changing, or memory, descriptors or connections are exhausted.

use std::time::{Duration, Instant};

use farfork_fabric::Buffer;

use crate::pager::journal::AddressSpaceId;
use crate::pager::owner_connections::{OwnerKey, PageRead, PrefetchRequest};

/// Maximum number of attempts that follow a pause: ten seconds without memory, at 10 ms per pause.
pub(in crate::pager) const PAUSED_TRIES_MAX: u32 = 1000;

/// Number of rounds in which the loop only yields the CPU, before it sleeps between rounds. This is twice the largest
/// number that was observed.
const YIELDS_MAX: u32 = 20_000;

/// Sleep between two rounds after [`YIELDS_MAX`] yields.
const RETRY_SLEEP: Duration = Duration::from_millis(1);

/// A task to retry.
#[derive(Debug)]
pub(in crate::pager) enum RetryTask {
    /// Handle a fault again; it may now need another action.
    Fault(PageFault),
    /// Install the pages of a reply.
    CompletedRead(CompletedRead),
    /// Watch an address space again.
    WatchSpace {
        /// The child.
        child: u64,
        /// The address space.
        space: AddressSpaceId,
    },
    /// Resolve which of its parent's changes a forked process has.
    ResolveFork {
        /// The child.
        child: u64,
        /// The address space of the forked process.
        space: AddressSpaceId,
    },
    /// Queue a prefetch again.
    Prefetch(OwnerKey, PrefetchRequest),
}

/// A thread that waits for a page.
#[derive(Debug, Clone, Copy)]
pub(in crate::pager) struct PageFault {
    /// The child.
    pub(in crate::pager) child: u64,
    /// The address space.
    pub(in crate::pager) space: AddressSpaceId,
    /// Address of the page.
    pub(in crate::pager) address: u64,
    /// Whether this is the first attempt. Readahead counts a fault only once, because the process touched the page only
    /// once.
    pub(in crate::pager) is_first: bool,
    /// The thread's id in its own pid namespace, as in the message.
    pub(in crate::pager) thread: u32,
    /// When the message was read.
    pub(in crate::pager) received_at: Instant,
    /// When to check for an mremap(2) call (`mremap_growth`), if no page can be installed.
    pub(in crate::pager) growth_check_at: Instant,
}

/// Pages that have arrived.
#[derive(Debug)]
pub(in crate::pager) struct CompletedRead {
    /// The request. Slots are removed from it when they are installed.
    pub(in crate::pager) read: PageRead,
    /// The bytes of the reply.
    pub(in crate::pager) data: Buffer,
    /// Offset of the first slot's bytes in `data`.
    pub(in crate::pager) offset: usize,
}

#[derive(Debug)]
struct RetryEntry {
    task: RetryTask,
    due: Instant,
    paused_tries: u32,
}

/// The tasks to retry.
#[derive(Debug, Default)]
pub(in crate::pager) struct RetryQueue {
    waiting: Vec<RetryEntry>,
    yields: u32,
}

impl RetryQueue {
    /// Queues a task to retry after a pause. `paused_tries` is the number of its earlier pauses.
    pub(in crate::pager) fn push(&mut self, task: RetryTask, now: Instant, pause: Duration, paused_tries: u32) {
        let paused_tries = if pause.is_zero() { paused_tries } else { paused_tries + 1 };
        self.waiting.push(RetryEntry { task, due: now + pause, paused_tries });
    }

    /// Takes the tasks that are due, each with the number of its pauses.
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

    /// Returns when the first task is due.
    pub(in crate::pager) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|retry| retry.due).min()
    }

    /// Returns how long the loop may sleep until the next task is due. If a task is already due, yields the CPU.
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
