//! Conditions of a simulated network: delays and faults of paths, and clock skew of nodes.

use std::time::Duration;

/// Delays, bandwidth and faults of the path from one node to another. The opposite direction is a separate path.
#[derive(Debug, Clone, PartialEq)]
pub struct PathConditions {
    /// Shortest delay of a segment, from the sending of its last byte to its arrival.
    pub delay_min: Duration,
    /// Longest delay. Segments of one connection stay in order; segments of two connections may overtake each other.
    pub delay_max: Duration,
    /// Bandwidth of the path in bytes per second, for all connections together.
    pub bytes_per_s: u64,
    /// Chance that a segment resets its connection, at both ends.
    pub reset_chance: f64,
    /// Chance that a connection silently loses a segment and all later ones of this direction.
    pub blackhole_chance: f64,
    /// Chance that a segment arrives with one bit flipped.
    pub bit_flip_chance: f64,
}

impl Default for PathConditions {
    /// Returns the conditions of a network within one rack, without faults.
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(20),
            delay_max: Duration::from_micros(60),
            bytes_per_s: 1_000_000_000,
            reset_chance: 0.0,
            blackhole_chance: 0.0,
            bit_flip_chance: 0.0,
        }
    }
}

/// The difference between a node's clock and the world's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockSkew {
    /// Offset at the beginning, in microseconds; negative if the clock is slow.
    pub offset_us: i32,
    /// Rate difference, in parts per million; negative if the clock runs slower.
    pub drift_ppm: i32,
}

/// Time that every clock shows at the world's beginning, so that offsets may be negative.
const CLOCK_ORIGIN_OFFSET: Duration = Duration::from_secs(4000);

impl ClockSkew {
    /// Returns the time that the clock shows when `elapsed` has passed in the world.
    pub(super) fn to_local(self, elapsed: Duration) -> Duration {
        let passed = i128::from(elapsed.as_nanos() as u64);
        let drift = passed * i128::from(self.drift_ppm) / 1_000_000;
        let shown = CLOCK_ORIGIN_OFFSET.as_nanos() as i128 + i128::from(self.offset_us) * 1000 + passed + drift;
        Duration::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    /// Returns the world's time at which the clock shows at least `local`.
    pub(super) fn to_world(self, local: Duration) -> Duration {
        let shown =
            local.as_nanos() as i128 - CLOCK_ORIGIN_OFFSET.as_nanos() as i128 - i128::from(self.offset_us) * 1000;
        let rate = 1_000_000 + i128::from(self.drift_ppm);
        let passed = shown.max(0) * 1_000_000 / rate;
        // Divisions round down. Without the addition, the clock might not have reached `local` yet.
        Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)) + Duration::from_nanos(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skewed_clock_has_reached_the_time_that_was_waited_for() {
        for faster_ppm in [-200_000, -7, 0, 3, 150_000] {
            for ahead_us in [-1_000_000_000, 0, 999] {
                let skew = ClockSkew { offset_us: ahead_us, drift_ppm: faster_ppm };
                for local_us in [3_000_000_001, 4_000_000_000u64, 4_000_000_123, 9_876_543_210] {
                    let local = Duration::from_micros(local_us);
                    assert!(skew.to_local(skew.to_world(local)) >= local, "{skew:?} {local:?}");
                }
            }
        }
    }
}
