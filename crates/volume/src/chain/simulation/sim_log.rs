//! One log on one simulated node: the state machines of its copier, and the records. A record has a size, and no content.

use std::time::{Duration, Instant};

use farfork_wire::NodeName;

use super::network::SimWrite;
use crate::chain::copier::{CopierLog, LogForwarder, LogValidator, RecordBounds, ReplicaRate};
use crate::chain::{ChainLog, LogRestart};
use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// Size of a ring. No write crosses a multiple of it.
const RING_BYTES: u64 = 1 << 20;
/// One record of this number is large.
const LARGE_EACH: u64 = 16;

/// A record: its term, a number that no other record has, and its end in the log. Records that a copied tree has replaced have
/// term 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) struct SimRecord {
    pub(super) term: u32,
    pub(super) number: u64,
    pub(super) end: u64,
}

impl SimRecord {
    /// A record that begins at a position. Its size depends on the number.
    pub(super) fn new(term: u32, number: u64, begin: u64) -> Self {
        Self { term, number, end: begin + Self::bytes_of(number) }
    }

    fn bytes_of(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if mixed.is_multiple_of(LARGE_EACH) { (64 << 10) + mixed % (192 << 10) } else { 64 + mixed % 4096 }
    }

    pub(super) fn begin(&self) -> u64 {
        self.end - Self::bytes_of(self.number)
    }
}

/// The request of a copier: the reply is ignored unless `number` is its present one.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimRequest {
    pub(super) node: usize,
    pub(super) log: usize,
    pub(super) number: u64,
}

pub(super) struct SimLog {
    pub(super) copied: CopierLog<SimRequest>,
    pub(super) validator: LogValidator,
    pub(super) forwarder: LogForwarder,
    pub(super) records: SimRecords,
    /// Number of the present call, and of the present connection to the successor with its region.
    pub(super) call: u64,
    pub(super) link: u64,
    pub(super) successor_region: u64,
    /// The region of this node in which a predecessor may write.
    pub(super) region: u64,
    /// The time of the scheduled `Wake`.
    pub(super) wake_at: Option<Instant>,
}

/// The bytes of a log file.
#[derive(Debug, Default)]
pub(super) struct SimRecords {
    /// Validated records, and further ones that this node's client has appended.
    pub(super) entries: Vec<SimRecord>,
    /// Received bytes that are not validated, in the order of their arrival.
    received: Vec<SimWrite>,
}

/// The parameters of a copier.
#[derive(Clone, Copy)]
pub(super) struct CopierTimes {
    pub(super) rate: ReplicaRate,
    pub(super) timeout: Duration,
}

impl SimLog {
    pub(super) fn open(
        node: &NodeName,
        client: usize,
        times: CopierTimes,
        mark: PublishedMark,
        records: SimRecords,
        now: Instant,
    ) -> Self {
        let client = client as u16;
        Self {
            copied: CopierLog::new(ChainLog::open(mark, records.end())),
            validator: LogValidator::new(node.clone(), client, now),
            forwarder: LogForwarder::new(node.clone(), client, times.timeout, times.rate, now),
            records,
            call: 0,
            link: 0,
            successor_region: 0,
            region: 0,
            wake_at: None,
        }
    }
}

impl SimRecords {
    pub(super) fn point_of(&self, count: usize) -> LogPoint {
        let position = if count == 0 { 0 } else { self.entries[count - 1].end };
        LogPoint { sequence: count as u64 + 1, position }
    }

    pub(super) fn end(&self) -> LogPoint {
        self.point_of(self.entries.len())
    }

    pub(super) fn truncate(&mut self, end: LogPoint) {
        self.entries.truncate(count_of(end));
    }

    /// Adds placeholders up to a point: all records before it are published. Placeholders end at a point that was published.
    pub(super) fn fill_to(&mut self, point: LogPoint) {
        let count = count_of(point).max(self.entries.len());
        self.entries.resize(count, SimRecord { term: 0, number: 0, end: point.position });
        let placeholders = self.entries.iter_mut().filter(|entry| entry.number == 0);
        placeholders.for_each(|entry| entry.end = entry.end.min(point.position));
    }

    /// Copies the bytes between two positions.
    pub(super) fn read(&self, from: u64, to: u64) -> SimWrite {
        let first = self.entries.partition_point(|entry| entry.end <= from);
        let is_before = |entry: &&SimRecord| entry.begin() < to;
        SimWrite { from, to, entries: self.entries[first..].iter().take_while(is_before).copied().collect() }
    }

    pub(super) fn write(&mut self, data: SimWrite) {
        if data.from < data.to {
            self.received.push(data);
        }
    }

    /// Makes the records after a point count as not validated. Their bytes stay in the ring.
    pub(super) fn invalidate_after(&mut self, point: LogPoint) {
        let entries = self.entries.split_off(count_of(point).min(self.entries.len()));
        if let Some(to) = entries.last().map(|last| last.end) {
            self.received.insert(0, SimWrite { from: point.position, to, entries });
        }
    }

    /// Validates received records after `stored`, up to `end`. Returns the end of the valid ones.
    pub(super) fn validate(&mut self, stored: LogPoint, end: LogPoint) -> LogPoint {
        self.invalidate_after(stored);
        while self.end() < end
            && let Some(entry) = self.received_entry(self.end().position)
        {
            self.entries.push(entry);
        }
        let valid = self.end();
        self.received.retain(|data| data.to > valid.position);
        valid
    }

    /// The record that begins at a position, if all its bytes were received.
    fn received_entry(&self, begin: u64) -> Option<SimRecord> {
        let covers = |data: &&SimWrite, at: u64| data.from <= at && at < data.to;
        let first = self.received.iter().rfind(|data| covers(data, begin))?;
        let entry = *first.entries.iter().find(|entry| entry.number > 0 && entry.begin() == begin)?;
        let mut at = begin;
        while at < entry.end {
            let index = self.received.iter().rposition(|data| covers(&data, at))?;
            if !self.received[index].entries.contains(&entry) {
                return None;
            }
            let later = self.received[index + 1..].iter().map(|data| data.from).filter(|from| *from > at);
            at = later.chain([self.received[index].to]).min()?;
        }
        Some(entry)
    }

    /// Reads the log file again after the process has started: the published part, and unpublished records of `term`. After a
    /// power failure, some records are lost.
    pub(super) fn reopen(&mut self, published: LogPoint, term: Option<u32>, lost: Option<usize>) {
        if let Some(lost) = lost {
            self.entries.truncate(self.entries.len().saturating_sub(lost));
            self.received.clear();
        }
        self.fill_to(published);
        self.invalidate_after(published);
        while let Some(entry) = self.received_entry(self.end().position)
            && Some(entry.term) == term
        {
            self.entries.push(entry);
        }
    }

    /// Reads the range of a restart again.
    pub(super) fn restart(&mut self, restart: LogRestart) {
        self.invalidate_after(restart.end);
        self.fill_to(restart.end);
    }
}

impl RecordBounds for SimRecords {
    fn ring_bytes(&self) -> u64 {
        RING_BYTES
    }

    fn record_end(&self, point: LogPoint) -> Option<LogPoint> {
        let count = count_of(point);
        (count < self.entries.len()).then(|| self.point_of(count + 1))
    }
}

pub(super) fn count_of(point: LogPoint) -> usize {
    point.sequence as usize - 1
}
