//! Sums of the pager's counters over all children that a node has had. A sum never decreases, although children end and
//! are evicted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_fork::pager::{ClientError, PagerCounters};

use super::Child;
use crate::pager_link::PagerLink;

/// Sums over children that are no longer listed, and the last reported total.
#[derive(Debug, Default)]
pub(super) struct CounterTotals(Mutex<CounterSums>);

#[derive(Debug, Default)]
struct CounterSums {
    /// Sums over evicted children.
    evicted: PagerCounters,
    /// The last reported total. The next total is not lower, even if it lacks live children because the pager does not
    /// answer.
    last_reported: PagerCounters,
}

impl CounterTotals {
    /// Adds the counters of a child that is no longer listed.
    pub(super) fn add_evicted(&self, child: &Child) {
        let counted = child.exit_record().and_then(|ended| ended.pager).unwrap_or_default();
        let mut sums = self.sums();
        sums.evicted = sums.evicted.zip_with(&counted, u64::saturating_add);
    }

    /// Sums over evicted children.
    pub(super) fn evicted_total(&self) -> PagerCounters {
        self.sums().evicted
    }

    /// Returns the sums over evicted children (`forgotten`) and `children`.
    pub(super) fn total(&self, forgotten: PagerCounters, children: &[Arc<Child>], pager: &PagerLink) -> PagerCounters {
        let mut sum = forgotten;
        let mut answers = true;
        for child in children {
            let counted = match child.exit_record() {
                Some(ended) => ended.pager,
                // After one timeout, the pager gets no further requests: each would take seconds.
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
