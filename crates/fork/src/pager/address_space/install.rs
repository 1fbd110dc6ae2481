//! `fill_range` fills missing pages of a process that may change its memory map at the same time. `AddressSpace` passes
//! the ioctl to use. The `InstallOutcome` says whether the range is complete, must be retried, or failed.

use std::io;
use std::time::Duration;

use farfork_sys::userfaultfd::{RangeError, RangeErrorCause, Userfaultfd};
use farfork_wire::PAGE_SIZE;

/// The result of filling a range.
#[derive(Debug)]
pub(in crate::pager) enum InstallOutcome {
    /// The range is filled, except for unmapped pages. With [`GapPolicy::Stop`], the first of these ended the filling.
    Complete,
    /// The unfilled part must be retried after the pause, and after the pending messages were read.
    Retry {
        /// Offset of the unfilled part from the start of the range, in bytes.
        from: u64,
        /// Time to wait before the retry.
        pause: Duration,
    },
    /// The process is gone.
    ProcessGone,
    /// The ioctl failed with an error that a retry cannot fix.
    Failed(io::Error),
}

/// The action at a page that no mapping covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pager) enum GapPolicy {
    /// Continue after the page: the pages after it may be mapped.
    Skip,
    /// Stop: filling the pages after it was only a guess.
    Stop,
}

/// Pause when there is no memory for a page, so that a process can free memory, or the OOM killer can act.
const NO_MEMORY_BACKOFF: Duration = Duration::from_millis(10);

/// Calls `fill(offset, bytes)` for pieces of a range until the range is filled. Adds the number of filled pages to
/// `filled`. Skips pages that are already present.
pub(in crate::pager) fn fill_range(
    uffd: &Userfaultfd,
    start: u64,
    bytes: u64,
    gap: GapPolicy,
    filled: &mut u64,
    fill: impl Fn(u64, u64) -> Result<(), RangeError>,
) -> InstallOutcome {
    let (mut at, mut piece, mut unmapped_at) = (0, bytes, None);
    while at < bytes {
        let size = piece.min(bytes - at);
        let (done, cause) = match fill(at, size) {
            Ok(()) => (size, None),
            Err(stopped) => (stopped.done, Some(stopped.cause)),
        };
        at += done;
        *filled += done / PAGE_SIZE;
        // After partial progress the next call returns the cause at once.
        let Some(cause) = cause.filter(|_| done == 0) else { continue };
        match cause {
            RangeErrorCause::Unmapped if size > PAGE_SIZE => piece = half_pages(size),
            // The kernel checks for pending map changes, and then looks up the mapping. A move between these two steps
            // removes the mapping. A second attempt then reports the pending change.
            RangeErrorCause::Unmapped if unmapped_at != Some(at) => unmapped_at = Some(at),
            RangeErrorCause::Unmapped if gap == GapPolicy::Stop => return InstallOutcome::Complete,
            RangeErrorCause::AlreadyPresent | RangeErrorCause::Unmapped => {
                // Wake the threads that wait here, so that they fault on the current mapping.
                let _ = uffd.wake(start + at, PAGE_SIZE);
                at += PAGE_SIZE;
            }
            RangeErrorCause::MapChanging => return InstallOutcome::Retry { from: at, pause: Duration::ZERO },
            RangeErrorCause::NoMemory => return InstallOutcome::Retry { from: at, pause: NO_MEMORY_BACKOFF },
            RangeErrorCause::ProcessGone => return InstallOutcome::ProcessGone,
            RangeErrorCause::Other(error) => return InstallOutcome::Failed(error),
        }
    }
    InstallOutcome::Complete
}

/// Half of the pages in `bytes`, at least one.
fn half_pages(bytes: u64) -> u64 {
    (bytes / 2).next_multiple_of(PAGE_SIZE).min(bytes - PAGE_SIZE).max(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rustix::io::Errno;

    use super::*;

    const NOWHERE: u64 = 1 << 40;

    /// Fills two pages with a model kernel that returns these results in order. Returns the outcome, and the page
    /// ranges of the calls.
    fn filled(answers: &[Result<(), Errno>]) -> (InstallOutcome, Vec<(u64, u64)>) {
        let (uffd, calls) = (Userfaultfd::create().unwrap(), RefCell::new(Vec::new()));
        let fill = |at: u64, size: u64| {
            let answer = answers[calls.borrow().len()];
            calls.borrow_mut().push((at / PAGE_SIZE, size / PAGE_SIZE));
            answer.map_err(|errno| RangeError { done: 0, cause: errno.into() })
        };
        let outcome = fill_range(&uffd, NOWHERE, 2 * PAGE_SIZE, GapPolicy::Skip, &mut 0, fill);
        (outcome, calls.into_inner())
    }

    #[test]
    fn a_page_that_moves_during_installation_is_retried() {
        let (moved, changing) = (Err(Errno::NOENT), Err(Errno::AGAIN));
        let (outcome, _) = filled(&[moved, moved, changing]);
        assert!(matches!(outcome, InstallOutcome::Retry { from: 0, .. }), "{outcome:?}");
        let (outcome, _) = filled(&[moved, Ok(()), moved, changing]);
        assert!(matches!(outcome, InstallOutcome::Retry { from: PAGE_SIZE, .. }), "{outcome:?}");
    }

    #[test]
    fn an_unmapped_gap_is_skipped() {
        let gap = Err(Errno::NOENT);
        let (outcome, calls) = filled(&[gap, gap, gap, Ok(())]);
        assert!(matches!(outcome, InstallOutcome::Complete), "{outcome:?}");
        assert_eq!(calls, [(0, 2), (0, 1), (0, 1), (1, 1)]);
    }
}
