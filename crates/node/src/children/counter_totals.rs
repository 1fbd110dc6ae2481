//! Sums of the pager's counters over all children that a node has had. They never fall, although children end and are
//! evicted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_fork::pager::{ClientError, PagerCounters};

use super::Child;
use crate::pager_link::PagerLink;

/// The sums as far as no child that is listed has them.
#[derive(Debug, Default)]
pub(super) struct CounterTotals(Mutex<CounterSums>);

#[derive(Debug, Default)]
struct CounterSums {
    /// Of children that are forgotten.
    evicted: PagerCounters,
    /// What was told last: a pager that does not answer is no reason to tell less.
    last_reported: PagerCounters,
}

impl CounterTotals {
    /// Keeps what was counted for a child that is no longer listed.
    pub(super) fn add_evicted(&self, child: &Child) {
        let counted = child.exit_record().and_then(|ended| ended.pager).unwrap_or_default();
        let mut sums = self.sums();
        sums.evicted = sums.evicted.zip_with(&counted, u64::saturating_add);
    }

    /// What was counted for those that are forgotten.
    pub(super) fn evicted_total(&self) -> PagerCounters {
        self.sums().evicted
    }

    /// What was counted for the forgotten and for these.
    pub(super) fn total(&self, forgotten: PagerCounters, children: &[Arc<Child>], pager: &PagerLink) -> PagerCounters {
        let mut sum = forgotten;
        let mut answers = true;
        for child in children {
            let counted = match child.exit_record() {
                Some(ended) => ended.pager,
                // One that was silent once would be so for each child, for seconds.
                None if answers => {
                    let stats = pager.client().stats(&child.record().id);
                    answers = !matches!(stats, Err(ClientError::NoReply { .. }));
                    stats.ok().map(|stats| stats.counters)
                }
                None => None,
            };
            sum = sum.zip_with(&counted.unwrap_or_default(), u64::saturating_add);
        }
        let mut sums = self.sums();
        sums.last_reported = sums.last_reported.zip_with(&sum, u64::max);
        sums.last_reported
    }

    fn sums(&self) -> MutexGuard<'_, CounterSums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
