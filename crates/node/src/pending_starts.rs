//! Seeds for which this node is starting children, here or on other nodes. Until a child is listed, only this table
//! shows that its seed is needed. A start that this node has sent to another node is known only here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_wire::SeedId;

/// Number of starts in progress, by seed.
#[derive(Debug, Default)]
pub(crate) struct PendingStarts(Mutex<BTreeMap<SeedId, usize>>);

/// One start in progress. Dropping it ends the start.
#[derive(Debug)]
pub(crate) struct PendingStart {
    pending_starts: Arc<PendingStarts>,
    seed: SeedId,
}

impl PendingStarts {
    /// Registers the start of a child of `seed`.
    pub(crate) fn begin(self: &Arc<Self>, seed: SeedId) -> PendingStart {
        *self.table().entry(seed.clone()).or_default() += 1;
        PendingStart { pending_starts: self.clone(), seed }
    }

    /// Returns the seeds of which children are being started.
    pub(crate) fn seeds(&self) -> Vec<String> {
        self.table().keys().map(SeedId::to_string).collect()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SeedId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingStart {
    fn drop(&mut self) {
        let mut table = self.pending_starts.table();
        let Some(count) = table.get_mut(&self.seed) else { return };
        *count -= 1;
        if *count == 0 {
            table.remove(&self.seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, PendingStarts};

    #[test]
    fn a_seed_is_listed_until_its_last_start_ends() {
        let (starts, seed) = (Arc::new(PendingStarts::default()), "n1.s0123456789abcdef".parse().unwrap());
        let (one, other) = (starts.begin(seed), starts.begin("n1.s0123456789abcdef".parse().unwrap()));
        drop(one);
        assert_eq!(starts.seeds(), ["n1.s0123456789abcdef"]);
        drop(other);
        assert!(starts.seeds().is_empty());
    }
}
