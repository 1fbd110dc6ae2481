//! The restorer's region in the child: its layout, which `restorer/plan.h` draws, and the choice of its address.
//! The region is in a hole of both the stub's memory map and the child's.

use farfork_wire::PAGE_SIZE;

use super::RestoreError;
use super::plan_layout::{CODE_BYTES_MAX, LEADER_STACK_BYTES, THREAD_STACK_BYTES};

/// The search for a hole proceeds downwards from this address. It is far from heaps, from the mmap(2) area at the top,
/// from Go's arenas and the shadow memory of sanitizers, and above the low 4 GiB.
const SEARCH_TOP: u64 = 0x2000_0000_0000;
/// Free space on both sides, so that neither a stack that grows down nor a heap that grows up reaches the region.
const MARGIN_BYTES: u64 = 1 << 20;

/// The parts of the region, as offsets from its start in bytes. `restorer/plan.h` draws their order.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestorerRegion {
    pub(super) start: u64,
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
    pub(super) filters: u64,
    pub(super) plan: u64,
    pub(super) leader_stack: u64,
    pub(super) thread_stacks: u64,
    pub(super) staging: u64,
    pub(super) scratch: u64,
    /// The barrier page; 0 if there is none.
    pub(super) barrier: u64,
    pub(super) bytes: u64,
}

impl RestorerRegion {
    /// Lays out a region for a plan of `plan_bytes` bytes. [`Self::place`] sets the start.
    pub(super) fn lay_out(
        threads: u64,
        (frame_bytes, filter_bytes): (u64, u64),
        plan_bytes: u64,
        staging_bytes: u64,
        has_barrier: bool,
    ) -> Self {
        let frames = CODE_BYTES_MAX;
        let filters = frames + threads * frame_bytes;
        let plan = (filters + filter_bytes).next_multiple_of(PAGE_SIZE);
        let leader_stack = plan + plan_bytes.next_multiple_of(PAGE_SIZE);
        let thread_stacks = leader_stack + LEADER_STACK_BYTES;
        let staging = thread_stacks + (threads - 1) * THREAD_STACK_BYTES;
        let scratch = staging + staging_bytes;
        Self {
            start: 0,
            frames,
            frame_bytes,
            filters,
            plan,
            leader_stack,
            thread_stacks,
            staging,
            scratch,
            barrier: if has_barrier { scratch + PAGE_SIZE } else { 0 },
            bytes: scratch + PAGE_SIZE * (1 + u64::from(has_barrier)),
        }
    }

    /// Places the region in the highest hole below SEARCH_TOP, at least MARGIN_BYTES away from each range of
    /// `occupied`.
    pub(super) fn place(mut self, occupied: &[(u64, u64)]) -> Result<Self, RestoreError> {
        self.start =
            find_highest_free_range(self.bytes, occupied).ok_or(RestoreError::NoFreeRange { bytes: self.bytes })?;
        Ok(self)
    }

    /// Address of the frame of thread `index`.
    pub(super) fn frame_address(&self, index: usize) -> u64 {
        self.start + self.frames + index as u64 * self.frame_bytes
    }

    /// The stack top of thread `index` (stacks grow down). The leader's stack is separate.
    pub(super) fn stack_top(&self, index: usize) -> u64 {
        match index as u64 {
            0 => self.start + self.leader_stack + LEADER_STACK_BYTES,
            thread => self.start + self.thread_stacks + thread * THREAD_STACK_BYTES,
        }
    }
}

/// Returns the highest free address for `bytes` bytes below SEARCH_TOP, with MARGIN_BYTES on both sides.
pub(super) fn find_highest_free_range(bytes: u64, occupied: &[(u64, u64)]) -> Option<u64> {
    let mut ranges: Vec<(u64, u64)> = occupied.iter().copied().filter(|range| range.0 < SEARCH_TOP).collect();
    ranges.sort_unstable();
    let wanted = bytes + 2 * MARGIN_BYTES;
    let mut top = SEARCH_TOP;
    for (start, end) in ranges.into_iter().rev() {
        if end.saturating_add(wanted) <= top {
            break;
        }
        top = top.min(start);
    }
    // The lowest MiB stays free as well: null pointers plus an offset point into it.
    (top >= wanted + MARGIN_BYTES).then(|| (top - MARGIN_BYTES - bytes) & !(PAGE_SIZE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> RestorerRegion {
        RestorerRegion::lay_out(3, (4096, 0), 10_000, 32_768, false)
    }

    #[test]
    fn parts_of_the_restorer_region_are_consecutive() {
        let r = region();
        assert_eq!(r.plan, CODE_BYTES_MAX + 3 * 4096);
        assert_eq!(r.leader_stack - r.plan, 12_288);
        assert_eq!(r.stack_top(2), r.start + r.staging);
        assert_eq!((r.bytes, r.barrier), (r.scratch + 4096, 0));
        let of_tree = RestorerRegion::lay_out(3, (4096, 0), 10_000, 32_768, true);
        assert_eq!((of_tree.barrier, of_tree.bytes), (r.bytes, r.bytes + 4096));
    }

    #[test]
    fn an_empty_map_places_the_region_at_the_top() {
        let placed = region().place(&[]).unwrap();
        assert!(placed.start + placed.bytes + MARGIN_BYTES <= SEARCH_TOP);
        assert!(placed.start + placed.bytes + MARGIN_BYTES > SEARCH_TOP - 2 * PAGE_SIZE);
    }

    #[test]
    fn the_region_avoids_occupied_addresses() {
        let occupied = [(SEARCH_TOP - (4 << 20), SEARCH_TOP + (1 << 30)), (0x1000, SEARCH_TOP - (5 << 20))];
        let narrow = region();
        // The hole between the two ranges is 1 MiB: too small with the margins. No lower hole is large enough.
        assert!(narrow.place(&occupied).is_err());
        let wider = [(SEARCH_TOP - (4 << 20), SEARCH_TOP + (1 << 30)), (0x1000, SEARCH_TOP - (9 << 20))];
        let placed = region().place(&wider).unwrap();
        assert!(placed.start >= wider[1].1 + MARGIN_BYTES);
        assert!(placed.start + placed.bytes + MARGIN_BYTES <= wider[0].0);
    }
}
