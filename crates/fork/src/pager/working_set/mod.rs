//! Working sets: which pages the children of a seed touch, and in which order. Later children, also on other nodes, get
//! these pages in the same order, without faults. A seed's owner stores the set; a child never waits for it. `service`
//! requests sets and sends reports, `early_fetch` fetches before a child is ready, `prewarm` fills a node's cache.
//! `shared_set` shares a set between the owner's threads. `set` (the owner's), `process_history` (a process's),
//! `zygote_subset` (a zygote's), `trace` (a child's), `codec` and `set_cache` are pure.

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

// How a set is learnt and used:
//
//  node B: child ─ faults ─▶ trace ─ report ─▶ owner of the seed: working set
//                                                        │ extent WORKING_SET
//  node C: next child ◀─ pages, in that order ─ pager ◀──┘
//
// A pager sees only a child's faults. A page that arrives before it is touched causes no fault. This holds for most
// pages that readahead predicts correctly. Such pages are recorded as *fetched*, and later children get them, too.
//
// A *trial* finds out whether fetched pages are needed: each child gets its set without a small part, preferably pages
// that no child was seen to touch. If the child touches a page on trial, the page stays in the set. Otherwise the page
// is removed after the second such trial in a row (`UNTOUCHED_TRIALS_MAX`). So the set adapts when children change. A
// trial costs a child at most one in 32 of the faults that the set saves (`TRIAL_FRACTION`), and at most eight
// (`TRIAL_FAULTS_MAX`). A page that any child touches is added.
//
// A child does not wait for its set. So the first pages are fetched before it starts. If it touches a page of the set
// that has not arrived, this page is fetched along with the pages that earlier children touched next, and the prefetch
// continues after these. So each fault brings a full read, also for a fast child.

/// Maximum number of pages of a working set: 128 MiB, which a link of 10 Gbit/s transfers in a tenth of a second. A
/// child that touches more gets the rest by readahead.
pub const SET_PAGES_MAX: u64 = 32 << 10;

/// Number of faults that a set saves a child for each fault that is risked by a trial.
const TRIAL_FRACTION: usize = 32;

/// Consecutive pages of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MarkedRun {
    /// The extent of the child's own seed.
    pub(crate) extent: ExtentId,
    /// Number of the first page.
    pub(crate) first: u64,
    /// Number of pages.
    pub(crate) count: u32,
    /// In a set: whether the pages are on trial, so that the child does not get them. In a report: whether the child
    /// has touched the pages, or they were only fetched.
    pub(crate) mark: bool,
}

impl MarkedRun {
    /// In a set, separates pages that children have touched from pages that were only fetched. It has no pages, so that
    /// a decoder without support for it stops there.
    const SEPARATOR: Self = Self { extent: ExtentId(0), first: 0, count: 0, mark: true };

    /// Appends a page.
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

    /// Iterates over the pages.
    fn iter_pages(pages: &[Self]) -> impl Iterator<Item = (ExtentId, u64, bool)> {
        pages.iter().flat_map(|pages| {
            // A report from another node may be invalid: avoid an overflow.
            let end = pages.first.saturating_add(u64::from(pages.count));
            (pages.first..end).map(|page| (pages.extent, page, pages.mark))
        })
    }
}
