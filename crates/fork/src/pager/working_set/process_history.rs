//! Process history: passes the working set of a process's seed to the next seed of the same process. A program that
//! calls functions in children makes a seed for each call. Without the history, the children of each seed would have to
//! learn its set again. In the next seed the same memory may be other pages of other extents, so sets are translated by
//! address.

use std::collections::VecDeque;
use std::sync::Arc;

use farfork_fabric::SeedKey;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::descriptor::{Extent, ExtentId, ExtentSource, Process};
use farfork_wire::{Descriptor, PAGE_SIZE};

use super::{AccessReport, MarkedRun, SET_PAGES_MAX, SharedWorkingSet};

/// Maximum number of processes whose sets are kept. The oldest sets are removed first.
const PROCESSES_TRACKED_MAX: usize = 64;
/// Maximum number of pages of all kept sets.
const HISTORY_PAGES_MAX: u64 = 4 * SET_PAGES_MAX;

/// The working sets of processes that had seeds, the latest last.
#[derive(Debug, Default)]
pub struct ProcessHistory(VecDeque<Arc<ProcessWorkingSet>>);

/// The working set of one process.
#[derive(Debug)]
pub struct ProcessWorkingSet {
    process: ProcessIdentity,
    /// The latest seed of the process, which may have been dropped.
    seed: Arc<SeedKey>,
    layout: ExtentLayout,
    set: Arc<SharedWorkingSet>,
}

impl ProcessHistory {
    /// Adds a new seed of a process. If the process still runs the same program, `set` inherits the set of the previous
    /// seed, whose key is returned.
    pub fn add_seed(
        &mut self,
        process: ProcessIdentity,
        seed: &Arc<SeedKey>,
        descriptor: &Descriptor,
        set: &Arc<SharedWorkingSet>,
    ) -> Option<Arc<SeedKey>> {
        self.insert_seed(process, seed, ExtentLayout::from_descriptor(descriptor), set)
    }

    fn insert_seed(
        &mut self,
        process: ProcessIdentity,
        seed: &Arc<SeedKey>,
        layout: ExtentLayout,
        set: &Arc<SharedWorkingSet>,
    ) -> Option<Arc<SeedKey>> {
        let before = self.0.iter().position(|known| known.process == process).and_then(|index| self.0.remove(index));
        let before = before.filter(|known| known.layout.program == layout.program);
        if let Some(known) = &before {
            set.inherit(known.set.parts().map(|part| layout.translate(&known.layout, &part)));
        }
        self.0.push_back(Arc::new(ProcessWorkingSet { process, seed: seed.clone(), layout, set: set.clone() }));
        let mut pages: u64 = self.0.iter().map(|known| known.set.page_count()).sum();
        while self.0.len() > PROCESSES_TRACKED_MAX || (pages > HISTORY_PAGES_MAX && self.0.len() > 1) {
            pages -= self.0.pop_front().map_or(0, |oldest| oldest.set.page_count());
        }
        before.map(|known| known.seed.clone())
    }

    /// Returns the working set of the seed of a report, even if the seed was dropped before its child ended.
    pub fn find_by_report(&self, report: &AccessReport) -> Option<Arc<ProcessWorkingSet>> {
        let is_meant =
            |known: &&Arc<ProcessWorkingSet>| (&known.seed.seed, &known.seed.token) == (&report.seed, &report.token);
        self.0.iter().find(is_meant).cloned()
    }
}

impl ProcessWorkingSet {
    /// Updates the set by a child's report.
    pub fn apply_report(&self, report: &AccessReport) {
        self.set.apply_report(report, |extent, page| self.layout.contains(extent, page));
    }
}

/// The addresses of a seed's extents in its processes.
#[derive(Debug)]
struct ExtentLayout {
    program: ProgramIdentity,
    /// Locations by extent number; `None` for an extent that is not the memory of one process.
    locations: Vec<Option<ExtentLocation>>,
    ascending: Vec<(ExtentLocation, ExtentId)>,
}

/// Identifies the program of a process by the addresses of its code and its arguments: differs after execve(2).
#[derive(Debug, PartialEq, Eq)]
struct ProgramIdentity([u64; 3]);

/// The process and the address range of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ExtentLocation {
    /// The process's id in its own pid namespace.
    pid: u32,
    address: u64,
    bytes: u64,
}

impl ExtentLayout {
    fn from_descriptor(descriptor: &Descriptor) -> Self {
        let pids: Vec<u32> = descriptor.processes().map(|process| process.pid).collect();
        let location = |extent: &Extent| match extent.source {
            ExtentSource::Template { process, address } => {
                Some(ExtentLocation { pid: *pids.get(process as usize)?, address, bytes: extent.bytes })
            }
            ExtentSource::SharedObject { .. } | ExtentSource::File { .. } => None,
        };
        Self::new(ProgramIdentity::from_process(&descriptor.process), descriptor.extents.iter().map(location).collect())
    }

    fn new(program: ProgramIdentity, locations: Vec<Option<ExtentLocation>>) -> Self {
        let numbered = (0..).map(ExtentId).zip(&locations);
        let mut ascending: Vec<_> = numbered.filter_map(|(extent, location)| Some(((*location)?, extent))).collect();
        ascending.sort_unstable();
        Self { program, locations, ascending }
    }

    fn location(&self, extent: ExtentId) -> Option<ExtentLocation> {
        self.locations.get(extent.0 as usize).copied().flatten()
    }

    fn contains(&self, extent: ExtentId, page: u64) -> bool {
        self.location(extent).is_some_and(|location| page < location.bytes / PAGE_SIZE)
    }

    /// Translates a set of another layout to the pages at the same addresses in this layout.
    fn translate(&self, other: &Self, set: &[MarkedRun]) -> Vec<MarkedRun> {
        let mut pages = Vec::new();
        for run in set {
            let Some(location) = other.location(run.extent) else { continue };
            let begin = location.address + run.first * PAGE_SIZE;
            let range = ExtentLocation { address: begin, bytes: u64::from(run.count) * PAGE_SIZE, ..location };
            pages.extend(self.pages_at(range).map(|(extent, first, count)| MarkedRun { extent, first, count, ..*run }));
        }
        pages
    }

    /// Returns the pages in an address range, as runs of extent, number of the first page, and number of pages.
    fn pages_at(&self, range: ExtentLocation) -> impl Iterator<Item = (ExtentId, u64, u32)> {
        let first = self
            .ascending
            .partition_point(|(location, _)| (location.pid, location.end()) <= (range.pid, range.address));
        let overlapping = self.ascending[first..].iter();
        overlapping.take_while(move |(location, _)| (location.pid, location.address) < (range.pid, range.end())).map(
            move |(location, extent)| {
                let begin = range.address.max(location.address);
                let pages = (range.end().min(location.end()) - begin) / PAGE_SIZE;
                (*extent, (begin - location.address) / PAGE_SIZE, u32::try_from(pages).unwrap_or(u32::MAX))
            },
        )
    }
}

impl ExtentLocation {
    fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

impl ProgramIdentity {
    fn from_process(process: &Process) -> Self {
        Self([process.mm.start_code, process.mm.arg_start, process.mm.arg_end])
    }
}

#[cfg(test)]
mod tests {
    use farfork_wire::Token;

    use super::super::codec::decode_set;
    use super::*;

    const LOADED_AT: u64 = 0x40_0000;

    fn layout(loaded_at: u64, locations: &[(u32, u64, u64)]) -> ExtentLayout {
        let location = |&(pid, page, pages): &(u32, u64, u64)| {
            (pages > 0).then_some(ExtentLocation { pid, address: page * PAGE_SIZE, bytes: pages * PAGE_SIZE })
        };
        ExtentLayout::new(ProgramIdentity([loaded_at, 1, 2]), locations.iter().map(location).collect())
    }

    fn run(extent: u32, first: u64, count: u32, mark: bool) -> MarkedRun {
        MarkedRun { extent: ExtentId(extent), first, count, mark }
    }

    #[test]
    fn recorded_pages_are_found_by_address() {
        let before = layout(LOADED_AT, &[(7, 100, 50), (7, 0, 0), (9, 100, 10)]);
        let set =
            [run(2, 4, 2, true), run(0, 10, 30, false), run(1, 0, 1, false), run(0, 48, 2, false), run(5, 0, 1, false)];
        assert_eq!(before.translate(&before, &set), [set[0], set[1], set[3]], "pages without an address are dropped");
        // One extent has become two with a hole between them, and another extent precedes them.
        let next = layout(LOADED_AT, &[(7, 20, 5), (9, 102, 10), (7, 90, 30), (7, 125, 24)]);
        let there = [run(1, 2, 2, true), run(2, 20, 10, false), run(3, 0, 15, false), run(3, 23, 1, false)];
        assert_eq!(next.translate(&before, &set), there);
    }

    fn key(number: u8) -> Arc<SeedKey> {
        let seed = format!("n1.s{number:016x}").parse().unwrap();
        Arc::new(SeedKey { seed, token: Token::from_bytes([number; 16]) })
    }

    fn report(number: u8, page: u64) -> AccessReport {
        let SeedKey { seed, token } = &*key(number);
        let (seed, token, pages) = (seed.clone(), *token, vec![run(0, page, 1, true)]);
        AccessReport { seed, token, after: None, pages, untouched_trials: Vec::new(), is_last: true }
    }

    /// The set with which the seed of a process begins.
    fn initial_set(history: &mut ProcessHistory, pid: i32, number: u8, layout: ExtentLayout) -> Vec<MarkedRun> {
        let set = Arc::default();
        history.insert_seed(ProcessIdentity { pid, start_ticks: 1 }, &key(number), layout, &set);
        decode_set(&set.encoded_bytes())
    }

    #[test]
    fn the_next_seed_of_a_process_inherits_its_working_set() {
        let (mut history, same) = (ProcessHistory::default(), || layout(LOADED_AT, &[(7, 100, 50)]));
        assert_eq!(initial_set(&mut history, 1, 1, same()), []);
        history.find_by_report(&report(1, 3)).unwrap().apply_report(&report(1, 3));
        assert!(history.find_by_report(&report(2, 4)).is_none());
        assert!(history.find_by_report(&AccessReport { token: Token::from_bytes([9; 16]), ..report(1, 4) }).is_none());
        assert_eq!(initial_set(&mut history, 2, 3, same()), [], "another process");
        assert_eq!(initial_set(&mut history, 1, 4, same()), [run(0, 3, 1, false)]);
        history.find_by_report(&report(4, 7)).unwrap().apply_report(&report(4, 7));
        assert_eq!(
            initial_set(&mut history, 1, 5, same()),
            [run(0, 7, 1, false), run(0, 3, 1, false)],
            "the whole set is inherited"
        );
        assert_eq!(initial_set(&mut history, 1, 6, layout(LOADED_AT + 1, &[(7, 100, 50)])), [], "another program");
        assert_eq!(initial_set(&mut history, 1, 7, same()), []);
    }

    #[test]
    fn the_history_is_bounded() {
        let mut history = ProcessHistory::default();
        for pid in 0..1000 {
            initial_set(&mut history, pid, 1, layout(LOADED_AT, &[(7, 0, 1 << 20)]));
        }
        assert_eq!(history.0.len(), PROCESSES_TRACKED_MAX);
        for known in &history.0 {
            let report = AccessReport { pages: vec![run(0, 0, SET_PAGES_MAX as u32, true)], ..report(1, 0) };
            known.set.apply_report(&report, |_, _| true);
        }
        initial_set(&mut history, 1000, 1, layout(LOADED_AT, &[]));
        assert_eq!(history.0.len() as u64, HISTORY_PAGES_MAX / SET_PAGES_MAX + 1);
    }
}
