//! Selects the cached seeds that their owners may have dropped meanwhile, and those that no child uses any more.
//! Pure: `service` asks the owners and removes the seeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, SeedKey};
use farfork_wire::SeedId;

use super::PageCache;

/// How often an owner is asked whether it still has a seed, if it sent no page of it meanwhile. The pages of a dropped seed
/// are removed within this time plus a second.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the pages of an unused seed are kept. Its owner is still asked meanwhile.
const UNUSED_LIMIT: Duration = Duration::from_secs(600);

/// How long the pages of a seed are kept while its owner does not answer: as long as children wait for an owner.
pub(super) const OWNER_SILENT_LIMIT: Duration = Duration::from_secs(60);

/// An action that is due for a cached seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RevalidationAction {
    /// Ask its owner whether it still has it.
    CheckOwner(Arc<SeedKey>, Address),
    /// Remove it.
    RemoveSeed(SeedId),
}

impl PageCache {
    /// The actions that are due now. An owner is not asked again before the interval has passed.
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

    /// An owner has confirmed that it has a seed.
    pub(super) fn confirm_seed(&mut self, seed: &SeedId, now: Instant) {
        if let Some(seed) = self.seeds.get_mut(seed) {
            seed.checked_at = now;
        }
    }
}
