//! A journal as its next reader finds it.

use super::*;
use farfork_wire::descriptor::ExtentId;

fn message(kind: u8, words: [u64; 3]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = kind;
    for (index, word) in words.into_iter().enumerate() {
        bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Leaves a batch as a pager does that is killed right after its read.
fn leave_batch(journal: &mut Journal, space: SpaceNumber, messages: &[[u8; MESSAGE_BYTES]]) {
    journal.mapping.store(record_at(journal.end), &mark(BATCH, space));
    for (index, bytes) in messages.iter().enumerate() {
        journal.mapping.store(record_at(journal.end + 1 + index), bytes);
    }
    journal.end += 1 + messages.len();
}

#[test]
fn a_successor_sees_every_event_but_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), State::Waiting { socket: 9 }).unwrap();
    journal.set_state(State::Active { uffd: 12 });
    journal.set_counters(&PagerCounters { faults: 1, zero_pages: 4, ..PagerCounters::default() });
    let remap = message(0x14, [0x1000, 0x5000, 0x1000]);
    leave_batch(&mut journal, 3, &[message(0x12, [0, 0x7000, 0]), remap]);
    journal.close_space(3);
    leave_batch(&mut journal, 0, &[message(0x16, [0x8000, 0x9000, 0])]);
    let (opened, replay) = Journal::open(dir.path()).unwrap();
    let expected = [
        Record::Message(3, Message::Remap { from: 0x1000, to: 0x5000, bytes: 0x1000 }),
        Record::Closed(3),
        Record::Message(0, Message::Unmap { start: 0x8000, end: 0x9000 }),
    ];
    assert_eq!(replay.records, expected);
    assert_eq!((opened.end, replay.state), (journal.end, State::Active { uffd: 12 }));
    assert_eq!(replay.counters.zero_pages, 4);
    assert_eq!(replay.snapshot, None);
}

#[test]
fn a_snapshot_takes_the_place_of_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), State::Active { uffd: 5 }).unwrap();
    while !journal.is_due(|| false) {
        leave_batch(&mut journal, 0, &[message(0x15, [0x1000, 0x2000, 0])]);
    }
    let segment = Segment { start: 0x1000, end: 0x2000, extent: ExtentId(1), first_page: 0 };
    let space = SpaceSnapshot { number: 7, uffd: 5, segments: vec![segment] };
    let snapshot = Snapshot { spaces: vec![space], next_space: 8 };
    journal.restart(State::Active { uffd: 5 }, &snapshot).unwrap();
    journal.close_space(7);
    let (_, replay) = Journal::open(dir.path()).unwrap();
    assert_eq!(replay.snapshot, Some(snapshot));
    assert_eq!(replay.records, [Record::Closed(7)]);
}

#[test]
fn a_snapshot_waits_for_what_it_could_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), State::Active { uffd: 5 }).unwrap();
    let mut changes = 0;
    while !journal.is_due(|| true) {
        leave_batch(&mut journal, 0, &[message(0x15, [0x1000, 0x2000, 0])]);
        changes += 1;
    }
    assert!(!journal.is_due(|| false));
    while !journal.is_due(|| false) {
        leave_batch(&mut journal, 0, &[message(0x15, [0x1000, 0x2000, 0])]);
    }
    assert_eq!(Journal::open(dir.path()).unwrap().1.records.len(), journal.end / 2);
    assert!(changes > RECORDS / 3 && journal.end / 2 > changes + BATCH_MESSAGES);
}

#[test]
fn reading_nothing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), State::Active { uffd: 5 }).unwrap();
    let uffd = Userfaultfd::create().unwrap();
    uffd.enable(farfork_sys::userfaultfd::Features::ALL_EVENTS).unwrap();
    let mut messages = Vec::new();
    journal.read(0, &uffd, &mut messages).unwrap();
    assert!(messages.is_empty() && journal.end == 0);
    assert!(Journal::open(dir.path()).unwrap().1.records.is_empty());
}
