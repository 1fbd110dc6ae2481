//! Working sets: which pages the children of a seed touch, in the order in which they do, so that later children, also on
//! other nodes, have them fetched at once and in that order.
//!
//! ```text
//!  node B: child ─ faults ─▶ trace ─ report ─▶ owner of the seed: working set
//!                                                        │ extent WORKING_SET
//!  node C: next child ◀─ pages, in that order ─ pager ◀──┘
//! ```
//!
//! What a pager sees of a child's touches are its faults. A page that came before it was touched is silent, as most are
//! of which readahead thought well; such pages are recorded as *fetched*, and later children get them, too. Whether they
//! are wanted is found out by *trial*: each child gets all but a small part of its set, those pages left out first that
//! nobody was seen to touch. What it touches of that part stays, what it does not touch leaves at the second time. So a
//! set follows its children when they change, and each pays for that with a thirty-second part of the faults that the set
//! spares it, and with eight at most. New pages come in as any child touches them.
//!
//! A child does not wait for its set. So the first pages are fetched before it begins, and where it touches a page of the set before that
//! came, what was touched next comes along with it, and the rest from there on: however fast it is, a fault brings a read's worth.
//!
//! Pure: `set` (the owner's), `habit` (a process's), `share` (a zygote's), `trace` (a child's), `message`, `recent`. Who sends and asks is `service`; `remembered` is
//! the owner's set for its threads; `early` fetches what comes before the child does; `warming` fills a node's cache with a set before any child is there.

mod codec;
mod early_fetch;
mod prewarm;
mod process_history;
mod service;
mod set;
mod set_cache;
mod shared_set;
mod trace;
mod zygote_subset;

use farfork_wire::descriptor::ExtentId;
use serde::{Deserialize, Serialize};

pub use codec::AccessReport;
pub(super) use codec::{REPORT_MAGIC, SET_MAGIC, decode_set};
pub(super) use early_fetch::EarlyFetch;
pub(super) use prewarm::{PrewarmBatch, PrewarmJob};
pub use process_history::ProcessHistory;
pub(super) use set_cache::WorkingSetCache;
pub use shared_set::{LearnerThread, SharedWorkingSet};
pub(super) use trace::AccessTrace;

/// Most pages of a working set, 128 MiB: what a link brings in a tenth of a second. Who touches more than that has the
/// rest streamed.
pub const SET_PAGES_MAX: u64 = 32 << 10;

/// Of so many faults that a set spares a child, one is risked to see whether it wants a page.
const TRIAL_FRACTION: usize = 32;

/// Neighbouring pages of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MarkedRun {
    /// The extent, of the child's own seed.
    pub(crate) extent: ExtentId,
    /// Number of the first page.
    pub(crate) first: u64,
    /// How many.
    pub(crate) count: u32,
    /// Of a set: a child is not to have them, to see whether it wants them. Of a report: the child touched them, and did
    /// not only have them fetched.
    pub(crate) mark: bool,
}

impl MarkedRun {
    /// Stands in a set between the pages that children were seen to touch and those that only came along. It has no pages, and who
    /// does not know it reads no further.
    const SEPARATOR: Self = Self { extent: ExtentId(0), first: 0, count: 0, mark: true };

    /// Puts a page behind those before it.
    fn push_page(into: &mut Vec<Self>, extent: ExtentId, page: u64, mark: bool) {
        match into.last_mut() {
            Some(last)
                if (last.extent, last.mark) == (extent, mark)
                    && last.first + u64::from(last.count) == page
                    && last.count < u32::MAX =>
            {
                last.count += 1;
            }
            _ => into.push(Self { extent, first: page, count: 1, mark }),
        }
    }

    /// Each page.
    fn iter_pages(pages: &[Self]) -> impl Iterator<Item = (ExtentId, u64, bool)> {
        pages.iter().flat_map(|pages| {
            // Where one who reports is wrong, numbers end.
            let end = pages.first.saturating_add(u64::from(pages.count));
            (pages.first..end).map(|page| (pages.extent, page, pages.mark))
        })
    }
}
