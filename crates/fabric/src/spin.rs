//! Decides whether a waiting loop polls again or sleeps. Pure, except [`AdaptiveSpin::yield_cpu`]: time is an argument.

use std::time::{Duration, Instant};

/// Longest time to spin: about as long as a sleep and a wakeup would delay the awaited peer.
const SPIN_LIMIT: Duration = Duration::from_micros(50);

/// A thread that yields the CPU runs again within this time, unless another thread runs on that CPU.
const YIELD_TIME_IDLE_MAX: Duration = Duration::from_micros(3);

/// Time for which the CPU counts as shared after another thread was detected on it: as long as tens of page faults
/// take.
const SHARED_CPU_MEMORY: Duration = Duration::from_millis(1);

/// A thread that runs longer than this at a time is unrelated: the awaited peer runs for less.
const PEER_RUN_TIME_MAX: Duration = Duration::from_micros(300);

/// Time for which the CPU counts as contended after an unrelated thread was detected on it. Each detection costs a
/// yield that lasts as long as that thread runs, some milliseconds at most.
const CONTENDED_CPU_MEMORY: Duration = Duration::from_millis(50);

/// Largest credit. Each success of spinning adds one; each failure removes one, and without credit the loop sleeps.
const CREDIT_MAX: u32 = 8;

/// Credit at the start: the number of waits that may spin before the first success.
const CREDIT_INITIAL: u32 = 2;

// Waking another CPU costs 15 to 30 us, about as much as all other work of a page fault. But a loop that polls without
// success takes the CPU from threads that have work. So the loop yields the CPU between two polls, and polls only if
// polling had success recently.
//
// If another thread runs on this CPU, sleeping is better. Usually that thread is the awaited peer: switching to it and
// back costs two switches of about 2 us, and polling only adds to that. If that thread is unrelated, a loop that yields
// loses a whole time slice, while a thread that is woken runs first.

/// Decides for one loop whether it spins, from its recent waits.
#[derive(Debug)]
pub struct AdaptiveSpin {
    idle_since: Instant,
    credit: u32,
    /// Time until which the CPU counts as shared with another thread.
    shared_until: Option<Instant>,
    /// Time until which the CPU counts as contended by unrelated threads.
    contended_until: Option<Instant>,
}

impl AdaptiveSpin {
    /// Creates the state of a loop without history.
    pub fn new(now: Instant) -> Self {
        Self { idle_since: now, credit: CREDIT_INITIAL, shared_until: None, contended_until: None }
    }

    /// Records an event. If the event arrived within the spin limit, while spinning or asleep, the next wait may spin.
    pub fn record_event(&mut self, now: Instant) {
        let soon = self.idle_time(now) <= SPIN_LIMIT;
        self.credit = if soon { (self.credit + 1).min(CREDIT_MAX) } else { self.credit.saturating_sub(1) };
        self.idle_since = now;
    }

    /// Records the start of a wait: all earlier events were handled.
    pub fn start_wait(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// Whether to spin rather than sleep.
    pub fn should_spin(&self, now: Instant) -> bool {
        self.credit > 0 && !self.is_cpu_shared(now) && self.should_spin_for(now, SPIN_LIMIT)
    }

    /// Whether another thread was recently detected on this CPU.
    pub fn is_cpu_shared(&self, now: Instant) -> bool {
        [self.shared_until, self.contended_until].into_iter().flatten().any(|until| now < until)
    }

    /// Whether to spin for an event that is certain to arrive, for at most `limit`. It may be true even if the CPU is
    /// shared with the awaited peer, but not if an unrelated thread contends for it.
    pub fn should_spin_for(&self, now: Instant, limit: Duration) -> bool {
        self.idle_time(now) <= limit && self.contended_until.is_none_or(|until| until <= now)
    }

    /// Yields the CPU between two polls.
    pub fn yield_cpu(&mut self) {
        let began = Instant::now();
        std::thread::yield_now();
        self.record_yield(began, Instant::now());
    }

    /// Records the duration of a yield: a long one means that another thread ran.
    fn record_yield(&mut self, began: Instant, now: Instant) {
        let away = now.saturating_duration_since(began);
        if away > YIELD_TIME_IDLE_MAX {
            self.shared_until = Some(now + SHARED_CPU_MEMORY);
        }
        if away > PEER_RUN_TIME_MAX {
            self.contended_until = Some(now + CONTENDED_CPU_MEMORY);
        }
    }

    fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.idle_since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(20);
    const LATE: Duration = Duration::from_millis(5);

    #[test]
    fn a_wait_spins_while_events_arrive_soon() {
        let mut now = Instant::now();
        let mut spin = AdaptiveSpin::new(now);
        for _ in 0..CREDIT_INITIAL {
            assert!(spin.should_spin(now), "a new loop may spin");
            now += LATE;
            spin.record_event(now);
        }
        assert!(!spin.should_spin(now));
        for _ in 0..CREDIT_MAX {
            now += SOON;
            spin.record_event(now);
        }
        now += LATE;
        spin.start_wait(now);
        assert!(spin.should_spin(now + Duration::from_micros(40)), "the wait begins when the work ends");
        assert!(!spin.should_spin(now + Duration::from_micros(60)));
        for _ in 0..CREDIT_MAX {
            now += LATE;
            spin.record_event(now);
        }
        assert!(!spin.should_spin(now));
    }

    #[test]
    fn a_wait_sleeps_when_a_peer_shares_the_cpu() {
        let mut now = Instant::now();
        let mut spin = AdaptiveSpin::new(now);
        spin.record_yield(now, now + YIELD_TIME_IDLE_MAX);
        assert!(
            spin.should_spin(now) && spin.should_spin_for(now + 3 * SPIN_LIMIT, 4 * SPIN_LIMIT),
            "the yield returned at once"
        );
        assert!(!spin.should_spin_for(now + 5 * SPIN_LIMIT, 4 * SPIN_LIMIT));
        spin.record_yield(now, now + PEER_RUN_TIME_MAX);
        now += PEER_RUN_TIME_MAX;
        spin.start_wait(now);
        assert!(spin.is_cpu_shared(now) && !spin.is_cpu_shared(now + SHARED_CPU_MEMORY));
        assert!(
            !spin.should_spin(now) && spin.should_spin_for(now, SPIN_LIMIT),
            "only for an event that is certain to arrive"
        );
        now += SHARED_CPU_MEMORY;
        spin.start_wait(now);
        assert!(spin.should_spin(now), "the CPU no longer counts as shared");
    }

    #[test]
    fn a_wait_sleeps_when_other_processes_need_the_cpu() {
        let mut now = Instant::now();
        let mut spin = AdaptiveSpin::new(now);
        now += LATE;
        spin.record_yield(now - LATE, now);
        spin.record_event(now);
        spin.start_wait(now);
        assert!(!spin.should_spin(now) && !spin.should_spin_for(now, LATE));
        assert!(spin.is_cpu_shared(now + 2 * SHARED_CPU_MEMORY));
        now += CONTENDED_CPU_MEMORY;
        spin.start_wait(now);
        assert!(spin.should_spin(now), "the CPU no longer counts as contended");
    }
}
