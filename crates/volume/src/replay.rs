//! Replay: decodes and validates the records of a log, up to the first invalid one. It reads no files itself: `LogStorage`
//! gives it the bytes.
//!
//! The offload process uses it for new records. After a restart, the process also uses it for the records that the log
//! already has.

use crate::log::{LogPoint, LogStorage, file_offset};
use crate::record::{HEADER_BYTES, RecordChecksum, RecordEffect, RecordError, RecordHeader, RecordKind, decode_body};

/// Data is copied in pieces of this size for its checksum, so that it stays in the processor's cache.
const PIECE_BYTES: usize = 4096;

/// A record that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedRecord {
    /// The point of the record.
    pub point: LogPoint,
    /// The effects of the record. A filler has none.
    pub effects: Vec<RecordEffect>,
    /// Position of its data in the endless log.
    pub data_position: u64,
    /// The term in which the client wrote the record.
    pub epoch: u32,
    /// The point after the record.
    pub end: LogPoint,
}

/// Why replay ends. Old bytes follow the last record of every log, so most ends are not errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayEnd {
    /// No record of this log begins here.
    #[error("no record begins here")]
    NoRecord,
    /// A record begins here, and is torn or damaged.
    #[error("the record is invalid: {0}")]
    Invalid(#[from] RecordError),
}

/// Reads records from a point on.
#[derive(Debug, Clone)]
pub struct LogReplay {
    ring_bytes: u64,
    next: LogPoint,
    /// Lowest epoch that the next record may have: the epoch of the previous record, or a higher one from `require_epoch`.
    epoch: u32,
}

impl LogReplay {
    /// Starts at a point up to which the log is published. `epoch` is the epoch of the record before the point, or 0. After
    /// a crash, a record of an earlier epoch may be exactly at the point. It is rejected.
    pub fn new(ring_bytes: u64, start: LogPoint, epoch: u32) -> Self {
        Self { ring_bytes, next: start, epoch }
    }

    /// The point of the record that is read next.
    pub fn next_point(&self) -> LogPoint {
        self.next
    }

    /// The epoch of the last record, or a higher one from [`Self::require_epoch`].
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// From now on, rejects records with a lower epoch than `epoch`: their writers have lost the right to write the log.
    pub fn require_epoch(&mut self, epoch: u32) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Reads one record and checks its place, checksum and bounds. An error does not move the replay, so a later call can
    /// read a record that was appended since.
    ///
    /// # Errors
    /// At the end of the valid records.
    pub fn read_record(&mut self, storage: &impl LogStorage) -> Result<ReplayedRecord, ReplayEnd> {
        let point = self.next;
        let mut header_bytes = [0; HEADER_BYTES as usize];
        storage.load(file_offset(point.position, self.ring_bytes), &mut header_bytes);
        let Ok(header) = RecordHeader::parse(&header_bytes) else { return Err(ReplayEnd::NoRecord) };
        let is_successor = (header.sequence, header.position) == (point.sequence, point.position);
        let record_end = header.shape.end(point.position);
        let ends_in_lap = record_end - point.position <= self.ring_bytes - point.position % self.ring_bytes;
        if !is_successor || header.epoch < self.epoch || !ends_in_lap {
            return Err(ReplayEnd::NoRecord);
        }
        let data_position = header.shape.data_position(point.position);
        let effects = self.read_effects(storage, &header, &header_bytes)?;
        let end = LogPoint { sequence: point.sequence + 1, position: record_end };
        self.next = end;
        self.epoch = header.epoch;
        Ok(ReplayedRecord { point, effects, data_position, epoch: header.epoch, end })
    }

    /// Reads records up to a point.
    ///
    /// # Errors
    /// If the valid records end before the point.
    pub fn read_to(&mut self, storage: &impl LogStorage, end: LogPoint) -> Result<(), ReplayEnd> {
        while self.next < end {
            self.read_record(storage)?;
        }
        Ok(())
    }

    fn read_effects(
        &self,
        storage: &impl LogStorage,
        header: &RecordHeader,
        header_bytes: &[u8; HEADER_BYTES as usize],
    ) -> Result<Vec<RecordEffect>, RecordError> {
        if header.kind == RecordKind::Filler {
            RecordChecksum::new(header_bytes, &[]).verify(header_bytes)?;
            return Ok(Vec::new());
        }
        let offset = |position| file_offset(position, self.ring_bytes);
        let mut body = vec![0; header.shape.body_bytes as usize];
        storage.load(offset(header.position) + HEADER_BYTES, &mut body);
        let mut checksum = RecordChecksum::new(header_bytes, &body);
        let data_bytes = u64::from(header.shape.data_bytes);
        // Without data, the data position may be the end of the ring, so nothing is loaded.
        let mut piece = [0; PIECE_BYTES];
        for begin in (0..data_bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min((data_bytes - begin) as usize)];
            storage.load(offset(header.shape.data_position(header.position)) + begin, piece);
            checksum.append(piece);
        }
        checksum.verify(header_bytes)?;
        Ok(decode_body(&body, header.shape.data_bytes)?.effects)
    }
}
