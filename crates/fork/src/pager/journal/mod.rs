//! The journal of a child: a file, mapped shared, from which a new pager continues after another was killed. The kernel
//! reports each change of a memory map once. So read(2) of a userfaultfd writes the messages directly into the journal,
//! and a killed pager loses none. The page maps are those of the plan, or of the snapshot that replaces it, plus the
//! messages in order. `Journal` shows the format; `replay` rebuilds the address spaces.

pub(super) mod counters;
pub(super) mod replay;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farfork_sys::shared_mapping::SharedMapping;
use farfork_sys::userfaultfd::{EVENT_BYTES, UffdEvent, Userfaultfd};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::USER_SPACE_END;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

use super::page_map::MapSegment;
use super::plan::validate_segments;
use counters::{COUNTER_COUNT, PagerCounters};

/// Name of the file in the child's directory.
pub(super) const JOURNAL_FILE: &str = "pager.journal";

/// Maximum number of messages that one read returns: enough for threads that fault at the same time, and few enough to
/// clear quickly.
pub(super) const BATCH_MESSAGES_MAX: usize = 16;

const MAGIC: &[u8; 8] = b"FFJRNL2\n";
const STATE_AT: usize = 8;
const SNAPSHOT_BYTES_AT: usize = 16;
const COUNTERS_AT: usize = 24;
const HEADER_BYTES: usize = 160;

const _: () = assert!(COUNTERS_AT + 8 * COUNTER_COUNT <= HEADER_BYTES);

/// Number of records in a journal: 16 KiB with the header. Writing a snapshot after about five hundred changes is
/// cheap.
const RECORDS_MAX: usize = 507;
/// When fewer records than this are free, a snapshot is written as soon as it can be complete. While one thread is late
/// to report a change, far fewer records than this are added.
const SPARE_RECORDS: usize = 128;
const MAPPED_BYTES: usize = HEADER_BYTES + RECORDS_MAX * EVENT_BYTES;

/// Maximum number of address spaces of one child over its lifetime. With one fork per microsecond, this limit would be
/// reached after half an hour.
const SPACES_MAX: AddressSpaceId = 1 << 31;

const RECORD_BATCH: u8 = 0x01;
const RECORD_SPACE_CLOSED: u8 = 0x02;
const RECORD_UFFD_ARRIVED: u8 = 0x03;
const RECORD_STUB_QUEUE: u8 = 0x04;

/// The number of an address space within its child. The child's own processes have the first numbers.
pub(super) type AddressSpaceId = u32;

/// The progress of a child's adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdoptionState {
    /// At least one of the child's userfaultfds has not arrived. It is expected on this socket.
    AwaitingUffd {
        /// The number of the socket in the shared descriptor table.
        socket: RawFd,
    },
    /// All userfaultfds have arrived.
    Active {
        /// The number of the first process's userfaultfd in the shared descriptor table.
        uffd: RawFd,
    },
}

/// A record of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalRecord {
    /// The kernel reported this message about an address space.
    Message(AddressSpaceId, UffdEvent),
    /// An address space was closed.
    SpaceClosed(AddressSpaceId),
    /// The userfaultfd of one of the child's own processes has arrived, and has this descriptor number.
    UffdArrived(AddressSpaceId, RawFd),
    /// The queue of the child's stub has arrived, and has this descriptor number.
    StubQueue(RawFd),
}

/// All address spaces of a child at the time of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalSnapshot {
    /// The address spaces that exist.
    pub(super) spaces: Vec<AddressSpaceSnapshot>,
    /// The number of the next address space.
    pub(super) next_space: AddressSpaceId,
}

/// An address space at the time of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AddressSpaceSnapshot {
    /// Its number.
    pub(super) id: AddressSpaceId,
    /// The number of its userfaultfd in the shared descriptor table.
    pub(super) uffd: RawFd,
    /// Its page map.
    pub(super) segments: Vec<MapSegment>,
}

/// The contents of a journal.
#[derive(Debug)]
pub(super) struct JournalContents {
    /// How far the adoption of the child has got.
    pub(super) state: AdoptionState,
    /// Counters of the pager's work for the child.
    pub(super) counters: PagerCounters,
    /// The snapshot that replaces the plan, if there is one.
    pub(super) snapshot: Option<JournalSnapshot>,
    /// The records after the snapshot or the plan, in order.
    pub(super) records: Vec<JournalRecord>,
}

impl JournalContents {
    /// Returns the descriptor number of the stub's queue, if the queue has arrived.
    pub(super) fn stub_queue(&self) -> Option<RawFd> {
        self.records.iter().rev().find_map(|record| match record {
            JournalRecord::StubQueue(number) => Some(*number),
            _ => None,
        })
    }
}

/// A journal that is being written.
///
/// ```text
///  pager.journal, mode 0600, in the machine's byte order: it never leaves the machine
///  0          8           16                24                                HEADER_BYTES
///  ┌──────────┬───────────┬─────────────────┬─────────────────────┬───────────┐
///  │ FFJRNL2\n│ state u32 │ snapshot length │ counters, u64 each  │ 0 …       │
///  │          │ number u32│ u64             │                     │           │
///  ├──────────┴───────────┴─────────────────┴─────────────────────┴───────────┤
///  │ RECORDS_MAX × 32 bytes; a record that begins with 0 is the end           │
///  ├──────────────────────────────────────────────────────────────────────────┤
///  │ snapshot (postcard)                                                      │
///  └──────────────────────────────────────────────────────────────────────────┘
///
///  record   0x01 0 0 0 space u32 0 …      the messages that follow were read from this space's userfaultfd
///           0x02 0 0 0 space u32 0 …      this space is closed
///           0x03 0 0 0 space u32 fd u64   the child's own space, one of several, has the userfaultfd of this number
///           0x04 0 0 0 0         fd u64   the queue that the child's stub holds has this number
///           0x12 … 0x16                   a message, as the kernel wrote it (farfork_sys::userfaultfd)
/// ```
///
/// All bytes after the last record are zero, so the journal is valid even if the pager is killed in the middle of a
/// read. Page fault messages are not kept: a new pager makes every waiting thread fault again. A full journal is
/// replaced, by rename(2), by one that begins with a snapshot. Memory for all records is reserved when the file is
/// created.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    mapping: SharedMapping,
    /// Index of the first free record.
    end: usize,
    /// The descriptor number of the stub's queue.
    stub_queue: Option<RawFd>,
}

impl Journal {
    /// Creates an empty journal in the child's directory.
    ///
    /// # Errors
    /// As open(2), fallocate(2), rename(2).
    pub(super) fn create(dir: &Path, state: AdoptionState) -> io::Result<Self> {
        Self::create_file(dir, state, PagerCounters::default(), &[])
    }

    /// Creates a journal that begins with a snapshot.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_with_snapshot(
        dir: &Path,
        state: AdoptionState,
        snapshot: &JournalSnapshot,
    ) -> io::Result<Self> {
        Self::create_file(dir, state, PagerCounters::default(), &encode_snapshot(snapshot)?)
    }

    /// Opens the journal in the child's directory. Returns it, to append records, and its contents.
    ///
    /// # Errors
    /// As open(2); `InvalidData` for a file of another format.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, JournalContents)> {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(JOURNAL_FILE))?;
        let mapping = SharedMapping::map_file(&file, MAPPED_BYTES)?;
        let mut magic = [0; MAGIC.len()];
        mapping.load(0, &mut magic);
        if magic != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal has another format"));
        }
        let snapshot = read_snapshot(&file, mapping.load_u64(SNAPSHOT_BYTES_AT))?;
        let (records, end) = read_records(&mapping);
        let is_wrong =
            |record: &JournalRecord| matches!(record, JournalRecord::Message(_, message) if !is_valid_message(message));
        if records.iter().any(is_wrong) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the journal has an event with an invalid address range",
            ));
        }
        let contents =
            JournalContents { state: load_state(&mapping)?, counters: load_counters(&mapping), snapshot, records };
        let queue = contents.stub_queue();
        Ok((Self { dir: dir.to_owned(), mapping, end, stub_queue: queue }, contents))
    }

    /// Records the progress of the adoption, in one store.
    pub(super) fn set_state(&mut self, state: AdoptionState) {
        self.mapping.store_u64(STATE_AT, encode_state(state));
    }

    /// Records the counters of the pager's work for the child.
    pub(super) fn set_counters(&mut self, counters: &PagerCounters) {
        for (index, number) in counters.to_words().into_iter().enumerate() {
            self.mapping.store_u64(COUNTERS_AT + 8 * index, number);
        }
    }

    /// Whether the journal must be replaced by a snapshot: it is full, or nearly full and `tells_all` returns that a
    /// snapshot can be complete now.
    pub(super) fn needs_compaction(&self, tells_all: impl FnOnce() -> bool) -> bool {
        self.is_full() || self.end + SPARE_RECORDS > RECORDS_MAX && tells_all()
    }

    /// Whether there may be no room for the next read or record.
    fn is_full(&self) -> bool {
        self.end + 1 + BATCH_MESSAGES_MAX > RECORDS_MAX
    }

    /// Replaces the file by one that begins with this snapshot.
    ///
    /// # Errors
    /// As [`Self::create`]; the journal is then unchanged.
    pub(super) fn compact(&mut self, state: AdoptionState, snapshot: &JournalSnapshot) -> io::Result<()> {
        let queue = self.stub_queue;
        *self = Self::create_file(&self.dir, state, load_counters(&self.mapping), &encode_snapshot(snapshot)?)?;
        queue.into_iter().for_each(|queue| self.record_stub_queue(queue));
        Ok(())
    }

    /// Records the descriptor number of the stub's queue.
    pub(super) fn record_stub_queue(&mut self, number: RawFd) {
        self.stub_queue = Some(number);
        self.append_descriptor_record(RECORD_STUB_QUEUE, 0, number);
    }

    /// Reads at most [`BATCH_MESSAGES_MAX`] messages of an address space into `messages`. The events among them stay in
    /// the journal; page faults do not. A journal that is [full](Self::is_full) overwrites its last batch.
    ///
    /// # Errors
    /// As [`Userfaultfd::read_events`].
    pub(super) fn read_messages(
        &mut self,
        space: AddressSpaceId,
        uffd: &Userfaultfd,
        messages: &mut Vec<UffdEvent>,
    ) -> io::Result<()> {
        if self.is_full() {
            self.clear_records(RECORDS_MAX - 1 - BATCH_MESSAGES_MAX, RECORDS_MAX);
            self.end = RECORDS_MAX - 1 - BATCH_MESSAGES_MAX;
        }
        let first = self.end + 1;
        // Touch the page of the last record, so that the read(2) below does not fault on it.
        self.mapping.store_u64(record_offset(first + BATCH_MESSAGES_MAX - 1), 0);
        self.mapping.store(record_offset(self.end), &encode_record_tag(RECORD_BATCH, space));
        let read = uffd.read_events(&self.mapping, record_offset(first), BATCH_MESSAGES_MAX);
        let count = *read.as_ref().unwrap_or(&0);
        let mut kept_end = self.end;
        for index in first..first + count {
            let mut bytes = [0; EVENT_BYTES];
            self.mapping.load(record_offset(index), &mut bytes);
            let Some(message) = UffdEvent::parse(&bytes) else { continue };
            if !matches!(message, UffdEvent::Fault { .. }) {
                kept_end = index + 1;
            }
            messages.push(message);
        }
        self.clear_records(kept_end, first + count);
        self.end = kept_end;
        read.map(|_| ())
    }

    /// Records that an address space is closed.
    pub(super) fn record_space_closed(&mut self, space: AddressSpaceId) {
        if self.end < RECORDS_MAX {
            self.mapping.store(record_offset(self.end), &encode_record_tag(RECORD_SPACE_CLOSED, space));
            self.end += 1;
        }
    }

    /// Records the userfaultfd of one of the child's own processes. A child has fewer own processes than the journal
    /// has records.
    pub(super) fn record_uffd_arrived(&mut self, space: AddressSpaceId, uffd: RawFd) {
        self.append_descriptor_record(RECORD_UFFD_ARRIVED, space, uffd);
    }

    fn append_descriptor_record(&mut self, kind: u8, space: AddressSpaceId, number: RawFd) {
        if self.end < RECORDS_MAX {
            // Write the kind last: a record whose first word is zero does not exist.
            self.mapping.store_u64(record_offset(self.end) + 8, u64::from(number as u32));
            self.mapping.store(record_offset(self.end), &encode_record_tag(kind, space));
            self.end += 1;
        }
    }

    /// Clears records from the last to the first, so that at no time a record follows a cleared one.
    fn clear_records(&mut self, first: usize, end: usize) {
        for index in (first..end).rev() {
            for word in 0..EVENT_BYTES / 8 {
                self.mapping.store_u64(record_offset(index) + 8 * word, 0);
            }
        }
    }

    fn create_file(dir: &Path, state: AdoptionState, counters: PagerCounters, snapshot: &[u8]) -> io::Result<Self> {
        let temp_path = dir.join("pager.journal.new");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&temp_path)?;
        // Reserve the memory: without it, a later store to the mapping could raise SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, MAPPED_BYTES as u64)?;
        file.write_all_at(snapshot, MAPPED_BYTES as u64)?;
        let mapping = SharedMapping::map_file(&file, MAPPED_BYTES)?;
        let mut journal = Self { dir: dir.to_owned(), mapping, end: 0, stub_queue: None };
        journal.mapping.store(0, MAGIC);
        journal.mapping.store_u64(SNAPSHOT_BYTES_AT, snapshot.len() as u64);
        journal.set_state(state);
        journal.set_counters(&counters);
        fs::rename(temp_path, dir.join(JOURNAL_FILE))?;
        Ok(journal)
    }
}

fn encode_snapshot(snapshot: &JournalSnapshot) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(snapshot).map_err(io::Error::other)
}

fn record_offset(index: usize) -> usize {
    HEADER_BYTES + index * EVENT_BYTES
}

fn encode_record_tag(kind: u8, space: AddressSpaceId) -> [u8; 8] {
    let [a, b, c, d] = space.to_ne_bytes();
    [kind, 0, 0, 0, a, b, c, d]
}

fn encode_state(state: AdoptionState) -> u64 {
    match state {
        AdoptionState::AwaitingUffd { socket } => u64::from(socket as u32) << 32 | 1,
        AdoptionState::Active { uffd } => u64::from(uffd as u32) << 32 | 2,
    }
}

fn load_state(mapping: &SharedMapping) -> io::Result<AdoptionState> {
    let word = mapping.load_u64(STATE_AT);
    let number = (word >> 32) as RawFd;
    match word as u32 {
        1 => Ok(AdoptionState::AwaitingUffd { socket: number }),
        2 => Ok(AdoptionState::Active { uffd: number }),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the journal is in state {other}"))),
    }
}

fn load_counters(mapping: &SharedMapping) -> PagerCounters {
    PagerCounters::from_words(std::array::from_fn(|index| mapping.load_u64(COUNTERS_AT + 8 * index)))
}

/// Returns the bytes of a journal with this snapshot, and these bytes after the magic. The rest is zero.
pub(super) fn build_file(snapshot: &[u8], after_magic: &[u8]) -> Vec<u8> {
    let mut bytes = [MAGIC, after_magic].concat();
    bytes.resize(MAPPED_BYTES, 0);
    bytes[SNAPSHOT_BYTES_AT..SNAPSHOT_BYTES_AT + 8].copy_from_slice(&(snapshot.len() as u64).to_ne_bytes());
    [&bytes, snapshot].concat()
}

fn read_snapshot(file: &File, bytes: u64) -> io::Result<Option<JournalSnapshot>> {
    if bytes == 0 {
        return Ok(None);
    }
    if MAPPED_BYTES as u64 + bytes != file.metadata()?.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal's snapshot is truncated"));
    }
    let mut encoded = vec![0; bytes as usize];
    file.read_exact_at(&mut encoded, MAPPED_BYTES as u64)?;
    let snapshot: JournalSnapshot = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    snapshot.spaces.iter().try_for_each(|address_space| validate_segments(&address_space.segments)).map_err(invalid)?;
    if snapshot.next_space > SPACES_MAX {
        return Err(invalid(format!(
            "the journal's next address space number {} exceeds the limit",
            snapshot.next_space
        )));
    }
    Ok(Some(snapshot))
}

/// Whether a message's range consists of whole pages of user space. The kernel writes no other messages. In a damaged
/// journal, others would cause overflows that crash this pager and each next one.
fn is_valid_message(message: &UffdEvent) -> bool {
    let is_range = |start: u64, end: u64| {
        start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE) && start <= end && end <= USER_SPACE_END
    };
    match *message {
        UffdEvent::Fault { .. } | UffdEvent::Fork { .. } => true,
        UffdEvent::Remove { start, end } | UffdEvent::Unmap { start, end } => is_range(start, end),
        UffdEvent::Remap { from, to, bytes } => {
            let ends = from.checked_add(bytes).zip(to.checked_add(bytes));
            ends.is_some_and(|(from_end, to_end)| is_range(from, from_end) && is_range(to, to_end))
        }
    }
}

/// Returns all records, and the index of the first free record.
fn read_records(mapping: &SharedMapping) -> (Vec<JournalRecord>, usize) {
    let mut records = Vec::new();
    let mut space = 0;
    for index in 0..RECORDS_MAX {
        let mut bytes = [0; EVENT_BYTES];
        mapping.load(record_offset(index), &mut bytes);
        let number = AddressSpaceId::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            0 => return (records, index),
            RECORD_BATCH => space = number,
            RECORD_SPACE_CLOSED => records.push(JournalRecord::SpaceClosed(number)),
            RECORD_UFFD_ARRIVED => {
                let uffd = mapping.load_u64(record_offset(index) + 8);
                records.push(JournalRecord::UffdArrived(number, uffd as RawFd));
            }
            RECORD_STUB_QUEUE => {
                records.push(JournalRecord::StubQueue(mapping.load_u64(record_offset(index) + 8) as RawFd))
            }
            _ => records.extend(
                UffdEvent::parse(&bytes)
                    .filter(|message| !matches!(message, UffdEvent::Fault { .. }))
                    .map(|message| JournalRecord::Message(space, message)),
            ),
        }
    }
    (records, RECORDS_MAX)
}

#[cfg(test)]
mod tests;
