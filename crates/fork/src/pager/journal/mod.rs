//! The journal of a child: what a pager must know to go on after another was killed, in a file mapped shared.
//!
//! The kernel tells each change of a memory map once. So messages are read from it straight into the journal, and a
//! killed pager loses none. The memory map is the plan (or the snapshot that stands in for it) plus the messages in
//! order.
//!
//! ```text
//!  pager.journal, mode 0600, in the machine's byte order: it never leaves the machine
//!  0          8           16                24                                HEADER_BYTES
//!  ┌──────────┬───────────┬─────────────────┬─────────────────────┬───────────┐
//!  │ FFJRNL2\n│ state u32 │ snapshot length │ counters, u64 each  │ 0 …       │
//!  │          │ number u32│ u64             │                     │           │
//!  ├──────────┴───────────┴───────────────────────┴─────────────────┴─────────┤
//!  │ RECORDS × 32 bytes; a record that begins with 0 is the end               │
//!  ├──────────────────────────────────────────────────────────────────────────┤
//!  │ snapshot (postcard)                                                      │
//!  └──────────────────────────────────────────────────────────────────────────┘
//!
//!  record   0x01 0 0 0 space u32 0 …      the messages that follow were read from this space's userfaultfd
//!           0x02 0 0 0 space u32 0 …      this space is gone
//!           0x03 0 0 0 space u32 fd u64   this space of the child's own has the userfaultfd of this number, where it has several
//!           0x04 0 0 0 0       fd u64   the queue that the child's stub holds has this number
//!           0x12 … 0x16                   a message, as the kernel wrote it (farfork_sys::userfaultfd)
//! ```
//!
//! Behind the end all is zero, so that whatever prefix of a read a killed pager left is a valid journal. Page faults
//! are cleared away again: a new pager has every waiting thread ask anew. A full journal is replaced, by rename, by
//! one that begins with a snapshot. Memory for all records is reserved when the file is made.

pub(super) mod counters;
pub(super) mod replay;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farfork_sys::mapping::SharedMapping;
use farfork_sys::userfaultfd::{MESSAGE_BYTES, Message, Userfaultfd};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::USER_SPACE_END;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

use super::page_map::Segment;
use super::plan::check_segments;
use counters::{COUNTERS, PagerCounters};

/// Name of the file in the child's directory.
pub(super) const JOURNAL_FILE: &str = "pager.journal";

/// Most messages read at once: the threads of a child that fault together, and little more to clear away.
pub(super) const BATCH_MESSAGES: usize = 16;

const MAGIC: &[u8; 8] = b"FFJRNL2\n";
const STATE_AT: usize = 8;
const SNAPSHOT_BYTES_AT: usize = 16;
const COUNTERS_AT: usize = 24;
const HEADER_BYTES: usize = 160;

const _: () = assert!(COUNTERS_AT + 8 * COUNTERS <= HEADER_BYTES);

/// Records of a journal: with the header 16 KiB. Writing a snapshot after some five hundred changes is cheap.
const RECORDS: usize = 507;
/// Records that are left for a moment in which a snapshot tells all: many more than are heard while one thread is late to tell of a
/// change.
const SPARE_RECORDS: usize = 128;
const MAPPED_BYTES: usize = HEADER_BYTES + RECORDS * MESSAGE_BYTES;

/// Most spaces of one child, over its life: one in a microsecond would take half an hour.
const SPACES_MAX: SpaceNumber = 1 << 31;

const BATCH: u8 = 0x01;
const CLOSED: u8 = 0x02;
const ARRIVED: u8 = 0x03;
const QUEUE: u8 = 0x04;

/// A space's number: an address space among those of one child, the child's own first.
pub(super) type SpaceNumber = u32;

/// How far a child has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its userfaultfd, or the rest of several, is expected on this socket.
    Waiting {
        /// The socket.
        socket: RawFd,
    },
    /// It has a userfaultfd, of this number in the shared table.
    Active {
        /// The userfaultfd.
        uffd: RawFd,
    },
}

/// Something that happened to a child's address spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// The kernel told this of a space.
    Message(SpaceNumber, Message),
    /// A space is gone.
    Closed(SpaceNumber),
    /// The userfaultfd of one of the child's own spaces came, and has this number.
    Arrived(SpaceNumber, RawFd),
    /// The queue that the child's stub holds came, and has this number.
    Queue(RawFd),
}

/// All address spaces of a child at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    /// Those that live.
    pub(super) spaces: Vec<SpaceSnapshot>,
    /// The number that the next one gets.
    pub(super) next_space: SpaceNumber,
}

/// An address space at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpaceSnapshot {
    /// Its number.
    pub(super) number: SpaceNumber,
    /// Its userfaultfd in the shared table.
    pub(super) uffd: RawFd,
    /// Its page map.
    pub(super) segments: Vec<Segment>,
}

/// What a journal says.
#[derive(Debug)]
pub(super) struct Replay {
    /// How far the child has come.
    pub(super) state: State,
    /// What was done for it.
    pub(super) counters: PagerCounters,
    /// What stands in for the plan.
    pub(super) snapshot: Option<Snapshot>,
    /// What happened since, in order.
    pub(super) records: Vec<Record>,
}

impl Replay {
    /// The queue that the child's stub holds, where it is known.
    pub(super) fn queue(&self) -> Option<RawFd> {
        self.records.iter().rev().find_map(|record| match record {
            Record::Queue(number) => Some(*number),
            _ => None,
        })
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    mapping: SharedMapping,
    /// The first free record.
    end: usize,
    /// The queue that the child's stub holds.
    queue: Option<RawFd>,
}

impl Journal {
    /// Makes an empty journal in the child's directory.
    ///
    /// # Errors
    /// As open(2), fallocate(2), rename(2).
    pub(super) fn create(dir: &Path, state: State) -> io::Result<Self> {
        Self::make(dir, state, PagerCounters::default(), &[])
    }

    /// Makes a journal that begins behind a snapshot.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_behind(dir: &Path, state: State, snapshot: &Snapshot) -> io::Result<Self> {
        Self::make(dir, state, PagerCounters::default(), &encoded(snapshot)?)
    }

    /// Reads a journal and goes on with it.
    ///
    /// # Errors
    /// As open(2); `InvalidData` for a file of another format.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, Replay)> {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(JOURNAL_FILE))?;
        let mapping = SharedMapping::of_file(&file, MAPPED_BYTES)?;
        let mut magic = [0; MAGIC.len()];
        mapping.load(0, &mut magic);
        if magic != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal is of another format"));
        }
        let snapshot = read_snapshot(&file, mapping.load_u64(SNAPSHOT_BYTES_AT))?;
        let (records, end) = read_records(&mapping);
        let is_wrong = |record: &Record| matches!(record, Record::Message(_, message) if !is_sensible(message));
        if records.iter().any(is_wrong) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal tells of memory that no process has"));
        }
        let replay = Replay { state: state_of(&mapping)?, counters: counters_of(&mapping), snapshot, records };
        let queue = replay.queue();
        Ok((Self { dir: dir.to_owned(), mapping, end, queue }, replay))
    }

    /// Notes how far the child has come, in one store.
    pub(super) fn set_state(&mut self, state: State) {
        self.mapping.store_u64(STATE_AT, encode_state(state));
    }

    /// Notes what was done for the child.
    pub(super) fn set_counters(&mut self, counters: &PagerCounters) {
        for (index, number) in counters.words().into_iter().enumerate() {
            self.mapping.store_u64(COUNTERS_AT + 8 * index, number);
        }
    }

    /// Whether a snapshot is due: the next read or record may find no room; or soon, and a snapshot that is taken now tells all.
    pub(super) fn is_due(&self, tells_all: impl FnOnce() -> bool) -> bool {
        self.is_full() || self.end + SPARE_RECORDS > RECORDS && tells_all()
    }

    /// Whether the next read or record may find no room.
    fn is_full(&self) -> bool {
        self.end + 1 + BATCH_MESSAGES > RECORDS
    }

    /// Starts anew behind a snapshot of what the journal has led to.
    ///
    /// # Errors
    /// As [`Self::create`]; the journal is then as before.
    pub(super) fn restart(&mut self, state: State, snapshot: &Snapshot) -> io::Result<()> {
        let queue = self.queue;
        *self = Self::make(&self.dir, state, counters_of(&self.mapping), &encoded(snapshot)?)?;
        queue.into_iter().for_each(|queue| self.note_queue(queue));
        Ok(())
    }

    /// Notes the queue that the child's stub holds.
    pub(super) fn note_queue(&mut self, number: RawFd) {
        self.queue = Some(number);
        self.note_descriptor(QUEUE, 0, number);
    }

    /// Reads what the kernel has to tell of a space, at most [`BATCH_MESSAGES`], into `messages`, and keeps the events
    /// among it for a successor. A journal [full](Self::is_full) forgets its last batch for that.
    ///
    /// # Errors
    /// As [`Userfaultfd::read_messages`].
    pub(super) fn read(
        &mut self,
        space: SpaceNumber,
        uffd: &Userfaultfd,
        messages: &mut Vec<Message>,
    ) -> io::Result<()> {
        if self.is_full() {
            self.clear(RECORDS - 1 - BATCH_MESSAGES, RECORDS);
            self.end = RECORDS - 1 - BATCH_MESSAGES;
        }
        let first = self.end + 1;
        // Touched here, the page of the last record will not have to be brought in under the kernel's copy.
        self.mapping.store_u64(record_at(first + BATCH_MESSAGES - 1), 0);
        self.mapping.store(record_at(self.end), &mark(BATCH, space));
        let read = uffd.read_messages(&self.mapping, record_at(first), BATCH_MESSAGES);
        let count = *read.as_ref().unwrap_or(&0);
        let mut keep = self.end;
        for index in first..first + count {
            let mut bytes = [0; MESSAGE_BYTES];
            self.mapping.load(record_at(index), &mut bytes);
            let Some(message) = Message::parse(&bytes) else { continue };
            if !matches!(message, Message::Fault { .. }) {
                keep = index + 1;
            }
            messages.push(message);
        }
        self.clear(keep, first + count);
        self.end = keep;
        read.map(|_| ())
    }

    /// Notes that a space is gone.
    pub(super) fn close_space(&mut self, space: SpaceNumber) {
        if self.end < RECORDS {
            self.mapping.store(record_at(self.end), &mark(CLOSED, space));
            self.end += 1;
        }
    }

    /// Notes that a space of the child's own has a userfaultfd. There are fewer of these than records.
    pub(super) fn open_space(&mut self, space: SpaceNumber, uffd: RawFd) {
        self.note_descriptor(ARRIVED, space, uffd);
    }

    fn note_descriptor(&mut self, kind: u8, space: SpaceNumber, number: RawFd) {
        if self.end < RECORDS {
            // The kind last: until it stands there, nothing does.
            self.mapping.store_u64(record_at(self.end) + 8, u64::from(number as u32));
            self.mapping.store(record_at(self.end), &mark(kind, space));
            self.end += 1;
        }
    }

    /// Clears records, the last first, so that at no moment anything stands behind the end.
    fn clear(&mut self, first: usize, end: usize) {
        for index in (first..end).rev() {
            for word in 0..MESSAGE_BYTES / 8 {
                self.mapping.store_u64(record_at(index) + 8 * word, 0);
            }
        }
    }

    fn make(dir: &Path, state: State, counters: PagerCounters, snapshot: &[u8]) -> io::Result<Self> {
        let aside = dir.join("pager.journal.new");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        // What is reserved now cannot turn out missing under a store, which would raise SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, MAPPED_BYTES as u64)?;
        file.write_all_at(snapshot, MAPPED_BYTES as u64)?;
        let mapping = SharedMapping::of_file(&file, MAPPED_BYTES)?;
        let mut journal = Self { dir: dir.to_owned(), mapping, end: 0, queue: None };
        journal.mapping.store(0, MAGIC);
        journal.mapping.store_u64(SNAPSHOT_BYTES_AT, snapshot.len() as u64);
        journal.set_state(state);
        journal.set_counters(&counters);
        fs::rename(aside, dir.join(JOURNAL_FILE))?;
        Ok(journal)
    }
}

fn encoded(snapshot: &Snapshot) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(snapshot).map_err(io::Error::other)
}

fn record_at(index: usize) -> usize {
    HEADER_BYTES + index * MESSAGE_BYTES
}

fn mark(kind: u8, space: SpaceNumber) -> [u8; 8] {
    let [a, b, c, d] = space.to_ne_bytes();
    [kind, 0, 0, 0, a, b, c, d]
}

fn encode_state(state: State) -> u64 {
    match state {
        State::Waiting { socket } => u64::from(socket as u32) << 32 | 1,
        State::Active { uffd } => u64::from(uffd as u32) << 32 | 2,
    }
}

fn state_of(mapping: &SharedMapping) -> io::Result<State> {
    let word = mapping.load_u64(STATE_AT);
    let number = (word >> 32) as RawFd;
    match word as u32 {
        1 => Ok(State::Waiting { socket: number }),
        2 => Ok(State::Active { uffd: number }),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the journal is in state {other}"))),
    }
}

fn counters_of(mapping: &SharedMapping) -> PagerCounters {
    PagerCounters::from_words(std::array::from_fn(|index| mapping.load_u64(COUNTERS_AT + 8 * index)))
}

/// The bytes of a journal with this snapshot, and these bytes behind the magic: what is missing is zero.
pub(super) fn file_of(snapshot: &[u8], behind_magic: &[u8]) -> Vec<u8> {
    let mut bytes = [MAGIC, behind_magic].concat();
    bytes.resize(MAPPED_BYTES, 0);
    bytes[SNAPSHOT_BYTES_AT..SNAPSHOT_BYTES_AT + 8].copy_from_slice(&(snapshot.len() as u64).to_ne_bytes());
    [&bytes, snapshot].concat()
}

fn read_snapshot(file: &File, bytes: u64) -> io::Result<Option<Snapshot>> {
    if bytes == 0 {
        return Ok(None);
    }
    if MAPPED_BYTES as u64 + bytes != file.metadata()?.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal's snapshot is cut short"));
    }
    let mut encoded = vec![0; bytes as usize];
    file.read_exact_at(&mut encoded, MAPPED_BYTES as u64)?;
    let snapshot: Snapshot = postcard::from_bytes(&encoded).map_err(io::Error::other)?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    snapshot.spaces.iter().try_for_each(|space| check_segments(&space.segments)).map_err(invalid)?;
    if snapshot.next_space > SPACES_MAX {
        return Err(invalid(format!("the journal numbers {} spaces", snapshot.next_space)));
    }
    Ok(Some(snapshot))
}

/// Whether a message is of whole pages that a process can have. What is not was not written by the kernel, and its
/// arithmetic would end the pager, and the next one, and so on.
fn is_sensible(message: &Message) -> bool {
    let is_range = |start: u64, end: u64| {
        start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE) && start <= end && end <= USER_SPACE_END
    };
    match *message {
        Message::Fault { .. } | Message::Fork { .. } => true,
        Message::Remove { start, end } | Message::Unmap { start, end } => is_range(start, end),
        Message::Remap { from, to, bytes } => {
            let ends = from.checked_add(bytes).zip(to.checked_add(bytes));
            ends.is_some_and(|(from_end, to_end)| is_range(from, from_end) && is_range(to, to_end))
        }
    }
}

/// Everything up to the end, and where that is.
fn read_records(mapping: &SharedMapping) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut space = 0;
    for index in 0..RECORDS {
        let mut bytes = [0; MESSAGE_BYTES];
        mapping.load(record_at(index), &mut bytes);
        let number = SpaceNumber::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            0 => return (records, index),
            BATCH => space = number,
            CLOSED => records.push(Record::Closed(number)),
            ARRIVED => {
                let uffd = mapping.load_u64(record_at(index) + 8);
                records.push(Record::Arrived(number, uffd as RawFd));
            }
            QUEUE => records.push(Record::Queue(mapping.load_u64(record_at(index) + 8) as RawFd)),
            _ => records.extend(
                Message::parse(&bytes)
                    .filter(|message| !matches!(message, Message::Fault { .. }))
                    .map(|message| Record::Message(space, message)),
            ),
        }
    }
    (records, RECORDS)
}

#[cfg(test)]
mod tests;
