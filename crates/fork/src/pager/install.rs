//! Filling missing pages of a process whose memory map changes meanwhile: what to make of each way in which the
//! kernel stops half-way.

use std::io;
use std::time::Duration;

use farfork_sys::userfaultfd::{Cause, Stopped, Userfaultfd};
use farfork_wire::PAGE_SIZE;

/// How a range was left.
#[derive(Debug)]
pub(super) enum Installed {
    /// Nothing remains to be done.
    All,
    /// From this byte on it is to be tried again, after a pause, and after the messages were read.
    Later {
        /// Bytes from the start of the range.
        from: u64,
        /// How long to wait.
        pause: Duration,
    },
    /// The process is gone.
    Gone,
    /// The kernel refuses for a reason that will not pass.
    Failed(io::Error),
}

/// What to do where no area covers a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// Go on behind it: the rest may be mapped.
    Skip,
    /// Stop: the rest was only a guess.
    Stop,
}

/// Pause when there is no memory for a page: the kernel kills somebody, or somebody gives memory back.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(10);

/// Calls `fill(offset, bytes)` for pieces of a range until all is done, and counts in `filled` the pages it filled. A
/// page that is there already is left as it is.
pub(super) fn install(
    uffd: &Userfaultfd,
    start: u64,
    bytes: u64,
    gap: Gap,
    filled: &mut u64,
    fill: impl Fn(u64, u64) -> Result<(), Stopped>,
) -> Installed {
    let (mut at, mut piece) = (0, bytes);
    while at < bytes {
        let size = piece.min(bytes - at);
        let (done, cause) = match fill(at, size) {
            Ok(()) => (size, None),
            Err(stopped) => (stopped.done, Some(stopped.cause)),
        };
        at += done;
        *filled += done / PAGE_SIZE;
        // What stopped it behind pages that were done will tell itself at once.
        let Some(cause) = cause.filter(|_| done == 0) else { continue };
        match cause {
            Cause::Unmapped if size > PAGE_SIZE => piece = half(size),
            Cause::Unmapped if gap == Gap::Stop => return Installed::All,
            Cause::Present | Cause::Unmapped => {
                // Whoever waits here asks again, and is told of what is mapped now.
                let _ = uffd.wake(start + at, PAGE_SIZE);
                at += PAGE_SIZE;
            }
            Cause::Changing => return Installed::Later { from: at, pause: Duration::ZERO },
            Cause::NoMemory => return Installed::Later { from: at, pause: NO_MEMORY_PAUSE },
            Cause::Gone => return Installed::Gone,
            Cause::Other(error) => return Installed::Failed(error),
        }
    }
    Installed::All
}

/// Half of some pages, at least one.
fn half(bytes: u64) -> u64 {
    (bytes / 2).next_multiple_of(PAGE_SIZE).min(bytes - PAGE_SIZE).max(PAGE_SIZE)
}
