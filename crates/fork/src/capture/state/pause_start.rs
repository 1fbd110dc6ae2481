//! The start of a pause: the clocks from which a child continues, and from which the time that a timer has left is counted.
//!
//! Timers are read later than the clocks. Without the time in between, a child's timers would expire early by its clocks.

use farfork_sys::clock::{self, Clocks};

/// The start of the pause of a process tree.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct PauseStart {
    /// CLOCK_BOOTTIME just before `clocks`. Unlike CLOCK_MONOTONIC, it also counts a suspend of the machine.
    before_ns: u64,
    clocks: Clocks,
}

impl PauseStart {
    /// Reads the clocks. Call it when all processes of the tree have stopped.
    pub(in crate::capture) fn now() -> Self {
        Self { before_ns: clock::boottime_ns(), clocks: Clocks::now() }
    }

    /// The clocks from which children continue.
    pub(in crate::capture) fn clocks(&self) -> Clocks {
        self.clocks
    }

    /// Returns the time since the start, rounded up. Call it when a timer has been read: the time that the timer had left,
    /// plus this time, is never too short.
    pub(in crate::capture) fn elapsed_ns(&self) -> u64 {
        clock::boottime_ns().saturating_sub(self.before_ns)
    }
}

/// Converts the time that a timer had left when it was read to the time that it had left at the start of the pause,
/// `elapsed_ns` earlier. 0 stays 0: the timer is disarmed, or has expired.
pub(in crate::capture) fn add_elapsed(left_ns: u64, elapsed_ns: u64) -> u64 {
    if left_ns == 0 { 0 } else { left_ns.saturating_add(elapsed_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_covers_both_clocks() {
        let start = PauseStart::now();
        let now = Clocks::now();
        let elapsed_ns = start.elapsed_ns().cast_signed();
        assert!(elapsed_ns >= now.monotonic_ns - start.clocks().monotonic_ns);
        assert!(elapsed_ns >= now.boottime_ns - start.clocks().boottime_ns);
        assert_eq!((add_elapsed(5, 7), add_elapsed(0, 7)), (12, 0), "an expired timer stays expired");
    }
}
