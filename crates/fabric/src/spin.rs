//! Whether to look again for a while before sleeping. Waking another CPU costs 15 to 30 µs, about as much as
//! everything else that a page fault needs; but where nothing comes, looking again takes the CPU from those who have
//! work. So who looks again gives the CPU away between two looks, and does so only where that was worth it lately.
//!
//! Where somebody else runs on this CPU meanwhile, sleeping is better. Mostly that is whoever is waited for: handing over to
//! it and being woken by it costs two switches of some 2 µs, and looking only adds more. Where it is a stranger, who gives
//! the CPU away loses a whole turn, and who is woken comes first. Pure, but for [`Spin::give_way`]: time is an argument.

use std::time::{Duration, Instant};

/// How long to look again: about what going to sleep and waking up would cost whoever is waited for.
const SPIN_LIMIT: Duration = Duration::from_micros(50);

/// Who gives the CPU away has it back so soon, unless somebody else runs on it.
const WAY_LIMIT: Duration = Duration::from_micros(3);

/// How long somebody is taken to share the CPU after one was seen to: some tens of faults.
const SHARED_PAUSE: Duration = Duration::from_millis(1);

/// Who is waited for never works for so long at a time; strangers do.
const KIN_LIMIT: Duration = Duration::from_micros(300);

/// How long strangers are taken to have work after they were seen to. A look costs as much as they work at a time, some
/// milliseconds at most.
const CROWDED_PAUSE: Duration = Duration::from_millis(50);

/// Successes remembered at most; so many failures end the looking.
const CREDIT_MAX: u32 = 8;

/// Looks that a beginner may have before the first success.
const CREDIT_FIRST: u32 = 2;

/// The decision of one loop, from what its last waits were like.
#[derive(Debug)]
pub struct Spin {
    idle_since: Instant,
    credit: u32,
    /// Somebody shares the CPU until then.
    shared_until: Option<Instant>,
    /// Strangers have work until then.
    crowded_until: Option<Instant>,
}

impl Spin {
    /// Nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self { idle_since: now, credit: CREDIT_FIRST, shared_until: None, crowded_until: None }
    }

    /// Something came. Whatever comes within the limit, looked for or slept for, is a reason to look the next time.
    pub fn came(&mut self, now: Instant) {
        let soon = self.idle(now) <= SPIN_LIMIT;
        self.credit = if soon { (self.credit + 1).min(CREDIT_MAX) } else { self.credit.saturating_sub(1) };
        self.idle_since = now;
    }

    /// What came was dealt with: the wait begins.
    pub fn done(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// Whether to look again rather than sleep.
    pub fn look_again(&self, now: Instant) -> bool {
        self.credit > 0 && !self.shares_cpu(now) && self.look_again_for(now, SPIN_LIMIT)
    }

    /// Whether somebody else was seen to run on this CPU a moment ago.
    pub fn shares_cpu(&self, now: Instant) -> bool {
        [self.shared_until, self.crowded_until].into_iter().flatten().any(|until| now < until)
    }

    /// Whether to look again for something that is known to come, at most for so long, also where who is waited for, and
    /// who waits for it, may run on this CPU in between.
    pub fn look_again_for(&self, now: Instant, limit: Duration) -> bool {
        self.idle(now) <= limit && self.crowded_until.is_none_or(|until| until <= now)
    }

    /// Gives the CPU away between two looks.
    pub fn give_way(&mut self) {
        let began = Instant::now();
        std::thread::yield_now();
        self.gave_way(began, Instant::now());
    }

    /// The CPU was given away, and came back.
    fn gave_way(&mut self, began: Instant, now: Instant) {
        let away = now.saturating_duration_since(began);
        if away > WAY_LIMIT {
            self.shared_until = Some(now + SHARED_PAUSE);
        }
        if away > KIN_LIMIT {
            self.crowded_until = Some(now + CROWDED_PAUSE);
        }
    }

    fn idle(&self, now: Instant) -> Duration {
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
        let mut spin = Spin::new(now);
        for _ in 0..CREDIT_FIRST {
            assert!(spin.look_again(now), "it has to begin somehow");
            now += LATE;
            spin.came(now);
        }
        assert!(!spin.look_again(now));
        for _ in 0..CREDIT_MAX {
            now += SOON;
            spin.came(now);
        }
        now += LATE;
        spin.done(now);
        assert!(spin.look_again(now + Duration::from_micros(40)), "the wait begins when the work ends");
        assert!(!spin.look_again(now + Duration::from_micros(60)));
        for _ in 0..CREDIT_MAX {
            now += LATE;
            spin.came(now);
        }
        assert!(!spin.look_again(now));
    }

    #[test]
    fn sleeps_where_somebody_shares_the_cpu() {
        let mut now = Instant::now();
        let mut spin = Spin::new(now);
        spin.gave_way(now, now + WAY_LIMIT);
        assert!(
            spin.look_again(now) && spin.look_again_for(now + 3 * SPIN_LIMIT, 4 * SPIN_LIMIT),
            "it came back at once"
        );
        assert!(!spin.look_again_for(now + 5 * SPIN_LIMIT, 4 * SPIN_LIMIT));
        spin.gave_way(now, now + KIN_LIMIT);
        now += KIN_LIMIT;
        spin.done(now);
        assert!(spin.shares_cpu(now) && !spin.shares_cpu(now + SHARED_PAUSE));
        assert!(!spin.look_again(now) && spin.look_again_for(now, SPIN_LIMIT), "only a stream is worth it");
        now += SHARED_PAUSE;
        spin.done(now);
        assert!(spin.look_again(now), "it may be alone");
    }

    #[test]
    fn sleeps_where_strangers_have_work() {
        let mut now = Instant::now();
        let mut spin = Spin::new(now);
        now += LATE;
        spin.gave_way(now - LATE, now);
        spin.came(now);
        spin.done(now);
        assert!(!spin.look_again(now) && !spin.look_again_for(now, LATE));
        assert!(spin.shares_cpu(now + 2 * SHARED_PAUSE));
        now += CROWDED_PAUSE;
        spin.done(now);
        assert!(spin.look_again(now), "they may have ended");
    }
}
