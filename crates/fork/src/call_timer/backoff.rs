//! Pauses between attempts at one call, each twice as long as the previous one.

use std::time::Duration;

/// The first pause. Most tracers hold a thread for less: the pause of a capture lasts about a millisecond.
const FIRST_PAUSE: Duration = Duration::from_micros(500);

/// The longest pause. While a debugger holds a thread, fifty attempts per second take about 50 us each: 0.3 % of a CPU. The
/// call ends at most one such pause after the debugger has released the thread.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The pause before the next attempt. It never exceeds the sum of the earlier pauses plus the first pause. So the delay
/// of a call is at most about twice the time until its thread was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RetryBackoff {
    next: Duration,
}

impl RetryBackoff {
    /// Starts with the shortest pause.
    pub(super) fn new() -> Self {
        Self { next: FIRST_PAUSE }
    }

    /// Returns the pause before the next attempt, and doubles the one after it.
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = RetryBackoff::new();
        let micros: Vec<u128> = (0..8).map(|_| backoff.next_pause().as_micros()).collect();
        assert_eq!(micros, [500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]);
    }

    #[test]
    fn a_pause_is_no_longer_than_the_time_spent() {
        let (mut backoff, mut spent) = (RetryBackoff::new(), Duration::ZERO);
        for _ in 0..100 {
            let pause = backoff.next_pause();
            assert!(pause <= spent + FIRST_PAUSE && pause <= PAUSE_MAX);
            spent += pause;
        }
    }
}
