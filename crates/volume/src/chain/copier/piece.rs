//! Sends one piece of a log: its size, its writes in flight, and when the successor counts as silent or too slow.

use std::time::{Duration, Instant};

use super::replica_progress::ReplicaProgress;
use crate::log::LogPoint;

/// Maximum number of bytes that are sent within the call that announces them. More bytes are sent faster by one-sided
/// writes, which need no copy into the call.
pub(in crate::chain) const INLINE_BYTES_MAX: u64 = 64 << 10;
/// As `INLINE_BYTES_MAX`, on a slow link: a call has a time limit, and is sent again as a whole after it.
const SLOW_INLINE_BYTES_MAX: u64 = 4 << 10;
/// Maximum number of bytes of a one-sided write. The data of a larger write leaves the processor's cache between two copies:
/// writes of 256 KiB were a tenth slower.
pub(in crate::chain) const WRITE_BYTES: u64 = 64 << 10;
/// As `WRITE_BYTES`, on a slow link: the acknowledgements of the writes show that the member takes bytes.
const SLOW_WRITE_BYTES: u64 = 16 << 10;
/// Time for which one piece is sent. Much longer than a round trip, in which the link is idle. Short, because the member
/// sends a piece to the next one only after it has the whole piece.
const PIECE_TIME: Duration = Duration::from_millis(20);
/// Limits of the size of a piece. A record that is larger is a piece of its own.
pub(super) const PIECE_BYTES_MIN: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 8 << 20;
/// The size of the first piece, before the rate of the link is known. Links with smaller pieces are slow ones.
pub(super) const FIRST_PIECE_BYTES: u64 = 256 << 10;
/// Maximum number of writes in flight: enough to cover the round trip of a fast network.
const WRITES_IN_FLIGHT_MAX: usize = 16;

/// The ends of the records of a log.
pub trait RecordBounds {
    /// Size of the ring, which no write may cross the end of.
    fn ring_bytes(&self) -> u64;

    /// The end of the record at a point; none if no record begins there.
    fn record_end(&self, point: LogPoint) -> Option<LogPoint>;
}

/// Why a piece is not sent further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The member has acknowledged fewer bytes than a live replica must.
    #[error("the node takes its log too slowly: less than {bytes_min} bytes in each {} ms", detection_time.as_millis())]
    Slow {
        /// Minimum number of bytes in each detection time.
        bytes_min: u64,
        /// The time of failure detection.
        detection_time: Duration,
    },
    /// The member has acknowledged none of the writes in flight.
    #[error("the node has not acknowledged any bytes of its log for {} ms", .0.as_millis())]
    Silent(Duration),
}

/// Announces a piece to the successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceAnnouncement {
    /// The bytes to send within the call: from here to `end`. None if they are written already.
    pub inline_from: Option<LogPoint>,
    /// End of the announced records. Before `inline_from` if this node's log ends before the successor's log.
    pub end: LogPoint,
    /// This node has more records.
    pub has_more: bool,
    /// A thread waits until the log is published.
    pub is_urgent: bool,
    /// The reply must have the present space of all later nodes.
    pub needs_space: bool,
    /// Longest wait of the successor for the later members.
    pub wait: Duration,
    /// Longest wait for the reply.
    pub timeout: Duration,
}

/// The writes of one piece.
#[derive(Debug)]
pub(super) struct PieceTransfer {
    from: LogPoint,
    end: LogPoint,
    /// End of the bytes that are written or in flight.
    position: u64,
    in_flight: usize,
    write_bytes: u64,
    started: Instant,
    silent_since: Instant,
}

/// The end of the piece that begins at `from`: the first end of a record after `bytes` bytes, or `end`. This node has validated
/// the records.
pub(super) fn piece_end(bounds: &impl RecordBounds, from: LogPoint, end: LogPoint, bytes: u64) -> LogPoint {
    let mut point = from;
    if end.position - from.position <= bytes {
        return end;
    }
    while point < end && point.position - from.position < bytes {
        match bounds.record_end(point) {
            Some(next) => point = next,
            // The member's log differs. It refuses the whole range.
            None => return end,
        }
    }
    point.min(end)
}

/// Whether a piece is sent within the call that announces it.
pub(super) fn is_inline(bytes: u64, piece_bytes: u64) -> bool {
    bytes <= if piece_bytes < FIRST_PIECE_BYTES { SLOW_INLINE_BYTES_MAX } else { INLINE_BYTES_MAX }
}

impl PieceTransfer {
    pub(super) fn new(from: LogPoint, end: LogPoint, piece_bytes: u64, now: Instant) -> Self {
        let write_bytes = if piece_bytes > FIRST_PIECE_BYTES { WRITE_BYTES } else { SLOW_WRITE_BYTES };
        Self { from, end, position: from.position, in_flight: 0, write_bytes, started: now, silent_since: now }
    }

    /// The next bytes to write; none while enough writes are in flight, and after the last one.
    pub(super) fn next_write(&mut self, ring_bytes: u64) -> Option<(u64, u64)> {
        if self.position >= self.end.position || self.in_flight >= WRITES_IN_FLIGHT_MAX {
            return None;
        }
        let from = self.position;
        let until_wrap = ring_bytes - from % ring_bytes;
        self.position += (self.end.position - from).min(self.write_bytes).min(until_wrap);
        self.in_flight += 1;
        Some((from, self.position))
    }

    /// Whether all bytes are written.
    pub(super) fn is_written(&self) -> bool {
        self.position >= self.end.position && self.in_flight == 0
    }

    /// Longest time of one write. Longer than the writes in flight need at the lowest rate, so that `check` finds each failure
    /// first.
    pub(super) fn write_timeout(progress: &ReplicaProgress) -> Duration {
        progress.rate().detection_time * 2 * WRITES_IN_FLIGHT_MAX as u32 + progress.rate().window()
    }

    pub(super) fn handle_written(&mut self, now: Instant) {
        self.in_flight -= 1;
        self.silent_since = now;
    }

    /// Excludes time that this node has used itself: it is no delay of the successor.
    pub(super) fn exclude(&mut self, time: Duration) {
        self.silent_since += time;
    }

    /// The time at which the successor counts as silent.
    pub(super) fn silent_at(&self, timeout: Duration) -> Instant {
        self.silent_since + timeout
    }

    /// Fails when no write is acknowledged for the time of an attempt, or when the successor is too slow. The whole piece has
    /// no time limit.
    pub(super) fn check(
        &self,
        progress: &ReplicaProgress,
        timeout: Duration,
        now: Instant,
    ) -> Result<(), TransferError> {
        if now >= self.silent_at(timeout) {
            return Err(TransferError::Silent(timeout));
        }
        let rate = progress.rate();
        let slow = TransferError::Slow { bytes_min: rate.bytes_min, detection_time: rate.detection_time };
        if progress.is_stalled(now) { Err(slow) } else { Ok(()) }
    }

    /// The size of the next piece, from the rate of this one.
    pub(super) fn next_piece_bytes(&self, now: Instant) -> u64 {
        let elapsed_us = now.saturating_duration_since(self.started).as_micros().max(1);
        let bytes = u128::from(self.end.position - self.from.position) * PIECE_TIME.as_micros() / elapsed_us;
        (bytes as u64).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }
}
