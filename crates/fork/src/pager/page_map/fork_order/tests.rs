//! Tests on a model kernel: two threads that change their memory, one fork, and messages in any order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::ExtentId;
use proptest::prelude::*;

use super::*;
use crate::pager::page_map::test_blocks::{BLOCK_PAGES, block_address, move_message, unmap_message};
use crate::pager::page_map::tests::{Model, PAGES, begin, event, steps};

/// Blocks of each thread, half of which hold data at first. Pages of every other block are installed.
const BLOCKS: u64 = 6;
const THREADS: usize = 2;
/// Maximum number of changes of a thread between a fork and the next quiet time. With three changes a thread can
/// exchange two blocks, which no kernel state shows. A move onto another block counts as two changes: after a move
/// back, the first block is where it was, and the other block is unregistered.
const CHANGES_MAX: usize = 2;

fn block_at(address: u64) -> u64 {
    address / (BLOCK_PAGES * PAGE_SIZE)
}

/// Which blocks are registered, and which data they show.
#[derive(Debug, Clone, Default)]
struct ModelMemory {
    registered: BTreeSet<u64>,
    shown: BTreeMap<u64, u64>,
    /// Blocks that a probe has filled with zeroes.
    filled: RefCell<BTreeSet<u64>>,
    /// Blocks into which the mapping before them has grown.
    grown: BTreeSet<u64>,
}

/// Whether pages of the data that a block shows are installed.
fn is_filled_block(shown: u64) -> bool {
    shown.is_multiple_of(2)
}

impl ForkMapCheck for &ModelMemory {
    type Error = Infallible;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Infallible> {
        Ok(Some(self.registered.contains(&block_at(address))))
    }

    fn is_mapping_start(&mut self, address: u64) -> Result<Option<bool>, Infallible> {
        Ok(Some(!self.grown.contains(&block_at(address))))
    }

    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64> {
        segments.iter().find(|segment| is_filled_block(segment.first_page / BLOCK_PAGES)).map(|segment| segment.start)
    }

    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, Infallible> {
        let block = block_at(address);
        let shown = self.shown.get(&block).filter(|_| self.registered.contains(&block)).copied();
        assert!(shown.is_none_or(is_filled_block), "a probe fills block {block}, whose data must be fetched");
        let is_there = || shown.is_some() || !self.filled.borrow_mut().insert(block);
        Ok(self.registered.contains(&block).then(is_there))
    }
}

impl ModelMemory {
    fn unmap(&mut self, block: u64) {
        self.registered.remove(&block);
        self.shown.remove(&block);
    }

    fn move_block(&mut self, from: u64, to: u64) {
        let shown = self.shown.remove(&from);
        self.unmap(to);
        self.registered.remove(&from);
        self.registered.insert(to);
        shown.map(|shown| self.shown.insert(to, shown));
    }
}

/// A step of the test, skipped if it is not possible. Each block belongs to one thread.
#[derive(Debug, Clone)]
enum ForkStep {
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
    /// A waiting thread continues: its message is read, or its pages are discarded.
    Continue {
        thread: usize,
    },
    Fork,
    ReadFork,
}

fn any_step() -> impl Strategy<Value = ForkStep> {
    let (thread, block) = (0..THREADS, 0..BLOCKS);
    let moves = (thread.clone(), block.clone(), block.clone(), prop::bool::weighted(0.3));
    prop_oneof![
        4 => moves.prop_map(|(thread, from, to, leaves_it_mapped)| ForkStep::Move { thread, from, to, leaves_it_mapped }),
        1 => (thread.clone(), block.clone()).prop_map(|(thread, block)| ForkStep::Unmap { thread, block }),
        1 => (thread.clone(), block).prop_map(|(thread, block)| ForkStep::Discard { thread, block }),
        6 => thread.prop_map(|thread| ForkStep::Continue { thread }),
        1 => Just(ForkStep::Fork),
        1 => Just(ForkStep::ReadFork),
    ]
}

/// A model kernel, and a pager that reads its messages.
#[derive(Default)]
struct ForkScenario {
    memory: ModelMemory,
    /// Messages that threads have not sent yet, and the block that each thread discards afterwards.
    to_tell: [Vec<UffdEvent>; THREADS],
    to_discard: [Option<u64>; THREADS],
    changes: [usize; THREADS],
    /// Threads that have made a hidden change since the last quiet time, that is, a change that no kernel state shows.
    /// Like a thread that forks, they make no change while a fork event is unread.
    has_hidden: [bool; THREADS],
    /// Threads that have moved a block and left its source mapped.
    has_left_mapped: [bool; THREADS],
    /// The memory of the forked process, and the data that may be zero in it. This data was being discarded at the
    /// fork, or was not installed and was discarded before the fork event was read.
    forked: Option<(ModelMemory, BTreeSet<u64>)>,
    map: PageMap,
    recent: Vec<MapChange>,
    doubt: Option<(UnresolvedFork, PageMap)>,
}

impl ForkScenario {
    fn new() -> Self {
        let mut fork_scenario = Self::default();
        for block in (0..THREADS as u64 * BLOCKS).filter(|block| block % BLOCKS < BLOCKS / 2) {
            fork_scenario.memory.registered.insert(block);
            fork_scenario.memory.shown.insert(block, block);
        }
        let segments = fork_scenario.memory.shown.iter().map(|(block, shown)| MapSegment {
            start: block_address(*block),
            end: block_address(block + 1),
            extent: ExtentId(0),
            first_page: shown * BLOCK_PAGES,
        });
        fork_scenario.map = PageMap::from_segments(segments);
        fork_scenario
    }

    /// Whether a thread is in no system call, and may make a change.
    fn is_free(&mut self, thread: usize) -> bool {
        self.is_free_for(thread, 1)
    }

    /// As `is_free`, for several changes.
    fn is_free_for(&mut self, thread: usize, changes: usize) -> bool {
        let is_late = self.forked.is_some();
        if is_late && self.doubt.is_none() && self.has_hidden[thread] {
            return false;
        }
        let is_free = self.to_tell[thread].is_empty()
            && self.to_discard[thread].is_none()
            && (!is_late || self.changes[thread] + changes <= CHANGES_MAX);
        if is_late && is_free {
            self.changes[thread] += changes;
        }
        is_free
    }

    fn apply_step(&mut self, step: &ForkStep) {
        match *step {
            ForkStep::Move { thread, from, to, leaves_it_mapped } => {
                let (from, to) = (thread as u64 * BLOCKS + from, thread as u64 * BLOCKS + to);
                self.relocate(thread, (from, to), leaves_it_mapped);
            }
            ForkStep::Unmap { thread, block } => {
                let block = thread as u64 * BLOCKS + block;
                // A block that is registered again may be the grown preceding mapping.
                let has_come = self.memory.shown.get(&block).copied().is_some_and(is_filled_block);
                if !has_come && self.forked.is_some() && self.doubt.is_none() {
                    return;
                }
                if self.memory.registered.contains(&block) && self.is_free(thread) {
                    self.memory.unmap(block);
                    self.to_tell[thread].push(unmap_message(block));
                }
            }
            ForkStep::Discard { thread, block } => {
                let block = thread as u64 * BLOCKS + block;
                if self.memory.registered.contains(&block) && self.is_free(thread) {
                    self.to_tell[thread]
                        .push(UffdEvent::Remove { start: block_address(block), end: block_address(block + 1) });
                    self.to_discard[thread] = Some(block);
                }
            }
            ForkStep::Continue { thread } => self.continue_thread(thread),
            ForkStep::Fork if self.forked.is_none() => {
                let discarded =
                    self.to_discard.iter().flatten().filter_map(|block| self.memory.shown.get(block).copied());
                let discarded = discarded.collect();
                self.forked = Some((self.memory.clone(), discarded));
            }
            ForkStep::ReadFork if self.forked.is_some() && self.doubt.is_none() => {
                self.doubt = Some((UnresolvedFork::new(0, self.recent.clone()), self.map.clone()));
            }
            ForkStep::Fork | ForkStep::ReadFork => {}
        }
        let is_quiet = self.to_tell.iter().all(Vec::is_empty) && self.forked.is_some() == self.doubt.is_some();
        if is_quiet {
            self.has_hidden = Default::default();
            self.recent.clear();
            self.map.clear_late_events();
        }
    }

    /// Moves a block as mremap(2) does, if messages can show it.
    fn relocate(&mut self, thread: usize, (from, to): (u64, u64), leaves_it_mapped: bool) {
        // If both blocks are registered before and after the move, no kernel state shows where the data is. Such a move
        // must not be in question.
        let forked = self.forked.as_ref().map_or(&self.memory, |(forked, _)| forked);
        let is_over = self.memory.registered.contains(&to) || forked.registered.contains(&to);
        let has_come = self.memory.shown.get(&from).copied().is_some_and(is_filled_block);
        let is_hidden = !has_come && (leaves_it_mapped || is_over);
        // Together with other changes, such a move may look like no change at all.
        let is_alone = !leaves_it_mapped || self.forked.is_none() || self.changes[thread] == 0;
        // If the thread moved a block and left its source mapped, an unmap of the target and a move of another block
        // onto it after the fork look like one call.
        let is_reported = !self.has_left_mapped[thread] || self.forked.is_none();
        if !is_alone || !is_reported || is_hidden && self.forked.is_some() && (leaves_it_mapped || self.doubt.is_none())
        {
            return;
        }
        let changes = 1 + usize::from(self.memory.registered.contains(&to));
        if from != to && self.memory.registered.contains(&from) && self.is_free_for(thread, changes) {
            if self.memory.registered.contains(&to) {
                self.to_tell[thread].push(unmap_message(to));
            }
            self.memory.move_block(from, to);
            self.to_tell[thread].push(move_message(from, to));
            self.has_left_mapped[thread] |= leaves_it_mapped;
            if leaves_it_mapped {
                self.memory.registered.insert(from);
            } else {
                self.to_tell[thread].push(unmap_message(from));
            }
            self.has_hidden[thread] |= is_hidden || leaves_it_mapped;
            while is_hidden && !self.to_tell[thread].is_empty() {
                self.continue_thread(thread);
            }
        }
    }

    fn continue_thread(&mut self, thread: usize) {
        if !self.to_tell[thread].is_empty() {
            let message = self.to_tell[thread].remove(0);
            if let (UffdEvent::Remove { start, .. }, Some((_, zero)), None) = (message, &mut self.forked, &self.doubt) {
                zero.extend(self.memory.shown.get(&block_at(start)).filter(|shown| !is_filled_block(**shown)));
            }
            self.recent.push(MapChange::apply(message, &mut self.map));
            if let Some((doubt, _)) = &mut self.doubt {
                doubt.add_event(message);
            }
        } else if let Some(block) = self.to_discard[thread].take() {
            self.memory.shown.remove(&block);
        }
    }

    /// Reads all messages, resolves the fork, and compares the map with the forked memory.
    fn finish(mut self) {
        self.apply_step(&ForkStep::Fork);
        self.apply_step(&ForkStep::ReadFork);
        for thread in 0..THREADS {
            while !self.to_tell[thread].is_empty() {
                self.continue_thread(thread);
            }
        }
        let ((doubt, map), (memory, discarded)) = (self.doubt.unwrap(), self.forked.unwrap());
        let found = doubt.resolve(&map, &memory).unwrap().unwrap_or(map);
        for block in &memory.registered {
            let right = memory.shown.get(block).copied();
            let shown = found
                .segment_at(block_address(*block))
                .map(|segment| segment.page_at(block_address(*block)) / BLOCK_PAGES);
            let may_be_zero = shown.is_none() && right.is_some_and(|right| discarded.contains(&right));
            assert!(shown == right || may_be_zero, "block {block}: {shown:?}, not {right:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]
    #[test]
    fn a_forked_process_has_the_map_of_its_parent_at_the_fork(steps in prop::collection::vec(any_step(), 0..40)) {
        let mut fork_scenario = ForkScenario::new();
        steps.iter().for_each(|step| fork_scenario.apply_step(step));
        fork_scenario.finish();
    }
}

/// The memory of a process with one thread at its fork. Every second page of the seed was installed, or no page.
struct ForkedMemory<'a> {
    model: &'a Model,
    have_come: bool,
    /// Pages that a probe has filled with zeroes.
    filled: RefCell<BTreeSet<u64>>,
}

impl ForkedMemory<'_> {
    fn is_filled_page(&self, page: u64) -> bool {
        self.have_come && page.is_multiple_of(2)
    }
}

impl ForkMapCheck for ForkedMemory<'_> {
    type Error = Infallible;

    fn is_registered(&mut self, address: u64) -> Result<Option<bool>, Infallible> {
        Ok(Some(self.model.is_registered(address / PAGE_SIZE, 1)))
    }

    fn first_installed(&self, segments: &[MapSegment]) -> Option<u64> {
        let pages = |segment: &MapSegment| (segment.start..segment.end).step_by(PAGE_SIZE as usize);
        let mut pages =
            segments.iter().flat_map(|segment| pages(segment).map(|address| (address, segment.page_at(address))));
        pages.find(|(_, page)| self.is_filled_page(*page)).map(|(address, _)| address)
    }

    fn probe_page(&mut self, address: u64) -> Result<Option<bool>, Infallible> {
        let page = address / PAGE_SIZE;
        let shown = self.model.shown(page).map(|(_, page)| self.is_filled_page(page));
        assert_ne!(shown, Some(false), "a probe fills page {page}, which must be fetched");
        let is_there = || shown == Some(true) || !self.filled.borrow_mut().insert(page);
        Ok(self.model.is_registered(page, 1).then(is_there))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    /// The process is never quiet, so all its changes are in question.
    #[test]
    fn a_single_threaded_process_forks_its_current_map(
        events in prop::collection::vec(event(), 0..8),
        later in prop::collection::vec(event(), 0..4),
        have_come in any::<bool>(),
    ) {
        let (mut map, mut model) = begin();
        let mut before = Vec::new();
        for event in events {
            for (message, now) in steps(&event, &model) {
                before.push(MapChange::apply(message, &mut map));
                model = now;
            }
        }
        let (mut doubt, mut after) = (UnresolvedFork::new(0, before), model.clone());
        for event in later {
            for (message, now) in steps(&event, &after) {
                doubt.add_event(message);
                after = now;
            }
        }
        let found = doubt.resolve(&map, ForkedMemory { model: &model, have_come, filled: RefCell::default() }).unwrap().unwrap_or(map);
        for page in 0..3 * PAGES {
            let address = page * PAGE_SIZE;
            let shown = found.segment_at(address).map(|segment| (segment.extent, segment.page_at(address)));
            prop_assert_eq!(shown, model.shown(page), "page {}", page);
        }
    }
}

/// Resolves a fork with a kernel that has these blocks registered. Returns the blocks that the map shows; `None` if the
/// map is unchanged.
fn resolved_blocks(map: &PageMap, unresolved_fork: &UnresolvedFork, registered: &[u64]) -> Option<Vec<u64>> {
    let memory = ModelMemory { registered: registered.iter().copied().collect(), ..ModelMemory::default() };
    let found = unresolved_fork.resolve(map, &memory).unwrap()?;
    Some(found.segments().map(|segment| block_at(segment.start)).collect())
}

fn map() -> PageMap {
    PageMap::from_segments([MapSegment {
        start: block_address(1),
        end: block_address(2),
        extent: ExtentId(1),
        first_page: BLOCK_PAGES,
    }])
}

#[test]
fn a_fork_is_ordered_with_a_concurrent_move() {
    let mut late = UnresolvedFork::new(0, Vec::new());
    late.add_event(move_message(1, 2));
    assert_eq!(resolved_blocks(&map(), &late, &[2]), Some(vec![2]));
    assert_eq!(resolved_blocks(&map(), &late, &[1]), None);
    let mut moved = map();
    let early = UnresolvedFork::new(0, vec![MapChange::apply(move_message(1, 2), &mut moved)]);
    assert_eq!(resolved_blocks(&moved, &early, &[1]), Some(vec![1]));
    assert_eq!(resolved_blocks(&moved, &early, &[2]), None);
}

#[test]
fn a_move_without_unmap_registers_both_mappings() {
    // MREMAP_DONTUNMAP leaves the source mapped, but empty.
    let mut late = UnresolvedFork::new(0, Vec::new());
    late.add_event(move_message(1, 2));
    assert_eq!(resolved_blocks(&map(), &late, &[1, 2]), Some(vec![2]));
    // Here the target was already registered before the move.
    let mut late = UnresolvedFork::new(0, Vec::new());
    late.add_event(unmap_message(2));
    late.add_event(move_message(1, 2));
    assert_eq!(resolved_blocks(&map(), &late, &[1, 2]), None);
}

#[test]
fn a_move_after_the_fork_is_not_part_of_the_forked_process() {
    let mut late = UnresolvedFork::new(0, Vec::new());
    [move_message(1, 2), unmap_message(1)].into_iter().for_each(|message| late.add_event(message));
    let memory = |grown: &[u64]| ModelMemory {
        registered: [1, 2].into(),
        grown: grown.iter().copied().collect(),
        ..ModelMemory::default()
    };
    let has_moved = |grown: &[u64]| late.resolve(&map(), &memory(grown)).unwrap().is_some();
    assert!(!has_moved(&[2]), "a mapping that begins before the target includes it");
    assert!(has_moved(&[]));
}

#[test]
fn an_unmap_after_the_fork_is_not_part_of_the_forked_process() {
    let mut unmapped = PageMap::from_segments([MapSegment {
        start: block_address(1),
        end: block_address(2),
        extent: ExtentId(1),
        first_page: 0,
    }]);
    let change = MapChange::apply(unmap_message(1), &mut unmapped);
    let early = || UnresolvedFork::new(0, vec![change.clone()]);
    let memory = |registered: &[u64], shown: &[(u64, u64)]| ModelMemory {
        registered: registered.iter().copied().collect(),
        shown: shown.iter().copied().collect(),
        ..ModelMemory::default()
    };
    let has = |memory: &ModelMemory| early().resolve(&unmapped, memory).unwrap().map(|map| map.segments().count());
    assert_eq!(has(&memory(&[1], &[(1, 0)])), Some(1));
    assert_eq!(has(&memory(&[1], &[])), None, "the block was unmapped, and the preceding mapping has grown");
    assert_eq!(has(&memory(&[], &[])), None);
}

#[test]
fn moves_of_the_forked_process_are_followed() {
    let mut map = map();
    let changes = [move_message(1, 2), unmap_message(3)].map(|message| MapChange::apply(message, &mut map));
    assert_eq!(current_address(block_address(1), &changes), Some(block_address(2)));
    assert_eq!(current_address(block_address(2), &changes), None);
    assert_eq!(current_address(block_address(3), &changes), None);
    assert_eq!(current_address(block_address(4), &changes), Some(block_address(4)));
}
