//! The slab allocator of the page cache: an arena divided into slabs. A slab belongs to one seed. Pages fill it in the
//! order in which they arrive, so that pages that were requested together are adjacent. When no slab is free, the least
//! recently used slab is taken from its seed. `PageCache` records which page is in which frame.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use farfork_fabric::SeedKey;
use farfork_sys::arena::Arena;
use farfork_wire::PAGE_SIZE;

use super::PageKey;

/// Pages of a slab: 256 KiB. Larger slabs would waste memory for small seeds. Smaller slabs would make the ordering by
/// use expensive compared with the filling.
pub(super) const SLAB_PAGES: usize = 64;

/// Bytes of a slab.
pub(super) const SLAB_BYTES: usize = SLAB_PAGES * PAGE_SIZE as usize;

/// The number of a page's position in the arena: the slab's number times [`SLAB_PAGES`], plus the index in the slab.
pub(super) type Frame = u32;

/// A part of the arena.
#[derive(Debug, Default)]
struct Slab {
    /// The seed that owns the pages; `None` for a free slab.
    seed: Option<Arc<SeedKey>>,
    /// The pages, in the order of their frames.
    pages: Vec<PageKey>,
    /// When the slab was last used, by the clock of [`SlabAllocator`].
    last_used: u64,
}

/// Allocates the slabs of the arena to seeds.
#[derive(Debug, Default)]
pub(super) struct SlabAllocator {
    /// Reserved when the first slab is allocated. The length of the arena is the limit, so the cache can never use more
    /// memory.
    arena: Option<Arena>,
    bytes_max: usize,
    slabs: Vec<Slab>,
    free: Vec<u32>,
    /// The slabs in use, as pairs of last use and slab number, the least recently used first.
    used_by_age: BTreeSet<(u64, u32)>,
    /// Counts allocations: a slab's `last_used` is the value at its last use.
    clock: u64,
}

/// A slab that a seed lost because another seed needed it.
#[derive(Debug)]
pub(super) struct Eviction {
    /// The seed.
    pub(super) seed: Arc<SeedKey>,
    /// The slab.
    pub(super) slab: u32,
    /// Its pages.
    pub(super) pages: Vec<PageKey>,
}

impl SlabAllocator {
    /// Creates an allocator of at most `bytes_max` bytes, without reserving memory.
    pub(super) fn new(bytes_max: u64) -> Self {
        let whole = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SLAB_BYTES * SLAB_BYTES;
        // Frame numbers have 32 bits, enough for 16 TiB.
        let bytes_max = whole.min(u32::MAX as usize * PAGE_SIZE as usize / SLAB_BYTES * SLAB_BYTES);
        Self { bytes_max, ..Self::default() }
    }

    /// The size limit in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of the slabs in use.
    pub(super) fn bytes_used(&self) -> usize {
        self.used_by_age.len() * SLAB_BYTES
    }

    /// Allocates a slab to a seed. Also returns the eviction if another seed lost this slab. `None` if the limit is
    /// below one slab.
    ///
    /// # Errors
    /// As mmap(2), if the arena cannot be reserved.
    pub(super) fn allocate(&mut self, seed: &Arc<SeedKey>) -> io::Result<Option<(u32, Option<Eviction>)>> {
        if self.bytes_max == 0 {
            return Ok(None);
        }
        if self.arena.is_none() {
            self.arena = Some(Arena::reserve(self.bytes_max)?);
            self.slabs.resize_with(self.bytes_max / SLAB_BYTES, Slab::default);
            // `pop` takes the lowest number first, so that the arena is filled in order.
            self.free = (0..self.slabs.len() as u32).rev().collect();
        }
        let eviction = if self.free.is_empty() { self.evict() } else { None };
        let Some(slab) = self.free.pop() else { return Ok(None) };
        self.clock += 1;
        self.slabs[slab as usize] = Slab { seed: Some(seed.clone()), pages: Vec::new(), last_used: self.clock };
        self.used_by_age.insert((self.clock, slab));
        Ok(Some((slab, eviction)))
    }

    fn evict(&mut self) -> Option<Eviction> {
        let (_, slab) = self.used_by_age.pop_first()?;
        let Slab { seed, pages, .. } = std::mem::take(&mut self.slabs[slab as usize]);
        self.free.push(slab);
        Some(Eviction { seed: seed?, slab, pages })
    }

    /// Takes a slab from its seed, and releases its memory.
    pub(super) fn release(&mut self, slab: u32) {
        let known = std::mem::take(&mut self.slabs[slab as usize]);
        self.used_by_age.remove(&(known.last_used, slab));
        self.free.push(slab);
        let start = slab as usize * SLAB_BYTES;
        if let Some(Err(error)) = self.arena.as_mut().map(|arena| arena.release(start..start + SLAB_BYTES)) {
            tracing::warn!("memory of the page cache cannot be released: {error}");
        }
    }

    /// Returns the number of pages for which a slab has room.
    pub(super) fn free_pages(&self, slab: u32) -> usize {
        SLAB_PAGES - self.slabs[slab as usize].pages.len()
    }

    /// Writes a page to a slab that has room.
    pub(super) fn write_page(&mut self, slab: u32, page: PageKey, data: &[u8]) -> Frame {
        let pages = &mut self.slabs[slab as usize].pages;
        let frame = slab * SLAB_PAGES as u32 + pages.len() as u32;
        pages.push(page);
        if let Some(arena) = &mut self.arena {
            arena.write(frame as usize * PAGE_SIZE as usize, data);
        }
        frame
    }

    /// Records that a page was used.
    pub(super) fn touch(&mut self, frame: Frame) {
        let number = frame / SLAB_PAGES as u32;
        let slab = &mut self.slabs[number as usize];
        if slab.last_used != self.clock {
            self.used_by_age.remove(&(slab.last_used, number));
            slab.last_used = self.clock;
            self.used_by_age.insert((self.clock, number));
        }
    }

    /// The bytes of consecutive frames.
    pub(super) fn frame_bytes(&self, frames: Range<Frame>) -> &[u8] {
        let at = |frame: Frame| frame as usize * PAGE_SIZE as usize;
        self.arena.as_ref().map_or(&[], |arena| arena.slice(at(frames.start)..at(frames.end)))
    }
}
