//! Selects the cached seeds that their owners may have dropped since the last check, and the seeds that children no
//! longer use. Pure: `service` asks the owners and removes the seeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, SeedKey};
use farfork_wire::SeedId;

use super::PageCache;

/// If an owner has neither sent a page of a seed nor confirmed the seed for this time, the pager asks whether the owner
/// still has it. So the pages of a dropped seed are removed soon, unless the owner cannot be reached.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the pages of an unused seed are kept. During this time the pager still asks the owner.
const UNUSED_LIMIT: Duration = Duration::from_secs(600);

/// How long the pages of a seed are kept while its owner does not reply: as long as children wait for an unreachable
/// owner by default.
pub(super) const OWNER_SILENT_LIMIT: Duration = Duration::from_secs(60);

/// An action that is due for a cached seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RevalidationAction {
    /// Ask the owner whether it still has the seed.
    CheckOwner(Arc<SeedKey>, Address),
    /// Remove the seed's pages.
    RemoveSeed(SeedId),
}

impl PageCache {
    /// Returns the actions that are due now. Asks an owner about the same seed at most once per interval.
    pub(super) fn due_revalidations(&mut self, now: Instant) -> Vec<RevalidationAction> {
        let since = |then: Instant| now.saturating_duration_since(then);
        let mut due = Vec::new();
        for seed in self.seeds.values_mut() {
            if since(seed.used_at) >= UNUSED_LIMIT || since(seed.checked_at) >= OWNER_SILENT_LIMIT {
                due.push(RevalidationAction::RemoveSeed(seed.key.seed.clone()));
            } else if since(seed.checked_at.max(seed.check_sent_at)) >= CHECK_INTERVAL {
                seed.check_sent_at = now;
                due.push(RevalidationAction::CheckOwner(seed.key.clone(), seed.owner.clone()));
            }
        }
        due
    }

    /// Records that an owner has confirmed that it has a seed.
    pub(super) fn confirm_seed(&mut self, seed: &SeedId, now: Instant) {
        if let Some(seed) = self.seeds.get_mut(seed) {
            seed.checked_at = now;
        }
    }
}
