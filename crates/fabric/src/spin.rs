//! Decides whether a waiting loop polls again or sleeps. Pure, except [`AdaptiveSpin::yield_cpu`]: time is an argument.

use std::time::{Duration, Instant};

/// How long to look again: about what going to sleep and waking up would cost whoever is waited for.
const SPIN_LIMIT: Duration = Duration::from_micros(50);

/// Who gives the CPU away has it back so soon, unless somebody else runs on it.
const YIELD_TIME_IDLE_MAX: Duration = Duration::from_micros(3);

/// How long somebody is taken to share the CPU after one was seen to: some tens of faults.
const SHARED_CPU_MEMORY: Duration = Duration::from_millis(1);

/// Who is waited for never works for so long at a time; strangers do.
const PEER_RUN_TIME_MAX: Duration = Duration::from_micros(300);

/// How long strangers are taken to have work after they were seen to. A look costs as much as they work at a time, some
/// milliseconds at most.
const CONTENDED_CPU_MEMORY: Duration = Duration::from_millis(50);

/// Successes remembered at most; so many failures end the looking.
const CREDIT_MAX: u32 = 8;

/// Looks that a beginner may have before the first success.
const CREDIT_INITIAL: u32 = 2;

// To wake another CPU costs 15 to 30 us, about as much as everything else that a page fault needs. But a loop that
// polls in vain takes the CPU from threads that have work. So the loop yields the CPU between two polls, and polls
// only where that paid off recently.
//
// If another thread runs on this CPU meanwhile, sleeping is better. Usually that thread is the awaited peer: to
// switch to it and be woken by it costs two switches of about 2 us, and polling only adds to that. If it is an
// unrelated thread, a loop that yields loses a whole time slice, while a thread that is woken runs first.

/// The decision of one loop, from what its last waits were like.
#[derive(Debug)]
pub struct AdaptiveSpin {
    idle_since: Instant,
    credit: u32,
    /// Somebody shares the CPU until then.
    shared_until: Option<Instant>,
    /// Strangers have work until then.
    contended_until: Option<Instant>,
}

impl AdaptiveSpin {
    /// Nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self { idle_since: now, credit: CREDIT_INITIAL, shared_until: None, contended_until: None }
    }

    /// Something came. Whatever comes within the limit, looked for or slept for, is a reason to look the next time.
    pub fn record_event(&mut self, now: Instant) {
        let soon = self.idle_time(now) <= SPIN_LIMIT;
        self.credit = if soon { (self.credit + 1).min(CREDIT_MAX) } else { self.credit.saturating_sub(1) };
        self.idle_since = now;
    }

    /// What came was dealt with: the wait begins.
    pub fn start_wait(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// Whether to look again rather than sleep.
    pub fn should_spin(&self, now: Instant) -> bool {
        self.credit > 0 && !self.is_cpu_shared(now) && self.should_spin_for(now, SPIN_LIMIT)
    }

    /// Whether somebody else was seen to run on this CPU a moment ago.
    pub fn is_cpu_shared(&self, now: Instant) -> bool {
        [self.shared_until, self.contended_until].into_iter().flatten().any(|until| now < until)
    }

    /// Whether to look again for something that is known to come, at most for so long, also where who is waited for, and
    /// who waits for it, may run on this CPU in between.
    pub fn should_spin_for(&self, now: Instant, limit: Duration) -> bool {
        self.idle_time(now) <= limit && self.contended_until.is_none_or(|until| until <= now)
    }

    /// Gives the CPU away between two looks.
    pub fn yield_cpu(&mut self) {
        let began = Instant::now();
        std::thread::yield_now();
        self.record_yield(began, Instant::now());
    }

    /// The CPU was given away, and came back.
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
    fn looks_again_while_that_pays() {
        let mut now = Instant::now();
        let mut spin = AdaptiveSpin::new(now);
        for _ in 0..CREDIT_INITIAL {
            assert!(spin.should_spin(now), "it has to begin somehow");
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
    fn sleeps_where_somebody_shares_the_cpu() {
        let mut now = Instant::now();
        let mut spin = AdaptiveSpin::new(now);
        spin.record_yield(now, now + YIELD_TIME_IDLE_MAX);
        assert!(
            spin.should_spin(now) && spin.should_spin_for(now + 3 * SPIN_LIMIT, 4 * SPIN_LIMIT),
            "it came back at once"
        );
        assert!(!spin.should_spin_for(now + 5 * SPIN_LIMIT, 4 * SPIN_LIMIT));
        spin.record_yield(now, now + PEER_RUN_TIME_MAX);
        now += PEER_RUN_TIME_MAX;
        spin.start_wait(now);
        assert!(spin.is_cpu_shared(now) && !spin.is_cpu_shared(now + SHARED_CPU_MEMORY));
        assert!(!spin.should_spin(now) && spin.should_spin_for(now, SPIN_LIMIT), "only a stream is worth it");
        now += SHARED_CPU_MEMORY;
        spin.start_wait(now);
        assert!(spin.should_spin(now), "it may be alone");
    }

    #[test]
    fn sleeps_where_strangers_have_work() {
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
        assert!(spin.should_spin(now), "they may have ended");
    }
}
