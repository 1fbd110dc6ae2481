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
/// Shortest time for which one piece is sent. Short, because the member sends a piece to the next one only after it has the
/// whole piece.
const PIECE_TIME: Duration = Duration::from_millis(20);
/// Shortest time for which one piece is sent, in round trips. The link is idle in two round trips for each piece: for the
/// acknowledgement of the last write, and for the announcement.
const PIECE_ROUND_TRIPS: u32 = 8;
/// Limits of the size of a piece. A record that is larger is a piece of its own.
pub(super) const PIECE_BYTES_MIN: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 8 << 20;
/// As `PIECE_BYTES_MAX`, on a link with long round trips.
const LONG_PIECE_BYTES_MAX: u64 = 32 << 20;
/// The size of the first piece, before the rate of the link is known. Links with smaller pieces are slow ones.
const FIRST_PIECE_BYTES: u64 = 256 << 10;
/// Number of writes in flight: enough to cover the round trip of a fast network.
const WRITES_IN_FLIGHT: usize = 16;
/// As `WRITES_IN_FLIGHT`, on a link with long round trips.
const WRITES_IN_FLIGHT_MAX: usize = 256;

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

/// The sizes that suit a link, by the rate of the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkPace {
    /// Size of the next piece.
    pub piece_bytes: u64,
    writes_in_flight_max: usize,
    /// The shortest time after which the first write of a piece was acknowledged, without the time that sends it.
    round_trip: Duration,
}

impl LinkPace {
    /// For a link whose rate is unknown.
    pub(super) const FIRST: Self =
        Self { piece_bytes: FIRST_PIECE_BYTES, writes_in_flight_max: WRITES_IN_FLIGHT, round_trip: Duration::MAX };

    /// For a link that has failed. It counts as slow until its rate is known.
    pub(super) const SLOW: Self = Self { piece_bytes: PIECE_BYTES_MIN, ..Self::FIRST };

    /// Whether a piece is sent within the call that announces it.
    pub(super) fn is_inline(self, bytes: u64) -> bool {
        bytes <= if self.piece_bytes < FIRST_PIECE_BYTES { SLOW_INLINE_BYTES_MAX } else { INLINE_BYTES_MAX }
    }

    fn write_bytes(self) -> u64 {
        if self.piece_bytes > FIRST_PIECE_BYTES { WRITE_BYTES } else { SLOW_WRITE_BYTES }
    }

    /// Adapts to a piece of `bytes` bytes, which took `elapsed`, and whose first write was acknowledged after `first_write`. The
    /// writes in flight may cover two round trips: while they limit the rate, it doubles with each piece.
    fn adapt(self, bytes: u64, elapsed: Duration, first_write: Duration) -> Self {
        let bytes_in = |time: Duration| {
            let bytes = u128::from(bytes) * time.as_micros() / elapsed.as_micros().max(1);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let sending = elapsed.mul_f64(self.write_bytes() as f64 / bytes.max(1) as f64);
        let round_trip = first_write.saturating_sub(sending).min(self.round_trip);
        let short_piece = bytes_in(PIECE_TIME).min(PIECE_BYTES_MAX);
        let long_piece = bytes_in(round_trip * PIECE_ROUND_TRIPS).min(LONG_PIECE_BYTES_MAX);
        let piece_bytes = short_piece.max(long_piece).max(PIECE_BYTES_MIN);
        let writes = usize::try_from(bytes_in(round_trip * 2) / WRITE_BYTES).unwrap_or(usize::MAX);
        let writes_in_flight_max = writes.clamp(WRITES_IN_FLIGHT, WRITES_IN_FLIGHT_MAX);
        Self { piece_bytes, writes_in_flight_max, round_trip }
    }
}

/// The writes of one piece.
#[derive(Debug)]
pub(super) struct PieceTransfer {
    from: LogPoint,
    end: LogPoint,
    /// End of the bytes that are written or in flight.
    position: u64,
    in_flight: usize,
    pace: LinkPace,
    started: Instant,
    /// Time until the first write was acknowledged.
    first_write: Option<Duration>,
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

impl PieceTransfer {
    pub(super) fn new(from: LogPoint, end: LogPoint, pace: LinkPace, now: Instant) -> Self {
        let (position, in_flight) = (from.position, 0);
        Self { from, end, position, in_flight, pace, started: now, first_write: None, silent_since: now }
    }

    /// The next bytes to write; none while enough writes are in flight, and after the last one.
    pub(super) fn next_write(&mut self, ring_bytes: u64) -> Option<(u64, u64)> {
        if self.position >= self.end.position || self.in_flight >= self.pace.writes_in_flight_max {
            return None;
        }
        let from = self.position;
        let until_wrap = ring_bytes - from % ring_bytes;
        self.position += (self.end.position - from).min(self.pace.write_bytes()).min(until_wrap);
        self.in_flight += 1;
        Some((from, self.position))
    }

    /// Whether all bytes are written.
    pub(super) fn is_written(&self) -> bool {
        self.position >= self.end.position && self.in_flight == 0
    }

    /// Longest time of one write. Longer than the writes in flight need at the lowest rate, so that `check` finds each failure
    /// first.
    pub(super) fn write_timeout(&self, progress: &ReplicaProgress) -> Duration {
        progress.rate().detection_time * 2 * self.pace.writes_in_flight_max as u32 + progress.rate().window()
    }

    pub(super) fn handle_written(&mut self, now: Instant) {
        self.in_flight -= 1;
        self.silent_since = now;
        self.first_write.get_or_insert(now.saturating_duration_since(self.started));
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

    /// The pace of the next piece, by the rate of this one.
    pub(super) fn next_pace(&self, now: Instant) -> LinkPace {
        let elapsed = now.saturating_duration_since(self.started);
        self.pace.adapt(self.end.position - self.from.position, elapsed, self.first_write.unwrap_or(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends pieces until the pace is stable; returns it with the part of the time in which the link sends.
    fn settle(bytes_per_ms: u64, round_trip: Duration) -> (LinkPace, f64) {
        let mut pace = LinkPace::FIRST;
        let mut busy = 0.0;
        for _ in 0..10 {
            let sending = Duration::from_micros(pace.piece_bytes * 1000 / bytes_per_ms);
            let in_flight = pace.writes_in_flight_max as u64 * pace.write_bytes();
            let limited = round_trip * u32::try_from(pace.piece_bytes / in_flight).unwrap();
            let elapsed = sending.max(limited) + round_trip;
            busy = sending.as_secs_f64() / (elapsed + round_trip).as_secs_f64();
            let first_write = round_trip + Duration::from_micros(pace.write_bytes() * 1000 / bytes_per_ms);
            pace = pace.adapt(pace.piece_bytes, elapsed, first_write);
        }
        (pace, busy)
    }

    #[test]
    fn a_link_with_long_round_trips_is_busy_most_of_the_time() {
        for round_trip_ms in [10, 50, 200] {
            let (pace, busy) = settle(12_500, Duration::from_millis(round_trip_ms));
            assert!(busy > 0.75, "{round_trip_ms} ms: {busy} with {pace:?}");
        }
        let (local, _) = settle(1_000_000, Duration::from_micros(100));
        assert_eq!((local.piece_bytes, local.writes_in_flight_max), (PIECE_BYTES_MAX, WRITES_IN_FLIGHT));
        let (slow, _) = settle(125, Duration::from_millis(1));
        assert!(slow.piece_bytes <= 2 * PIECE_BYTES_MIN, "a slow link has small pieces: {slow:?}");
    }
}
