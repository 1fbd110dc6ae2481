//! Eager paging: a child gets all of its memory before its first instruction. `resume` calls `settle_before_start`. `pager`
//! fetches the pages; `restore` keeps the child stopped until then.

use std::time::{Duration, Instant};

use farfork_sys::clock::realtime_ns;
use farfork_wire::ChildId;

use crate::pager::{ClientError, PagerClient, SettleProgress, SettleState};

/// Shortest time in which a page is fetched. The next progress query is delayed by this time for each missing page.
const PAGE_FETCH_MIN: Duration = Duration::from_nanos(500);

/// Shortest and longest pause between two progress queries. A query takes about 50 µs, and the end must be noticed
/// soon.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// Why a child does not get all of its memory.
#[derive(Debug, thiserror::Error)]
pub enum EagerError {
    /// The pager does not serve the child.
    #[error(transparent)]
    Pager(#[from] ClientError),
    /// The owner did not deliver a page.
    #[error("not all of its memory could be fetched before its start: {0}; once its seed's node answers, fork again")]
    PageFetch(String),
    /// The time limit has passed.
    #[error("{0} pages were still missing at the time limit for its start; use the strategy `prefetch`")]
    Timeout(u64),
}

/// Waits until a restored child has all of its memory, and no longer needs its seed. Returns when this was so, by
/// CLOCK_REALTIME in nanoseconds.
pub(crate) fn settle_before_start(
    child: &ChildId,
    pid: i32,
    pager: &PagerClient,
    until: Instant,
) -> Result<u64, EagerError> {
    let (mut begin, mut is_settled) = (true, false);
    loop {
        let SettleProgress { missing_pages, state, .. } = pager.settle(child, begin, pid)?;
        match state {
            // Query once more: at each query, the pager unregisters the memory of a settled child from its userfaultfd.
            SettleState::Settled if is_settled => return Ok(realtime_ns()),
            SettleState::Settled => is_settled = true,
            SettleState::Failed(reason) => return Err(EagerError::PageFetch(reason)),
            SettleState::Idle | SettleState::Running if Instant::now() < until => {
                let pages = u32::try_from(missing_pages).unwrap_or(u32::MAX);
                std::thread::sleep(PAGE_FETCH_MIN.saturating_mul(pages).clamp(POLL_INTERVALS.0, POLL_INTERVALS.1));
            }
            SettleState::Idle | SettleState::Running => return Err(EagerError::Timeout(missing_pages)),
        }
        begin = false;
    }
}
