//! Working sets: which pages the children of a seed touch, and in which order. Later children, also on other nodes, get
//! these pages fetched at once and in that order. A seed's owner keeps the set; a child never waits for it.
//! `service` requests sets and sends reports, `early_fetch` fetches before a child is ready, `prewarm` fills a node's
//! cache. `shared_set` shares a set between the owner's threads. `set` (the owner's), `process_history` (a process's),
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
// A pager sees only a child's faults. A page that arrives before it is touched causes none, and most pages that
// readahead predicts well do. Such pages are recorded as *fetched*, and later children get them, too.
//
// A *trial* finds out whether they are needed. Each child gets all but a small part of its set. Pages that no child was seen
// to touch are left out first. A page of that part that the child touches stays. One that it does not touch is removed at
// the second time (`UNTOUCHED_TRIALS_MAX`). So a set follows its children when they change. Each child pays for that with at
// most a thirty-second part of the faults that the set spares it (`TRIAL_FRACTION`), and with at most eight
// (`TRIAL_FAULTS_MAX`). New pages are added when any child touches them.
//
// A child does not wait for its set. So the first pages are fetched before it starts. If it touches a page of the set
// that has not arrived, the pages that were touched next are fetched with it, and the rest follows from there. However
// fast the child is, each fault brings a full read.

/// Most pages of a working set, 128 MiB: what a link transfers in a tenth of a second. A child that touches more gets the
/// rest as a stream.
pub const SET_PAGES_MAX: u64 = 32 << 10;

/// Out of this many faults that a set spares a child, one is risked for a trial.
const TRIAL_FRACTION: usize = 32;

/// Consecutive pages of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MarkedRun {
    /// The extent, of the child's own seed.
    pub(crate) extent: ExtentId,
    /// Number of the first page.
    pub(crate) first: u64,
    /// How many pages.
    pub(crate) count: u32,
    /// In a set: the pages are on trial, so a child does not get them. In a report: the child has touched the pages;
    /// otherwise they were only fetched.
    pub(crate) mark: bool,
}

impl MarkedRun {
    /// In a set, separates pages that children have touched from pages that were only fetched. It has no pages, so a decoder
    /// that does not know it stops there.
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
            // A report may be wrong: then page numbers end at their maximum.
            let end = pages.first.saturating_add(u64::from(pages.count));
            (pages.first..end).map(|page| (pages.extent, page, pages.mark))
        })
    }
}
