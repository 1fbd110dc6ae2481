//! Tests of the journal: the state that the next pager reads from it.

use super::*;
use farfork_wire::descriptor::ExtentId;

fn encode_message(kind: u8, words: [u64; 3]) -> [u8; EVENT_BYTES] {
    let mut bytes = [0; EVENT_BYTES];
    bytes[0] = kind;
    for (index, word) in words.into_iter().enumerate() {
        bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Writes a batch as a pager leaves it if it is killed directly after read(2).
fn write_unread_batch(journal: &mut Journal, space: AddressSpaceId, messages: &[[u8; EVENT_BYTES]]) {
    journal.mapping.store(record_offset(journal.end), &encode_record_tag(RECORD_BATCH, space));
    for (index, bytes) in messages.iter().enumerate() {
        journal.mapping.store(record_offset(journal.end + 1 + index), bytes);
    }
    journal.end += 1 + messages.len();
}

#[test]
fn a_reopened_journal_has_every_event_but_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), AdoptionState::AwaitingUffd { socket: 9 }).unwrap();
    journal.set_state(AdoptionState::Active { uffd: 12 });
    journal.set_counters(&PagerCounters { faults: 1, zero_pages: 4, ..PagerCounters::default() });
    let remap = encode_message(0x14, [0x1000, 0x5000, 0x1000]);
    write_unread_batch(&mut journal, 3, &[encode_message(0x12, [0, 0x7000, 0]), remap]);
    journal.record_space_closed(3);
    write_unread_batch(&mut journal, 0, &[encode_message(0x16, [0x8000, 0x9000, 0])]);
    let (opened, replay) = Journal::open(dir.path()).unwrap();
    let expected = [
        JournalRecord::Message(3, UffdEvent::Remap { from: 0x1000, to: 0x5000, bytes: 0x1000 }),
        JournalRecord::SpaceClosed(3),
        JournalRecord::Message(0, UffdEvent::Unmap { start: 0x8000, end: 0x9000 }),
    ];
    assert_eq!(replay.records, expected);
    assert_eq!((opened.end, replay.state), (journal.end, AdoptionState::Active { uffd: 12 }));
    assert_eq!(replay.counters.zero_pages, 4);
    assert_eq!(replay.snapshot, None);
}

#[test]
fn a_snapshot_replaces_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), AdoptionState::Active { uffd: 5 }).unwrap();
    while !journal.needs_compaction(|| false) {
        write_unread_batch(&mut journal, 0, &[encode_message(0x15, [0x1000, 0x2000, 0])]);
    }
    let segment = MapSegment { start: 0x1000, end: 0x2000, extent: ExtentId(1), first_page: 0 };
    let space = AddressSpaceSnapshot { id: 7, uffd: 5, segments: vec![segment] };
    let snapshot = JournalSnapshot { spaces: vec![space], next_space: 8 };
    journal.compact(AdoptionState::Active { uffd: 5 }, &snapshot).unwrap();
    journal.record_space_closed(7);
    let (_, replay) = Journal::open(dir.path()).unwrap();
    assert_eq!(replay.snapshot, Some(snapshot));
    assert_eq!(replay.records, [JournalRecord::SpaceClosed(7)]);
}

#[test]
fn a_snapshot_waits_for_unresolved_changes() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), AdoptionState::Active { uffd: 5 }).unwrap();
    let mut changes = 0;
    while !journal.needs_compaction(|| true) {
        write_unread_batch(&mut journal, 0, &[encode_message(0x15, [0x1000, 0x2000, 0])]);
        changes += 1;
    }
    assert!(!journal.needs_compaction(|| false));
    while !journal.needs_compaction(|| false) {
        write_unread_batch(&mut journal, 0, &[encode_message(0x15, [0x1000, 0x2000, 0])]);
    }
    assert_eq!(Journal::open(dir.path()).unwrap().1.records.len(), journal.end / 2);
    assert!(changes > RECORDS_MAX / 3 && journal.end / 2 > changes + BATCH_MESSAGES_MAX);
}

#[test]
fn reading_no_messages_writes_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path(), AdoptionState::Active { uffd: 5 }).unwrap();
    let uffd = Userfaultfd::create().unwrap();
    uffd.enable(farfork_sys::userfaultfd::UffdFeatures::ALL_EVENTS).unwrap();
    let mut messages = Vec::new();
    journal.read_messages(0, &uffd, &mut messages).unwrap();
    assert!(messages.is_empty() && journal.end == 0);
    assert!(Journal::open(dir.path()).unwrap().1.records.is_empty());
}
