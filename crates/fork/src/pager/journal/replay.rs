//! From a journal to the address spaces that a predecessor served: the plan, or the snapshot that stands in for it, and
//! then everything that happened, in order. Pure.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use farfork_sys::userfaultfd::Message;

use super::{Record, Replay, Snapshot, SpaceNumber, State};
use crate::pager::page_map::PageMap;

/// Spaces by number, each with its userfaultfd's number and its map.
pub(in crate::pager) type Spaces = BTreeMap<SpaceNumber, (RawFd, PageMap)>;

/// What a journal led to.
#[derive(Debug)]
pub(in crate::pager) struct Replayed {
    /// The spaces that live, as far as was noted.
    pub(in crate::pager) spaces: Spaces,
    /// The number that the next one gets.
    pub(in crate::pager) next_space: SpaceNumber,
}

/// The spaces of a child with this plan, a map for each of its processes. One whose userfaultfd has not arrived has none.
pub(in crate::pager) fn spaces_of(replay: Replay, plan: &[PageMap]) -> Replayed {
    let mut replayed = match (replay.snapshot, replay.state, plan) {
        (Some(snapshot), ..) => from_snapshot(snapshot),
        (None, State::Active { uffd }, [only]) => {
            Replayed { spaces: [(0, (uffd, only.clone()))].into(), next_space: 1 }
        }
        // Of several each has a record.
        (None, ..) => Replayed { spaces: Spaces::new(), next_space: plan.len() as SpaceNumber },
    };
    for record in replay.records {
        replayed.follow(record, plan);
    }
    replayed
}

fn from_snapshot(snapshot: Snapshot) -> Replayed {
    let spaces = snapshot.spaces.into_iter().map(|space| (space.number, (space.uffd, PageMap::of(space.segments))));
    Replayed { spaces: spaces.collect(), next_space: snapshot.next_space }
}

impl Replayed {
    fn follow(&mut self, record: Record, plan: &[PageMap]) {
        match record {
            Record::Arrived(space, uffd) => {
                if let Some(map) = plan.get(space as usize) {
                    self.spaces.insert(space, (uffd, map.clone()));
                }
            }
            Record::Closed(space) => drop(self.spaces.remove(&space)),
            Record::Queue(_) => {}
            Record::Message(parent, Message::Fork { number }) => {
                if let Some((_, map)) = self.spaces.get(&parent) {
                    let mut map = map.clone();
                    // What its parent was still to tell is told to nobody of the forked process.
                    map.all_was_heard();
                    self.spaces.insert(self.next_space, (number, map));
                }
                self.next_space += 1;
            }
            Record::Message(space, message) => {
                if let Some((_, map)) = self.spaces.get_mut(&space) {
                    map.follow(&message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::journal::SpaceSnapshot;
    use crate::pager::journal::counters::PagerCounters;
    use crate::pager::page_map::Segment;
    use farfork_wire::descriptor::ExtentId;

    const UNMAP: Message = Message::Unmap { start: 0x2000, end: 0x3000 };

    fn map() -> PageMap {
        PageMap::of([Segment { start: 0x1000, end: 0x5000, extent: ExtentId(1), first_page: 0 }])
    }

    fn replayed(snapshot: Option<Snapshot>, records: Vec<Record>) -> Vec<(SpaceNumber, RawFd, u64)> {
        let (state, counters) = (State::Active { uffd: 40 }, PagerCounters::default());
        let replayed = spaces_of(Replay { state, counters, snapshot, records }, &[map()]);
        let pages = |map: &PageMap| map.segments().map(Segment::pages).sum();
        replayed.spaces.iter().map(|(number, (uffd, map))| (*number, *uffd, pages(map))).collect()
    }

    #[test]
    fn a_forked_space_has_the_map_of_that_moment() {
        let fork = |number| Record::Message(0, Message::Fork { number });
        let records = vec![fork(41), Record::Message(0, UNMAP), fork(42), Record::Closed(0), Record::Message(1, UNMAP)];
        assert_eq!(replayed(None, records), [(1, 41, 3), (2, 42, 3)]);
    }

    #[test]
    fn processes_have_spaces_as_they_arrive() {
        let records =
            vec![Record::Arrived(2, 62), Record::Message(2, UNMAP), Record::Arrived(0, 60), Record::Arrived(9, 1)];
        let replay = |state| {
            let (counters, snapshot) = (PagerCounters::default(), None);
            spaces_of(Replay { state, counters, snapshot, records: records.clone() }, &[map(), map(), map()])
        };
        for state in [State::Waiting { socket: 7 }, State::Active { uffd: 60 }] {
            let replayed = replay(state);
            let numbers: Vec<_> = replayed.spaces.iter().map(|(number, (uffd, _))| (*number, *uffd)).collect();
            assert_eq!((numbers, replayed.next_space), (vec![(0, 60), (2, 62)], 3));
        }
    }

    #[test]
    fn a_snapshot_stands_in_for_the_plan_and_numbers_go_on() {
        let segments = vec![Segment { start: 0x1000, end: 0x3000, extent: ExtentId(1), first_page: 0 }];
        let snapshot = Snapshot { spaces: vec![SpaceSnapshot { number: 7, uffd: 50, segments }], next_space: 9 };
        let records = vec![Record::Message(7, Message::Fork { number: 51 }), Record::Message(7, UNMAP)];
        assert_eq!(replayed(Some(snapshot), records), [(7, 50, 1), (9, 51, 2)]);
    }
}
