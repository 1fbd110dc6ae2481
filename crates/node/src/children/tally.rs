//! What the pager counted for all children of a node, over their ends and beyond: sums that never fall.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_fork::pager::{ClientError, PagerCounters};

use super::Child;
use crate::pager_link::PagerLink;

/// The sums as far as no child that is listed has them.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    /// Of children that are forgotten.
    forgotten: PagerCounters,
    /// What was told last: a pager that does not answer is no reason to tell less.
    told: PagerCounters,
}

impl Tally {
    /// Keeps what was counted for a child that is no longer listed.
    pub(super) fn forget(&self, child: &Child) {
        let counted = child.ended().and_then(|ended| ended.pager).unwrap_or_default();
        let mut sums = self.sums();
        sums.forgotten = sums.forgotten.zip_with(&counted, u64::saturating_add);
    }

    /// What was counted for those that are forgotten.
    pub(super) fn forgotten(&self) -> PagerCounters {
        self.sums().forgotten
    }

    /// What was counted for the forgotten and for these.
    pub(super) fn sum(&self, forgotten: PagerCounters, children: &[Arc<Child>], pager: &PagerLink) -> PagerCounters {
        let mut sum = forgotten;
        let mut answers = true;
        for child in children {
            let counted = match child.ended() {
                Some(ended) => ended.pager,
                // One that was silent once would be so for each child, for seconds.
                None if answers => {
                    let stats = pager.client().stats(&child.record().id);
                    answers = !matches!(stats, Err(ClientError::Silent { .. }));
                    stats.ok().map(|stats| stats.counters)
                }
                None => None,
            };
            sum = sum.zip_with(&counted.unwrap_or_default(), u64::saturating_add);
        }
        let mut sums = self.sums();
        sums.told = sums.told.zip_with(&sum, u64::max);
        sums.told
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
