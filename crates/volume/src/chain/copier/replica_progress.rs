//! Measures whether a replica takes its log fast enough to stay in the chain. `forwarder` reports the bytes.

use std::time::{Duration, Instant};

/// Number of detection times over which the rate is measured. A replica may pause for a part of this time: it may wait for a
/// CPU, or read its log again.
const PERIODS: u32 = 10;

/// The lowest rate of a live replica.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaRate {
    /// Minimum number of bytes in each detection time.
    pub bytes_min: u64,
    /// The time of failure detection.
    pub detection_time: Duration,
}

/// The progress of a replica since it was last known to be fast enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaProgress {
    rate: ReplicaRate,
    since: Instant,
    /// Position in the log at `since`, and the present one.
    from: u64,
    position: u64,
    advanced_at: Instant,
}

impl ReplicaRate {
    /// The time over which the rate is measured.
    pub fn window(self) -> Duration {
        self.detection_time * PERIODS
    }
}

impl ReplicaProgress {
    /// Creates the progress of a replica that has taken its whole log.
    pub(super) fn new(rate: ReplicaRate, now: Instant) -> Self {
        Self { rate, since: now, from: 0, position: 0, advanced_at: now }
    }

    /// The lowest rate.
    pub(super) fn rate(&self) -> ReplicaRate {
        self.rate
    }

    /// Begins a new measurement at a position: the replica has had the whole log up to it, or has a new path.
    pub(super) fn restart(&mut self, position: u64, now: Instant) {
        (self.since, self.from, self.position) = (now, position, position);
    }

    /// Begins a new measurement, because the time until now says nothing about the replica.
    pub(super) fn renew(&mut self, now: Instant) {
        (self.since, self.from) = (now, self.position);
    }

    /// The replica itself has acknowledged the log up to a position. Bytes in the buffers of this node's socket do not count,
    /// and bytes that are sent again count once.
    pub(super) fn advance(&mut self, position: u64, now: Instant) {
        if position > self.position {
            (self.position, self.advanced_at) = (position, now);
        }
        if self.position - self.from >= self.rate.bytes_min * u64::from(PERIODS) {
            self.renew(now);
        }
    }

    /// The last time at which the replica has acknowledged new bytes.
    pub(super) fn advanced_at(&self) -> Instant {
        self.advanced_at
    }

    /// Excludes time that this node has used itself, such as for compression.
    pub(super) fn exclude(&mut self, time: Duration) {
        self.since += time;
    }

    /// Whether the replica was too slow for the whole measurement.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.rate.window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: ReplicaRate = ReplicaRate { bytes_min: 1000, detection_time: Duration::from_secs(1) };

    /// Whether a replica stalls that acknowledges `bytes` bytes in each of the first `count` seconds, but not in second
    /// `paused`.
    fn stalls(bytes: u64, count: u64, paused: Option<u64>) -> bool {
        let start = Instant::now();
        let (mut progress, mut position) = (ReplicaProgress::new(RATE, start), 0);
        (1..=count).any(|second| {
            let now = start + Duration::from_secs(second);
            position += if paused == Some(second) { 0 } else { bytes };
            progress.advance(position, now);
            progress.is_stalled(now)
        })
    }

    #[test]
    fn a_replica_at_the_lowest_rate_stays_and_a_slower_one_leaves() {
        assert!(!stalls(1000, 1000, None) && !stalls(1_000_000, 1000, None));
        assert!(stalls(999, 10, None) && stalls(0, 10, None));
        assert!(!stalls(0, 9, None) && !stalls(999, 9, None), "the measurement has not ended");
        assert!(!stalls(1200, 1000, Some(500)), "a pause");
    }

    #[test]
    fn bytes_that_are_sent_again_count_once() {
        let start = Instant::now();
        let mut progress = ReplicaProgress::new(RATE, start);
        (1..=10).for_each(|second| progress.advance(9000, start + Duration::from_secs(second)));
        assert!(progress.is_stalled(start + RATE.window()));
    }

    #[test]
    fn time_of_this_node_does_not_count() {
        let start = Instant::now();
        let mut progress = ReplicaProgress::new(RATE, start);
        progress.exclude(Duration::from_secs(5));
        assert!(!progress.is_stalled(start + RATE.window()));
        assert!(progress.is_stalled(start + RATE.window() + Duration::from_secs(5)));
        progress.renew(start + RATE.window());
        assert!(!progress.is_stalled(start + RATE.window() + Duration::from_secs(5)));
    }
}
