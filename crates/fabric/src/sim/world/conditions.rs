//! Conditions of a simulated network: delays and faults of paths, and clock skew of nodes.

use std::time::Duration;

/// What a path from one node to another does to what is sent along it. The way back is a path of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct PathConditions {
    /// Least time that a segment takes, behind its last byte.
    pub delay_min: Duration,
    /// Most time. Segments of one connection stay in order; those of two overtake each other.
    pub delay_max: Duration,
    /// Bytes a second, of all connections together.
    pub bytes_per_s: u64,
    /// Chance of a segment to break its connection, which both ends learn.
    pub reset_chance: f64,
    /// Chance of a segment to be the last that the connection brings: what follows vanishes, and nobody is told.
    pub blackhole_chance: f64,
    /// Chance of a segment to arrive with one bit flipped.
    pub bit_flip_chance: f64,
}

impl Default for PathConditions {
    /// A quiet network of one rack: no faults.
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

/// How a node's clock differs from the world's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockSkew {
    /// How far it is ahead at the beginning, in microseconds; negative: behind.
    pub offset_us: i32,
    /// How much faster it goes, in millionths; negative: slower.
    pub drift_ppm: i32,
}

/// So far is every clock ahead of the world's beginning, so that one may be behind.
const CLOCK_ORIGIN_OFFSET: Duration = Duration::from_secs(4000);

impl ClockSkew {
    /// What the clock shows, since the world's origin, when `elapsed` has passed.
    pub(super) fn to_local(self, elapsed: Duration) -> Duration {
        let passed = i128::from(elapsed.as_nanos() as u64);
        let drift = passed * i128::from(self.drift_ppm) / 1_000_000;
        let shown = CLOCK_ORIGIN_OFFSET.as_nanos() as i128 + i128::from(self.offset_us) * 1000 + passed + drift;
        Duration::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    /// When the clock shows at least `local`.
    pub(super) fn to_world(self, local: Duration) -> Duration {
        let shown =
            local.as_nanos() as i128 - CLOCK_ORIGIN_OFFSET.as_nanos() as i128 - i128::from(self.offset_us) * 1000;
        let rate = 1_000_000 + i128::from(self.drift_ppm);
        let passed = shown.max(0) * 1_000_000 / rate;
        // Divisions round down: a clock that shows too little would be looked at in vain.
        Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)) + Duration::from_nanos(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_what_it_was_waited_for() {
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
