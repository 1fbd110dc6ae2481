//! A cache of working sets that were read within the last second: if children are forked together, the set is read once
//! for all of them. Pure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::SeedKey;

use super::MarkedRun;

/// How long a set is used before it is read again: the time between two reports of a child.
const FRESH_TIME: Duration = Duration::from_secs(1);

/// Maximum number of cached sets. The oldest is removed first. Each has at most a few hundred KiB.
const SETS_MAX: usize = 16;

/// The sets, the latest last.
#[derive(Debug, Default)]
pub(in crate::pager) struct WorkingSetCache(VecDeque<(Arc<SeedKey>, Instant, Arc<[MarkedRun]>)>);

impl WorkingSetCache {
    /// Returns the set of a seed, if it is cached and the token is right.
    pub(super) fn get(&mut self, key: &SeedKey, now: Instant) -> Option<Arc<[MarkedRun]>> {
        self.0.retain(|(_, read_at, _)| now.saturating_duration_since(*read_at) < FRESH_TIME);
        self.0.iter().find(|(known, ..)| **known == *key).map(|(.., set)| set.clone())
    }

    /// Adds a set that was just read.
    pub(super) fn insert(&mut self, key: &Arc<SeedKey>, set: &Arc<[MarkedRun]>, now: Instant) {
        self.0.retain(|(known, ..)| known.seed != key.seed);
        self.0.push_back((key.clone(), now, set.clone()));
        if self.0.len() > SETS_MAX {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use farfork_wire::Token;
    use farfork_wire::descriptor::ExtentId;

    use super::*;

    #[test]
    fn a_cached_set_expires_and_needs_its_token() {
        let key = |number: u8, token| {
            let seed = format!("n1.s{number:016x}").parse().unwrap();
            Arc::new(SeedKey { seed, token: Token::from_bytes([token; 16]) })
        };
        let set: Arc<[MarkedRun]> = [MarkedRun { extent: ExtentId(1), first: 2, count: 3, mark: false }].into();
        let (mut sets, now) = (WorkingSetCache::default(), Instant::now());
        sets.insert(&key(1, 1), &set, now);
        assert_eq!(sets.get(&key(1, 1), now + FRESH_TIME / 2), Some(set.clone()));
        assert_eq!(sets.get(&key(1, 2), now), None);
        assert_eq!(sets.get(&key(2, 1), now), None);
        assert_eq!(sets.get(&key(1, 1), now + FRESH_TIME), None);
        for number in 0..100 {
            sets.insert(&key(number, 1), &set, now);
        }
        assert_eq!((sets.0.len(), sets.get(&key(99, 1), now)), (SETS_MAX, Some(set)));
    }
}
