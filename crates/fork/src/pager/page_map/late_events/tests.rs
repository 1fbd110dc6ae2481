//! Tests on a model kernel: threads move, unmap, discard and grow their memory, and reuse ranges as soon as other
//! threads vacate them. Messages are read in any possible order.

use std::collections::{BTreeMap, VecDeque};

use farfork_sys::userfaultfd::UffdEvent;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;
use proptest::prelude::*;

use super::*;
use crate::pager::page_map::PageMap;
use crate::pager::page_map::test_blocks::{BLOCK_PAGES, block_address, move_message, unmap_message};

const BLOCKS: u64 = 8;
/// Number of blocks that show data at first.
const SHOWN: u64 = 5;
const THREADS: usize = 3;

/// A step of a thread or of the pager, skipped if it is not possible.
#[derive(Debug, Clone)]
enum ReorderStep {
    Move {
        thread: usize,
        from: u64,
        to: u64,
        leaves_it_mapped: bool,
    },
    Unmap {
        thread: usize,
        block: u64,
    },
    Discard {
        thread: usize,
        block: u64,
    },
    /// A mapping of the thread grows in place, which is not reported.
    Grow {
        thread: usize,
        block: u64,
    },
    /// The next message of the thread is read, or the pages that it discards are removed.
    Continue {
        thread: usize,
    },
    /// The pager checks whether the kernel has any message.
    PollQuiet,
}

fn any_step() -> impl Strategy<Value = ReorderStep> {
    let (thread, block) = (0..THREADS, 0..BLOCKS);
    let moves = (thread.clone(), block.clone(), block.clone(), prop::bool::weighted(0.2));
    prop_oneof![
        6 => moves.prop_map(|(thread, from, to, leaves_it_mapped)| ReorderStep::Move { thread, from, to, leaves_it_mapped }),
        2 => (thread.clone(), block.clone()).prop_map(|(thread, block)| ReorderStep::Unmap { thread, block }),
        1 => (thread.clone(), block.clone()).prop_map(|(thread, block)| ReorderStep::Discard { thread, block }),
        1 => (thread.clone(), block).prop_map(|(thread, block)| ReorderStep::Grow { thread, block }),
        8 => thread.prop_map(|thread| ReorderStep::Continue { thread }),
        1 => Just(ReorderStep::PollQuiet),
    ]
}

/// A registered block: the thread that owns it, and the data that it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModelBlock {
    owner: usize,
    shown: Option<u64>,
    /// Whether the pager knows of it: it shows data, or its data was discarded.
    is_known: bool,
}

#[derive(Debug, Clone, Copy)]
struct VacatedBlock {
    block: u64,
    was_known: bool,
}

#[derive(Default)]
struct ReorderScenario {
    memory: BTreeMap<u64, ModelBlock>,
    /// Messages that threads have not sent yet, each with the block that it vacates.
    to_tell: [VecDeque<(UffdEvent, Option<VacatedBlock>)>; THREADS],
    to_discard: [Option<u64>; THREADS],
    map: PageMap,
}

impl ReorderScenario {
    fn new() -> Self {
        let mut reorder_scenario = Self::default();
        let blocks = (0..SHOWN)
            .map(|block| (block, ModelBlock { owner: block as usize % THREADS, shown: Some(block), is_known: true }));
        reorder_scenario.memory.extend(blocks);
        reorder_scenario.map = PageMap::from_segments((0..SHOWN).map(|block| MapSegment {
            start: block_address(block),
            end: block_address(block + 1),
            extent: ExtentId(0),
            first_page: block * BLOCK_PAGES,
        }));
        reorder_scenario
    }

    /// Whether a thread is in no system call, and owns the block.
    fn can_change(&self, thread: usize, block: u64) -> bool {
        self.to_tell[thread].is_empty()
            && self.to_discard[thread].is_none()
            && self.memory.get(&block).is_some_and(|known| known.owner == thread)
    }

    /// Whether a thread may vacate a block. It may not while the message that vacated the block before is unread.
    /// Before it vacates a block that the pager does not know, it also waits for the unmap message of an earlier move.
    fn can_leave(&self, thread: usize, block: u64) -> bool {
        let is_known = self.memory.get(&block).is_some_and(|known| known.is_known);
        let is_unmapped = self.to_tell.iter().flatten().any(|(message, _)| *message == unmap_message(block));
        self.can_change(thread, block) && (is_known || !is_unmapped) && !self.is_being_left(block, |_| true)
    }

    /// Whether a thread may move something to a block: its own, or a free one. Excludes blocks with an unread message
    /// about contents that the pager did not know.
    fn can_move_to(&self, thread: usize, block: u64) -> bool {
        let is_free = !self.memory.contains_key(&block);
        let is_unknown = |left: &VacatedBlock| !left.was_known;
        (is_free || self.can_leave(thread, block)) && !self.is_being_left(block, is_unknown)
    }

    fn is_being_left(&self, block: u64, such: impl Fn(&VacatedBlock) -> bool) -> bool {
        self.to_tell.iter().flatten().any(|(_, left)| left.is_some_and(|left| left.block == block && such(&left)))
    }

    fn apply_step(&mut self, step: &ReorderStep) {
        match *step {
            ReorderStep::Move { thread, from, to, leaves_it_mapped } => {
                self.move_block(thread, (from, to), leaves_it_mapped)
            }
            ReorderStep::Unmap { thread, block } if self.can_leave(thread, block) => {
                let was_known = self.memory.remove(&block).is_some_and(|left| left.is_known);
                self.to_tell[thread].push_back((unmap_message(block), Some(VacatedBlock { block, was_known })));
            }
            ReorderStep::Discard { thread, block } if self.can_leave(thread, block) => {
                let discard = UffdEvent::Remove { start: block_address(block), end: block_address(block + 1) };
                self.to_tell[thread].push_back((discard, None));
                self.to_discard[thread] = Some(block);
            }
            ReorderStep::Grow { thread, block }
                if self.to_tell[thread].is_empty() && self.to_discard[thread].is_none() =>
            {
                self.memory.entry(block).or_insert(ModelBlock { owner: thread, shown: None, is_known: false });
            }
            ReorderStep::Continue { thread } => self.continue_thread(thread),
            ReorderStep::PollQuiet => self.poll_quiet(),
            ReorderStep::Unmap { .. } | ReorderStep::Discard { .. } | ReorderStep::Grow { .. } => {}
        }
    }

    fn move_block(&mut self, thread: usize, (from, to): (u64, u64), leaves_it_mapped: bool) {
        let is_free = !self.memory.contains_key(&to);
        if from == to || !self.can_leave(thread, from) || !self.can_move_to(thread, to) {
            return;
        }
        let Some(moved) = self.memory.remove(&from) else { return };
        let queue = &mut self.to_tell[thread];
        queue.extend((!is_free).then(|| (unmap_message(to), None)));
        queue.push_back((move_message(from, to), Some(VacatedBlock { block: from, was_known: moved.is_known })));
        if leaves_it_mapped {
            self.memory.insert(from, ModelBlock { owner: thread, shown: None, is_known: false });
        } else {
            queue.push_back((unmap_message(from), None));
        }
        self.memory.insert(to, moved);
    }

    fn continue_thread(&mut self, thread: usize) {
        if let Some((message, _)) = self.to_tell[thread].pop_front() {
            self.map.apply_event(&message);
        } else if let Some(block) = self.to_discard[thread].take()
            && let Some(known) = self.memory.get_mut(&block)
        {
            known.shown = None;
            known.is_known = true;
        }
    }

    fn poll_quiet(&mut self) {
        if self.to_tell.iter().all(VecDeque::is_empty) {
            self.map.clear_late_events();
        }
    }

    /// Reads all messages, in the order of the threads.
    fn finish(mut self) {
        for thread in 0..THREADS {
            while !self.to_tell[thread].is_empty() || self.to_discard[thread].is_some() {
                self.continue_thread(thread);
            }
        }
        self.poll_quiet();
        for block in 0..BLOCKS {
            let right = self.memory.get(&block).and_then(|known| known.shown);
            let shown = self
                .map
                .segment_at(block_address(block))
                .map(|segment| segment.page_at(block_address(block)) / BLOCK_PAGES);
            assert_eq!(shown, right, "block {block}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn each_address_shows_the_memory_that_was_moved_there_last(steps in prop::collection::vec(any_step(), 0..60)) {
        let mut reorder_scenario = ReorderScenario::new();
        steps.iter().for_each(|step| reorder_scenario.apply_step(step));
        reorder_scenario.finish();
    }
}

/// Applies these messages to a map in which block 0 shows 0 and block 1 shows 1. Returns each mapped block, with the
/// block that it shows.
fn shown_blocks(messages: &[UffdEvent]) -> Vec<(u64, u64)> {
    let segments = [0, 1].map(|block| MapSegment {
        start: block_address(block),
        end: block_address(block + 1),
        extent: ExtentId(0),
        first_page: block * BLOCK_PAGES,
    });
    let mut map = PageMap::from_segments(segments);
    messages.iter().for_each(|message| drop(map.apply_event(message)));
    map.segments().map(|segment| (segment.start / block_address(1), segment.first_page / BLOCK_PAGES)).collect()
}

#[test]
fn a_late_unmap_does_not_remove_memory_that_moved_there() {
    let (leaves, moves_in, late_unmap) = (move_message(0, 2), move_message(1, 0), unmap_message(0));
    for messages in [[leaves, moves_in, late_unmap, unmap_message(1)], [moves_in, leaves, late_unmap, unmap_message(1)]]
    {
        assert_eq!(shown_blocks(&messages), [(0, 1), (2, 0)], "{messages:?}");
    }
    assert_eq!(shown_blocks(&[moves_in, unmap_message(1), unmap_message(0)]), [(0, 1)]);
}

#[test]
fn a_late_unmap_of_a_part_keeps_the_rest() {
    let page = |block: u64, page: u64| block_address(block) + page * PAGE_SIZE;
    let moves_in = UffdEvent::Remap { from: page(1, 0), to: page(0, 1), bytes: 2 * PAGE_SIZE };
    let unmaps = UffdEvent::Unmap { start: page(0, 0), end: page(0, 4) };
    assert_eq!(shown_blocks(&[moves_in, unmaps]), [(0, 1), (1, 1)]);
}
