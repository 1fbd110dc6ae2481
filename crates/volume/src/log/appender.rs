//! Appends records to a log: encodes effects, places them in the ring, and stores them.

use super::ring::{LogPoint, LogRing, RecordPlacement, RingError};
use super::storage::LogStorage;
use crate::record::{RecordEffect, RecordHeader, RecordKind, RecordShape, encode_body, seal_header};

/// Appends to a log. Only one process at a time has an appender for a log.
#[derive(Debug)]
pub struct LogAppender<S> {
    storage: S,
    ring: LogRing,
    epoch: u32,
}

/// A record that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedRecord {
    /// Sequence number of the record.
    pub sequence: u64,
    /// Position of its data in the endless log.
    pub data_position: u64,
    /// The point after the record.
    pub end: LogPoint,
}

impl<S: LogStorage> LogAppender<S> {
    /// Continues a log at `start`. All earlier records are published.
    pub fn new(storage: S, ring_bytes: u64, epoch: u32, start: LogPoint) -> Self {
        Self { storage, ring: LogRing::new(ring_bytes, start), epoch }
    }

    /// The ring of the log.
    pub fn ring(&self) -> &LogRing {
        &self.ring
    }

    /// The storage of the log.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The storage of the log.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Appends one record. After a crash, the log has the whole record or none of it.
    ///
    /// # Errors
    /// `Full` until `advance_tail` frees enough bytes; `TooLarge` for a record that never fits.
    pub fn append(&mut self, effects: &[RecordEffect], data: &[u8]) -> Result<AppendedRecord, RingError> {
        let body = encode_body(effects);
        let lengths = (u32::try_from(body.len()), u32::try_from(data.len()));
        let (Ok(body_bytes), Ok(data_bytes)) = lengths else { return Err(RingError::TooLarge) };
        let placement = self.ring.place(RecordShape { body_bytes, data_bytes })?;
        if let Some((point, filled_bytes)) = placement.filler {
            self.store_filler(point, filled_bytes);
        }
        self.store_record(&placement, &body, data);
        self.ring.advance_head(&placement);
        let data_position = placement.shape.data_position(placement.point.position);
        Ok(AppendedRecord { sequence: placement.point.sequence, data_position, end: placement.end() })
    }

    /// Sets the epoch of later records.
    ///
    /// # Panics
    /// If `epoch` is lower than the present epoch.
    pub fn start_epoch(&mut self, epoch: u32) {
        assert!(epoch >= self.epoch, "epoch {epoch} after {}", self.epoch);
        self.epoch = epoch;
    }

    /// Frees the bytes before a point: they are published and may be overwritten.
    pub fn advance_tail(&mut self, point: LogPoint) {
        self.ring.advance_tail(point);
    }

    /// Copies data of a record that is not published yet.
    pub fn load_data(&self, position: u64, into: &mut [u8]) {
        let window = self.ring.tail().position..self.ring.head().position;
        assert!(window.contains(&position), "position {position} of a log with {window:?}");
        self.storage.load(self.ring.file_offset(position), into);
    }

    fn store_filler(&mut self, point: LogPoint, filled_bytes: u32) {
        let shape = RecordShape { body_bytes: filled_bytes, data_bytes: 0 };
        let header = self.header(RecordKind::Filler, point, shape);
        self.storage.store(self.ring.file_offset(point.position), &seal_header(&header, &[], &[]));
    }

    /// Stores the header last: until then, the bytes are not a valid record.
    fn store_record(&mut self, placement: &RecordPlacement, body: &[u8], data: &[u8]) {
        let RecordPlacement { point, shape, .. } = *placement;
        let header = self.header(RecordKind::Effects, point, shape);
        let sealed = seal_header(&header, body, data);
        self.storage.store(self.ring.file_offset(shape.data_position(point.position)), data);
        let offset = self.ring.file_offset(point.position);
        self.storage.store(offset + sealed.len() as u64, body);
        self.storage.store(offset, &sealed);
    }

    fn header(&self, kind: RecordKind, point: LogPoint, shape: RecordShape) -> RecordHeader {
        RecordHeader { kind, epoch: self.epoch, shape, sequence: point.sequence, position: point.position }
    }
}
