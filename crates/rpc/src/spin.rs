//! Whether to look again for a while before sleeping. Waking a sleeping CPU costs 20 to 30 µs each way, several times
//! what a call takes; but where nothing comes, looking again takes the CPU from those who have work. Pure.

use std::time::{Duration, Instant};

/// How long to look again by default: about what going to sleep and waking up would cost.
pub const SPIN_MAX_USUAL: Duration = Duration::from_micros(50);

/// Successes remembered at most; so many failures end the looking.
const CREDIT_MAX: u32 = 8;

/// The decision, from what the last waits were like.
#[derive(Debug)]
pub(crate) struct Spin {
    spin_max: Duration,
    idle_since: Instant,
    credit: u32,
}

impl Spin {
    /// Nothing is known yet: it sleeps at once.
    pub(crate) fn new(spin_max: Duration, now: Instant) -> Self {
        Self { spin_max, idle_since: now, credit: 0 }
    }

    /// Something came. Whatever comes within the limit, looked for or slept for, is a reason to look the next time.
    pub(crate) fn work(&mut self, now: Instant) {
        let soon = now.saturating_duration_since(self.idle_since) <= 2 * self.spin_max;
        self.credit = if soon { (self.credit + 1).min(CREDIT_MAX) } else { self.credit.saturating_sub(2) };
        self.idle_since = now;
    }

    /// Whether to look again rather than sleep.
    pub(crate) fn look_again(&self, now: Instant) -> bool {
        self.credit > 0 && now.saturating_duration_since(self.idle_since) < self.spin_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_again_while_that_pays() {
        let mut now = Instant::now();
        let mut spin = Spin::new(SPIN_MAX_USUAL, now);
        assert!(!spin.look_again(now));
        for _ in 0..3 {
            now += Duration::from_micros(20);
            spin.work(now);
        }
        assert!(spin.look_again(now + Duration::from_micros(40)));
        assert!(!spin.look_again(now + Duration::from_micros(60)));
        for _ in 0..2 {
            now += Duration::from_millis(5);
            spin.work(now);
        }
        assert!(!spin.look_again(now));
    }

    #[test]
    fn never_looks_again_where_it_must_not() {
        let now = Instant::now();
        let mut spin = Spin::new(Duration::ZERO, now);
        spin.work(now);
        assert!(!spin.look_again(now));
    }
}
