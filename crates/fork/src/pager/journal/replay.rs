//! Rebuilds the address spaces that the previous pager served from its journal: the plan, or the snapshot that replaces
//! it, and then all records in order. Pure.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use farfork_sys::userfaultfd::UffdEvent;

use super::{AddressSpaceId, AdoptionState, JournalContents, JournalRecord, JournalSnapshot};
use crate::pager::page_map::PageMap;

/// Address spaces by number, each with the descriptor number of its userfaultfd, and its page map.
pub(in crate::pager) type ReplayedSpaces = BTreeMap<AddressSpaceId, (RawFd, PageMap)>;

/// The result of a journal's replay.
#[derive(Debug)]
pub(in crate::pager) struct ReplayResult {
    /// The existing address spaces, according to the journal.
    pub(in crate::pager) spaces: ReplayedSpaces,
    /// The number of the next address space.
    pub(in crate::pager) next_space: AddressSpaceId,
}

/// Rebuilds the address spaces of a child from its journal and `plan`, which has a map for each of the child's own
/// processes. A process whose userfaultfd has not arrived has no address space.
pub(in crate::pager) fn replay_journal(contents: JournalContents, plan: &[PageMap]) -> ReplayResult {
    let mut replayed = match (contents.snapshot, contents.state, plan) {
        (Some(snapshot), ..) => replay_snapshot(snapshot),
        (None, AdoptionState::Active { uffd }, [only]) => {
            ReplayResult { spaces: [(0, (uffd, only.clone()))].into(), next_space: 1 }
        }
        // Each of several processes has a record for its userfaultfd.
        (None, ..) => ReplayResult { spaces: ReplayedSpaces::new(), next_space: plan.len() as AddressSpaceId },
    };
    for record in contents.records {
        replayed.apply_record(record, plan);
    }
    replayed
}

fn replay_snapshot(snapshot: JournalSnapshot) -> ReplayResult {
    let spaces =
        snapshot.spaces.into_iter().map(|saved| (saved.id, (saved.uffd, PageMap::from_segments(saved.segments))));
    ReplayResult { spaces: spaces.collect(), next_space: snapshot.next_space }
}

impl ReplayResult {
    fn apply_record(&mut self, record: JournalRecord, plan: &[PageMap]) {
        match record {
            JournalRecord::UffdArrived(space, uffd) => {
                if let Some(map) = plan.get(space as usize) {
                    self.spaces.insert(space, (uffd, map.clone()));
                }
            }
            JournalRecord::SpaceClosed(space) => drop(self.spaces.remove(&space)),
            JournalRecord::StubQueue(_) => {}
            JournalRecord::Message(parent, UffdEvent::Fork { number }) => {
                if let Some((_, map)) = self.spaces.get(&parent) {
                    let mut map = map.clone();
                    // Late messages about the parent's map never arrive on the forked process's userfaultfd.
                    map.clear_late_events();
                    self.spaces.insert(self.next_space, (number, map));
                }
                self.next_space += 1;
            }
            JournalRecord::Message(space, message) => {
                if let Some((_, map)) = self.spaces.get_mut(&space) {
                    map.apply_event(&message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::journal::AddressSpaceSnapshot;
    use crate::pager::journal::counters::PagerCounters;
    use crate::pager::page_map::MapSegment;
    use farfork_wire::descriptor::ExtentId;

    const UNMAP: UffdEvent = UffdEvent::Unmap { start: 0x2000, end: 0x3000 };

    fn map() -> PageMap {
        PageMap::from_segments([MapSegment { start: 0x1000, end: 0x5000, extent: ExtentId(1), first_page: 0 }])
    }

    fn replayed(snapshot: Option<JournalSnapshot>, records: Vec<JournalRecord>) -> Vec<(AddressSpaceId, RawFd, u64)> {
        let (state, counters) = (AdoptionState::Active { uffd: 40 }, PagerCounters::default());
        let replayed = replay_journal(JournalContents { state, counters, snapshot, records }, &[map()]);
        let pages = |map: &PageMap| map.segments().map(MapSegment::pages).sum();
        replayed.spaces.iter().map(|(number, (uffd, map))| (*number, *uffd, pages(map))).collect()
    }

    #[test]
    fn a_forked_address_space_has_the_map_at_its_fork() {
        let fork = |number| JournalRecord::Message(0, UffdEvent::Fork { number });
        let records = vec![
            fork(41),
            JournalRecord::Message(0, UNMAP),
            fork(42),
            JournalRecord::SpaceClosed(0),
            JournalRecord::Message(1, UNMAP),
        ];
        assert_eq!(replayed(None, records), [(1, 41, 3), (2, 42, 3)]);
    }

    #[test]
    fn arriving_userfaultfds_become_address_spaces() {
        let records = vec![
            JournalRecord::UffdArrived(2, 62),
            JournalRecord::Message(2, UNMAP),
            JournalRecord::UffdArrived(0, 60),
            JournalRecord::UffdArrived(9, 1),
        ];
        let replay = |state| {
            let (counters, snapshot) = (PagerCounters::default(), None);
            replay_journal(
                JournalContents { state, counters, snapshot, records: records.clone() },
                &[map(), map(), map()],
            )
        };
        for state in [AdoptionState::AwaitingUffd { socket: 7 }, AdoptionState::Active { uffd: 60 }] {
            let replayed = replay(state);
            let numbers: Vec<_> = replayed.spaces.iter().map(|(number, (uffd, _))| (*number, *uffd)).collect();
            assert_eq!((numbers, replayed.next_space), (vec![(0, 60), (2, 62)], 3));
        }
    }

    #[test]
    fn a_snapshot_replaces_the_plan_and_ids_continue() {
        let segments = vec![MapSegment { start: 0x1000, end: 0x3000, extent: ExtentId(1), first_page: 0 }];
        let snapshot =
            JournalSnapshot { spaces: vec![AddressSpaceSnapshot { id: 7, uffd: 50, segments }], next_space: 9 };
        let records = vec![JournalRecord::Message(7, UffdEvent::Fork { number: 51 }), JournalRecord::Message(7, UNMAP)];
        assert_eq!(replayed(Some(snapshot), records), [(7, 50, 1), (9, 51, 2)]);
    }
}
