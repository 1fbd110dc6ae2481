//! The page cache: pages of other nodes' seeds, kept on this node so that further children need not fetch them again.
//! `service` looks pages up and inserts them, `slab_allocator` stores them, and `revalidation` selects seeds to remove.
//! A page is found only under its own seed, and only with that seed's token. A seed's pages never change, so a cached
//! page is never stale. Every few seconds the pager asks owners whether they still have a seed; if not, it removes the
//! seed's pages. The cache is in the memory of one pager process: the next pager starts with an empty cache.

pub(super) mod limit;
mod revalidation;
mod service;
mod slab_allocator;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::{Address, SeedKey};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{PAGE_SIZE, SeedId};
use serde::{Deserialize, Serialize};

use super::plan::origin::PageOrigin;

pub use limit::CACHE_BYTES_MAX_DEFAULT;
pub(super) use service::CACHED_SLOTS_PER_ROUND_MAX;
use slab_allocator::{Eviction, Frame, SLAB_PAGES, SlabAllocator};

/// A page of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageKey {
    pub(super) extent: ExtentId,
    pub(super) page: u64,
}

impl From<PageOrigin> for PageKey {
    fn from(PageOrigin { extent, page, source: _ }: PageOrigin) -> Self {
        Self { extent, page }
    }
}

/// The size of a cache, and its counters since the pager started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// The size limit in bytes.
    pub bytes_max: u64,
    /// Bytes of memory in use.
    pub bytes: u64,
    /// Pages in the cache.
    pub pages: u64,
    /// Seeds with pages in the cache.
    pub seeds: u64,
    /// Pages that children got from the cache.
    pub hits: u64,
    /// Pages that children requested and that were not in the cache.
    pub misses: u64,
    /// Pages that were evicted to make room for others.
    pub evictions: u64,
}

/// A seed's part of the cache.
#[derive(Debug)]
struct CachedSeed {
    key: Arc<SeedKey>,
    owner: Address,
    frames: HashMap<PageKey, Frame>,
    slabs: Vec<u32>,
    /// The slab that is being filled.
    filling_slab: Option<u32>,
    /// Whether all children of the seed use the cached pages, whatever their strategy.
    is_shared: bool,
    used_at: Instant,
    /// When the owner last confirmed that it has the seed, or sent a page of the seed.
    checked_at: Instant,
    /// When the owner was last asked whether it has the seed.
    check_sent_at: Instant,
}

/// The page cache of a node.
///
/// ```text
///  first child ── miss ──▶ owner ── page ──┬─▶ first child
///                                          ▼
///                        seed → (extent, page) → frame → slab       one arena, never longer than the limit
///                                          │
///  next child ──── hit ◀───────────────────┘ UFFDIO_COPY from the arena; no byte crosses the network
/// ```
#[derive(Debug)]
pub(super) struct PageCache {
    slabs: SlabAllocator,
    seeds: BTreeMap<SeedId, CachedSeed>,
    counts: CacheStats,
}

impl PageCache {
    /// Creates an empty cache of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { slabs: SlabAllocator::new(bytes_max), seeds: BTreeMap::new(), counts: CacheStats::default() }
    }

    /// Sets the size limit. If the limit changes, empties the cache.
    pub(super) fn set_limit(&mut self, bytes_max: u64) {
        let slabs = SlabAllocator::new(bytes_max);
        if slabs.bytes_max() != self.slabs.bytes_max() {
            self.slabs = slabs;
            self.seeds.clear();
        }
    }

    /// Marks a seed as shared: all its children use the cached pages, whatever their strategy.
    pub(super) fn share_seed(&mut self, key: &Arc<SeedKey>, owner: &Address, now: Instant) {
        if let Some(seed) = self.seed_entry(key, owner, now) {
            seed.is_shared = true;
        }
    }

    /// Whether the cache has a page, and the key has the token of its seed.
    pub(super) fn contains(&self, key: &SeedKey, extent: ExtentId, page: u64) -> bool {
        let seed = self.seeds.get(&key.seed).filter(|seed| seed.key.token == key.token);
        seed.is_some_and(|seed| seed.frames.contains_key(&PageKey { extent, page }))
    }

    /// Whether children of a seed use its pages, whatever their strategy.
    pub(super) fn is_shared(&self, seed: &SeedId) -> bool {
        self.seeds.get(seed).is_some_and(|seed| seed.is_shared)
    }

    /// Stores consecutive pages of a seed, from `first` on, that its owner sent. Pages that are already cached are kept.
    pub(super) fn insert(&mut self, key: &Arc<SeedKey>, owner: &Address, first: PageKey, data: &[u8], now: Instant) {
        for (page, data) in (first.page..).zip(data.chunks_exact(PAGE_SIZE as usize)) {
            let page = PageKey { page, ..first };
            let Some(seed) = self.seed_entry(key, owner, now) else { return };
            seed.checked_at = now;
            if seed.frames.contains_key(&page) {
                continue;
            }
            let Some(slab) = self.slab_with_room(key) else { return };
            let frame = self.slabs.write_page(slab, page, data);
            if let Some(seed) = self.seeds.get_mut(&key.seed) {
                seed.frames.insert(page, frame);
            }
        }
    }

    /// Returns the bytes of a page, and of the next pages as far as they are adjacent in the cache; at most `count`
    /// pages. Empty if the page is not cached, or if the token of `key` is wrong.
    pub(super) fn get(&mut self, key: &SeedKey, extent: ExtentId, page: u64, count: u64, now: Instant) -> &[u8] {
        let found = self.seeds.get_mut(&key.seed).filter(|seed| seed.key.token == key.token);
        let first = found.and_then(|seed| {
            seed.used_at = now;
            Some((seed.frames.get(&PageKey { extent, page }).copied()?, &seed.frames))
        });
        let Some((first, frames)) = first else {
            return &[];
        };
        // Only pages of one slab: the next slab may belong to another seed.
        let room = (SLAB_PAGES as u32 - first % SLAB_PAGES as u32).min(count as u32);
        let is_next = |ahead: &u32| {
            let page = PageKey { extent, page: page + u64::from(*ahead) };
            frames.get(&page) == Some(&(first + ahead))
        };
        let pages = (1..room).take_while(is_next).count() as u32 + 1;
        self.counts.hits += u64::from(pages);
        self.slabs.touch(first);
        self.slabs.frame_bytes(first..first + pages)
    }

    /// Counts pages that were requested and are not cached.
    pub(super) fn count_misses(&mut self, pages: u64) {
        self.counts.misses += pages;
    }

    /// Removes a seed, and releases the memory of its pages.
    pub(super) fn remove_seed(&mut self, seed: &SeedId) {
        if let Some(seed) = self.seeds.remove(seed) {
            seed.slabs.into_iter().for_each(|slab| self.slabs.release(slab));
        }
    }

    /// Returns the current size and the counters.
    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            bytes_max: self.slabs.bytes_max() as u64,
            bytes: self.slabs.bytes_used() as u64,
            pages: self.seeds.values().map(|seed| seed.frames.len() as u64).sum(),
            seeds: self.seeds.values().filter(|seed| !seed.frames.is_empty()).count() as u64,
            ..self.counts
        }
    }

    /// Returns the entry of a seed; creates it if it is missing. `None` if the entry was created with another token.
    fn seed_entry(&mut self, key: &Arc<SeedKey>, owner: &Address, now: Instant) -> Option<&mut CachedSeed> {
        if !self.seeds.contains_key(&key.seed) {
            let (key, owner, frames, slabs) = (key.clone(), owner.clone(), HashMap::new(), Vec::new());
            let seed = CachedSeed {
                key,
                owner,
                frames,
                slabs,
                filling_slab: None,
                is_shared: false,
                used_at: now,
                checked_at: now,
                check_sent_at: now,
            };
            self.seeds.insert(seed.key.seed.clone(), seed);
        }
        let seed = self.seeds.get_mut(&key.seed)?;
        seed.used_at = now;
        (seed.key.token == key.token).then_some(seed)
    }

    /// Returns the slab for the seed's next page. Allocates a slab if needed.
    fn slab_with_room(&mut self, key: &Arc<SeedKey>) -> Option<u32> {
        let filling_slab = self.seeds.get(&key.seed)?.filling_slab;
        if let Some(filling_slab) = filling_slab.filter(|filling_slab| self.slabs.free_pages(*filling_slab) > 0) {
            return Some(filling_slab);
        }
        let allocated = self.slabs.allocate(key).unwrap_or_else(|error| {
            tracing::warn!(
                "the page cache cannot reserve its memory: {error}; lower its limit with `farfork node --cache`"
            );
            None
        });
        let (slab, eviction) = allocated?;
        if let Some(eviction) = eviction {
            self.apply_eviction(eviction);
        }
        let seed = self.seeds.get_mut(&key.seed)?;
        seed.slabs.push(slab);
        seed.filling_slab = Some(slab);
        Some(slab)
    }

    fn apply_eviction(&mut self, eviction: Eviction) {
        let Eviction { seed: key, slab, pages } = eviction;
        let Some(seed) = self.seeds.get_mut(&key.seed) else { return };
        self.counts.evictions += pages.len() as u64;
        for page in pages {
            seed.frames.remove(&page);
        }
        seed.slabs.retain(|known| *known != slab);
        seed.filling_slab = seed.filling_slab.filter(|filling| *filling != slab);
    }
}

#[cfg(test)]
mod tests;
