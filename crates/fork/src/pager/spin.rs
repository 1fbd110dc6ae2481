//! Whether to look again for a while before sleeping. Waking a sleeping CPU costs 20 to 30 µs, about as much as a
//! fault; but where nothing comes, looking again takes the CPU from those who have work. Pure: time is an argument.

use std::time::{Duration, Instant};

/// How long to look again: about what going to sleep and waking up would cost the child.
const SPIN_LIMIT: Duration = Duration::from_micros(50);

/// Successes remembered at most; so many failures end the looking.
const CREDIT_MAX: u32 = 8;

/// The decision, from what the last waits were like.
#[derive(Debug)]
pub(super) struct Spin {
    idle_since: Instant,
    credit: u32,
}

impl Spin {
    /// Nothing is known yet: it sleeps at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { idle_since: now, credit: 0 }
    }

    /// Something came. Whatever comes within the limit, looked for or slept for, is a reason to look the next time.
    pub(super) fn work(&mut self, now: Instant) {
        let soon = now.saturating_duration_since(self.idle_since) <= SPIN_LIMIT;
        self.credit = if soon { (self.credit + 1).min(CREDIT_MAX) } else { self.credit.saturating_sub(2) };
        self.idle_since = now;
    }

    /// Whether to look again rather than sleep.
    pub(super) fn look_again(&self, now: Instant) -> bool {
        self.credit > 0 && now.saturating_duration_since(self.idle_since) <= SPIN_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_again_while_that_pays() {
        let mut now = Instant::now();
        let mut spin = Spin::new(now);
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
}
