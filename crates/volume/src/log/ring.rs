//! The ring of a log: places records, and knows which bytes may be overwritten. Does no I/O.

use super::layout::file_offset;
use crate::record::{HEADER_BYTES, PAGE_BYTES, RECORD_ALIGNMENT, RecordShape};

/// A boundary between two records of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct LogPoint {
    /// Sequence number of the record that begins here.
    pub sequence: u64,
    /// Position of the boundary in the endless log.
    pub position: u64,
}

impl LogPoint {
    /// The beginning of every log.
    pub const START: Self = Self { sequence: 1, position: 0 };
}

/// A window onto the endless log, as large as the ring: `tail` to `head` is in use.
#[derive(Clone, Copy, Debug)]
pub struct LogRing {
    ring_bytes: u64,
    tail: LogPoint,
    head: LogPoint,
}

/// Where a new record will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlacement {
    /// A filler to write first: its point, and the number of bytes after its header.
    pub filler: Option<(LogPoint, u32)>,
    /// The point of the record.
    pub point: LogPoint,
    /// The sizes of the record.
    pub shape: RecordShape,
}

/// Why a record cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// There will be room after more records are published.
    #[error("the log is full")]
    Full,
    /// The record needs more than half of the ring.
    #[error("the record does not fit into the log")]
    TooLarge,
}

impl RecordPlacement {
    /// The point after the record.
    pub fn end(&self) -> LogPoint {
        LogPoint { sequence: self.point.sequence + 1, position: self.shape.end(self.point.position) }
    }
}

impl LogRing {
    /// An empty ring that continues at a point.
    pub fn new(ring_bytes: u64, start: LogPoint) -> Self {
        assert!(ring_bytes.is_multiple_of(PAGE_BYTES) && ring_bytes > 0, "a ring has whole pages");
        assert!(start.position.is_multiple_of(RECORD_ALIGNMENT), "records are aligned");
        Self { ring_bytes, tail: start, head: start }
    }

    /// The point of the next record.
    pub fn head(&self) -> LogPoint {
        self.head
    }

    /// The end of the published records: the bytes before it may be overwritten.
    pub fn tail(&self) -> LogPoint {
        self.tail
    }

    /// Number of bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.head.position - self.tail.position
    }

    /// The file offset of a position.
    pub fn file_offset(&self, position: u64) -> u64 {
        file_offset(position, self.ring_bytes)
    }

    /// Finds the place of a new record. Does not change the ring.
    ///
    /// # Errors
    /// `Full` until the tail has advanced; `TooLarge` for a record that never fits.
    pub fn place(&self, shape: RecordShape) -> Result<RecordPlacement, RingError> {
        let mut point = self.head;
        let mut filler = None;
        let lap_end = (point.position / self.ring_bytes + 1) * self.ring_bytes;
        if shape.end(point.position) > lap_end {
            let filled_bytes = lap_end - point.position - HEADER_BYTES;
            filler = Some((point, u32::try_from(filled_bytes).map_err(|_| RingError::TooLarge)?));
            point = LogPoint { sequence: point.sequence + 1, position: lap_end };
        }
        let placement = RecordPlacement { filler, point, shape };
        if shape.end(point.position) - point.position > self.ring_bytes / 2 {
            return Err(RingError::TooLarge);
        }
        if placement.end().position - self.tail.position > self.ring_bytes {
            return Err(RingError::Full);
        }
        Ok(placement)
    }

    /// Moves the head after a record that has been stored.
    pub fn advance_head(&mut self, placement: &RecordPlacement) {
        let begins_at_head = placement.filler.map_or(placement.point, |(point, _)| point) == self.head;
        assert!(begins_at_head, "records are stored in order");
        self.head = placement.end();
    }

    /// Moves the tail to a point: the records before it are published.
    pub fn advance_tail(&mut self, point: LogPoint) {
        let is_inside = (self.tail..=self.head).contains(&point);
        assert!(is_inside, "{point:?} is published, the log has {:?} to {:?}", self.tail, self.head);
        self.tail = point;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_BYTES: u64 = 4 * PAGE_BYTES;

    fn shape(data_bytes: u32) -> RecordShape {
        RecordShape { body_bytes: 8, data_bytes }
    }

    #[test]
    fn a_record_that_would_wrap_starts_the_next_lap() {
        let mut ring = LogRing::new(RING_BYTES, LogPoint { sequence: 9, position: 3 * PAGE_BYTES + 64 });
        let placement = ring.place(shape(4096)).unwrap();
        let filled = (PAGE_BYTES - 64 - HEADER_BYTES) as u32;
        assert_eq!(placement.filler, Some((LogPoint { sequence: 9, position: 3 * PAGE_BYTES + 64 }, filled)));
        assert_eq!(placement.point, LogPoint { sequence: 10, position: RING_BYTES });
        ring.advance_head(&placement);
        assert_eq!(ring.head(), LogPoint { sequence: 11, position: RING_BYTES + 2 * PAGE_BYTES });
    }

    #[test]
    fn a_full_ring_accepts_more_after_the_tail_has_advanced() {
        let mut ring = LogRing::new(RING_BYTES, LogPoint::START);
        for _ in 0..2 {
            let placement = ring.place(shape(4096)).unwrap();
            ring.advance_head(&placement);
        }
        assert_eq!(ring.place(shape(4096)), Err(RingError::Full));
        ring.advance_tail(LogPoint { sequence: 2, position: 2 * PAGE_BYTES });
        let placement = ring.place(shape(4096)).unwrap();
        assert_eq!((placement.filler, placement.point.position), (None, RING_BYTES));
        assert_eq!(ring.place(shape(3 * 4096)), Err(RingError::TooLarge));
    }
}
