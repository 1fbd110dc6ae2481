//! The cache of roots of ended containers. A filler builds a container with each root. That container waits for a request
//! with the same [`RootReuseKey`].

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::config::{ContainerSpec, RootCacheKey, RootReuseKey};
use crate::error::ContainerError;
use crate::handle::Container;
use crate::root::cached::CachedRoot;

/// A root without requests for this time may be evicted to make room.
const EVICTABLE_AFTER: Duration = Duration::from_millis(100);

/// After this many changed roots of one key in a row, the cache keeps no roots of this key for [`CHANGED_ROOTS_PAUSE`]:
/// at present, the key's children write files.
const CHANGED_ROOTS_MAX: u32 = 4;
const CHANGED_ROOTS_PAUSE: Duration = Duration::from_secs(3);

//  taken with a reuse key -> a child runs, ends -> root -> rebuilt by a filler -> ready -> taken ...
//                                                    +-> changed, or one too many: discarded

/// All cached roots.
#[derive(Debug, Default)]
pub(super) struct RootCache {
    entries: BTreeMap<RootCacheKey, RootCacheEntry>,
    /// Limit on roots of all keys, including those in ready containers.
    roots_max: usize,
    /// Roots without requests expire after this time.
    unused_limit: Duration,
}

#[derive(Debug, Default)]
struct RootCacheEntry {
    roots: Vec<CachedRoot>,
    building: usize,
    ready: VecDeque<Container>,
    /// Number of changed roots since the last unchanged one, and the time until which no roots are kept.
    changed_count: u32,
    paused_until: Option<Instant>,
    /// Number of waiting requests.
    waiting: usize,
    last_requested: Option<Instant>,
}

/// Discarded containers and roots. Dropping them takes time, so the pool does it without its lock.
#[derive(Debug, Default)]
pub(super) struct DiscardedEntries {
    pub(super) containers: Vec<Container>,
    roots: Vec<CachedRoot>,
}

impl DiscardedEntries {
    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.roots.is_empty()
    }

    /// Discards containers that do not show the node's current mounts.
    pub(super) fn discard_outdated(&mut self, ready: &mut VecDeque<Container>) {
        for container in std::mem::take(ready) {
            if container.is_current() { ready.push_back(container) } else { self.containers.push(container) }
        }
    }
}

impl RootCache {
    pub(super) fn new(roots_max: usize, unused_limit: Duration) -> Self {
        Self { entries: BTreeMap::new(), roots_max, unused_limit }
    }

    /// Records a request for a container. Returns whether that container's root is to be kept.
    pub(super) fn record_request(&mut self, key: &RootCacheKey, now: Instant) -> bool {
        let root_cache_entry = self.entries.entry(key.clone()).or_default();
        root_cache_entry.last_requested = Some(now);
        self.roots_max > 0 && root_cache_entry.is_wanted(now)
    }

    /// Records that a request begins or stops waiting.
    pub(super) fn update_waiters(&mut self, key: &RootCacheKey, begins: bool) {
        let waiting = &mut self.entries.entry(key.clone()).or_default().waiting;
        *waiting = if begins { *waiting + 1 } else { waiting.saturating_sub(1) };
    }

    /// The number of waiting requests with this key.
    pub(super) fn waiter_count(&self, key: &RootCacheKey) -> usize {
        self.entries.get(key).map_or(0, |root_cache_entry| root_cache_entry.waiting)
    }

    /// Keeps a root, or adds it to `discarded`.
    pub(super) fn insert(
        &mut self,
        key: &RootCacheKey,
        root: CachedRoot,
        now: Instant,
        discarded: &mut DiscardedEntries,
    ) {
        let has_room = self.root_count() < self.roots_max || self.evict_one(now, discarded);
        match self.entries.get_mut(key).filter(|root_cache_entry| has_room && root_cache_entry.is_wanted(now)) {
            Some(root_cache_entry) => root_cache_entry.roots.push(root),
            None => discarded.roots.push(root),
        }
    }

    /// Evicts one root of the key whose last request is the oldest. Returns whether there was one.
    fn evict_one(&mut self, now: Instant, discarded: &mut DiscardedEntries) -> bool {
        let unused = self.entries.values_mut().filter(|root_cache_entry| {
            root_cache_entry.last_requested.is_none_or(|used| used + EVICTABLE_AFTER <= now)
        });
        let holding =
            unused.filter(|root_cache_entry| !root_cache_entry.roots.is_empty() || !root_cache_entry.ready.is_empty());
        let Some(root_cache_entry) = holding.min_by_key(|root_cache_entry| root_cache_entry.last_requested) else {
            return false;
        };
        match root_cache_entry.roots.pop() {
            Some(root) => discarded.roots.push(root),
            None => discarded.containers.extend(root_cache_entry.ready.pop_front()),
        }
        true
    }

    /// Takes a root for a rebuild. `is_due` decides by kind, number of containers ready or being built, and number of
    /// waiting requests.
    pub(super) fn take_for_rebuild(
        &mut self,
        is_due: impl Fn(ContainerSpec, usize, usize) -> bool,
    ) -> Option<(RootCacheKey, CachedRoot)> {
        let is_next = |(key, entry): &(&RootCacheKey, &mut RootCacheEntry)| {
            !entry.roots.is_empty() && is_due(key.spec, entry.ready.len() + entry.building, entry.waiting)
        };
        let (key, root_cache_entry) = self.entries.iter_mut().find(is_next)?;
        root_cache_entry.building += 1;
        Some((key.clone(), root_cache_entry.roots.pop()?))
    }

    /// Records the result of a rebuild. Returns whether the rebuild succeeded.
    pub(super) fn finish_rebuild(
        &mut self,
        key: &RootCacheKey,
        built: Result<Container, ContainerError>,
        now: Instant,
    ) -> bool {
        let root_cache_entry = self.entries.entry(key.clone()).or_default();
        root_cache_entry.building = root_cache_entry.building.saturating_sub(1);
        let outcome = built.map(|container| root_cache_entry.ready.push_back(container));
        match &outcome {
            Ok(()) => (root_cache_entry.changed_count, root_cache_entry.paused_until) = (0, None),
            Err(error @ ContainerError::RootChanged { .. }) => {
                root_cache_entry.changed_count += 1;
                root_cache_entry.paused_until =
                    (root_cache_entry.changed_count >= CHANGED_ROOTS_MAX).then(|| now + CHANGED_ROOTS_PAUSE);
                tracing::debug!(%error, line = &*key.reuse_key.lineage, "a root was not reused");
            }
            Err(error) => tracing::warn!(%error, line = &*key.reuse_key.lineage, "a root could not be reused"),
        }
        outcome.is_ok()
    }

    /// Takes the container that has been ready longest.
    pub(super) fn take_container(&mut self, key: &RootCacheKey) -> Option<Container> {
        self.entries.get_mut(key)?.ready.pop_front()
    }

    /// Discards roots without recent requests, and those whose key satisfies `is_over`. Returns when the next ones expire.
    pub(super) fn evict_unused(
        &mut self,
        now: Instant,
        is_over: impl Fn(&RootReuseKey) -> bool,
        discarded: &mut DiscardedEntries,
    ) -> Option<Instant> {
        let mut next = None;
        self.entries.retain(|key, entry| {
            let goes = entry.last_requested.map_or(now, |used| used + self.unused_limit);
            if goes > now && !is_over(&key.reuse_key) {
                next = next.into_iter().chain([goes]).min();
                return true;
            }
            if entry.root_count() > 0 {
                tracing::debug!(line = &*key.reuse_key.lineage, "unused roots are removed");
            }
            discarded.containers.extend(entry.ready.drain(..));
            discarded.roots.append(&mut entry.roots);
            entry.waiting > 0
        });
        next
    }

    /// Discards roots and containers that do not show the node's current mounts, which have the version `mounts_version`.
    pub(super) fn discard_outdated(&mut self, mounts_version: u64, discarded: &mut DiscardedEntries) {
        tracing::debug!("the node's mounts have changed: roots that show other mounts are removed");
        for entry in self.entries.values_mut() {
            discarded.discard_outdated(&mut entry.ready);
            discarded.roots.extend(entry.roots.extract_if(.., |root| root.mounts_version() != mounts_version));
        }
    }

    /// The number of roots, in any state.
    pub(super) fn root_count(&self) -> usize {
        self.entries.values().map(RootCacheEntry::root_count).sum()
    }

    /// The number of ready containers with a reused root.
    pub(super) fn ready_count(&self) -> usize {
        self.entries.values().map(|root_cache_entry| root_cache_entry.ready.len()).sum()
    }
}

impl RootCacheEntry {
    /// The number of roots, in any state.
    fn root_count(&self) -> usize {
        self.roots.len() + self.building + self.ready.len()
    }

    fn is_wanted(&self, now: Instant) -> bool {
        self.paused_until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_change_their_roots_reuse_none_for_a_while() {
        let (mut cache, now) = (RootCache::new(8, Duration::from_secs(3)), Instant::now());
        let key = |line: &str| RootCacheKey {
            spec: ContainerSpec::default(),
            reuse_key: RootReuseKey { lineage: line.into(), fan_out: None },
        };
        let spoil = |root_cache: &mut RootCache, line: &str, now| {
            let error = ContainerError::RootChanged { path: "/".to_owned(), why: "it was changed".to_owned() };
            assert!(!root_cache.finish_rebuild(&key(line), Err(error), now));
        };
        for _ in 0..CHANGED_ROOTS_MAX {
            assert!(cache.record_request(&key("writes"), now));
            spoil(&mut cache, "writes", now);
        }
        assert!(!cache.record_request(&key("writes"), now));
        assert!(cache.record_request(&key("another"), now));
        let later = now + CHANGED_ROOTS_PAUSE;
        assert!(cache.record_request(&key("writes"), later), "after the pause, one root is tried");
        spoil(&mut cache, "writes", later);
        assert!(!cache.record_request(&key("writes"), later), "another changed root begins another pause");
    }
}
