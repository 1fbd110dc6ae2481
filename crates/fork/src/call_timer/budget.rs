//! The CPU time that the call timer may use with real-time priority. Pure: clocks are arguments.
//!
//! Real-time threads run before all ordinary threads, so a bug in the timer, or a flood of calls, could block the
//! machine. Above its budget, the timer runs with ordinary priority: it may end calls late, but still ends them.

use std::collections::VecDeque;

/// Length of the sliding window.
const WINDOW_NS: u64 = 1_000_000_000;

/// CPU time with real-time priority within a window: a tenth of one CPU, enough to end 500 calls per second in time, at
/// about 200 us each. The kernel's own limit for real-time threads (`sched_rt_runtime_us`) would leave other processes
/// only a twentieth of the CPU.
const BUDGET_NS: u64 = 100_000_000;

/// The timer gets real-time priority again when the window has at most this CPU time. Less than the budget, so that the
/// priority does not change at each sample.
const REGAIN_NS: u64 = BUDGET_NS / 2;

/// Time between two samples. The timer exceeds its budget at most by the CPU time that its threads use between two samples.
pub(super) const SAMPLE_NS: u64 = 50_000_000;

/// The CPU time that was used up to a point in time.
#[derive(Debug, Clone, Copy)]
struct CpuTimeSample {
    at_ns: u64,
    used_ns: u64,
}

//  real-time ── more than BUDGET_NS within WINDOW_NS ──▶ ordinary
//      ▲                                                    │
//      └──────── at most REGAIN_NS within WINDOW_NS ────────┘
/// The budget, as samples of the last window. Clocks are arguments.
#[derive(Debug)]
pub(super) struct RealTimeBudget {
    /// Samples, the oldest first. The first sample is at the start of the window or before.
    samples: VecDeque<CpuTimeSample>,
    is_real_time: bool,
}

impl RealTimeBudget {
    /// Creates an unused budget. `used_ns` is the CPU time used so far.
    pub(super) fn new(now_ns: u64, used_ns: u64) -> Self {
        Self { samples: VecDeque::from([CpuTimeSample { at_ns: now_ns, used_ns }]), is_real_time: true }
    }

    /// Whether the timer may run with real-time priority.
    pub(super) fn is_real_time(&self) -> bool {
        self.is_real_time
    }

    /// Whether the next sample is due.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_sample_ns()
    }

    /// When the next sample is due.
    pub(super) fn next_sample_ns(&self) -> u64 {
        self.samples.back().map_or(0, |newest| newest.at_ns + SAMPLE_NS)
    }

    /// Takes a sample: `used_ns` is the CPU time used so far. Returns whether the timer is real-time now, if this
    /// changed.
    pub(super) fn sample(&mut self, now_ns: u64, used_ns: u64) -> Option<bool> {
        let is_in_window = |sample: &CpuTimeSample| sample.at_ns + WINDOW_NS > now_ns;
        while self.samples.get(1).is_some_and(|second| !is_in_window(second)) {
            self.samples.pop_front();
        }
        let before = self.samples.front().map_or(used_ns, |oldest| oldest.used_ns);
        self.samples.push_back(CpuTimeSample { at_ns: now_ns, used_ns });
        let limit = if self.is_real_time { BUDGET_NS } else { REGAIN_NS };
        let is_real_time = used_ns.saturating_sub(before) <= limit;
        (is_real_time != std::mem::replace(&mut self.is_real_time, is_real_time)).then_some(is_real_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes samples for `ns` at this CPU usage, in percent. Returns each change with its time.
    fn run(budget: &mut RealTimeBudget, clock: &mut (u64, u64), ns: u64, percent: u64) -> Vec<(u64, bool)> {
        let (mut changes, end) = (Vec::new(), clock.0 + ns);
        while clock.0 < end {
            *clock = (clock.0 + SAMPLE_NS, clock.1 + SAMPLE_NS * percent / 100);
            assert!(budget.is_due(clock.0));
            changes.extend(budget.sample(clock.0, clock.1).map(|is_real_time| (clock.0, is_real_time)));
        }
        changes
    }

    #[test]
    fn a_timer_within_its_budget_keeps_its_priority() {
        let (mut budget, mut clock) = (RealTimeBudget::new(0, 7), (0, 7));
        assert_eq!(run(&mut budget, &mut clock, 10 * WINDOW_NS, 10), []);
        assert!(budget.is_real_time());
    }

    #[test]
    fn a_timer_over_its_budget_loses_its_priority_and_regains_it() {
        let (mut budget, mut clock) = (RealTimeBudget::new(0, 0), (0, 0));
        let lost = run(&mut budget, &mut clock, 2 * WINDOW_NS, 100);
        assert_eq!(lost, [(3 * SAMPLE_NS, false)], "the first sample over 100 ms");
        let regained = run(&mut budget, &mut clock, 2 * WINDOW_NS, 0);
        assert_eq!(regained, [(2 * WINDOW_NS + WINDOW_NS - SAMPLE_NS, true)], "50 ms are left in the window");
        assert!(budget.is_real_time());
    }

    #[test]
    fn the_priority_does_not_alternate_at_the_limit() {
        let (mut budget, mut clock) = (RealTimeBudget::new(0, 0), (0, 0));
        run(&mut budget, &mut clock, WINDOW_NS, 20);
        assert!(!budget.is_real_time());
        assert_eq!(
            run(&mut budget, &mut clock, 10 * WINDOW_NS, 8),
            [],
            "8 % is below the budget, but above the half of it"
        );
        assert!(!budget.is_real_time());
    }

    #[test]
    fn a_burst_after_a_long_sleep_counts_by_itself() {
        let mut budget = RealTimeBudget::new(0, 0);
        assert_eq!(budget.sample(3_600 * WINDOW_NS, BUDGET_NS), None);
        assert_eq!(budget.sample(3_600 * WINDOW_NS + SAMPLE_NS, BUDGET_NS + 1), Some(false));
    }

    #[test]
    fn the_number_of_samples_is_bounded() {
        let (mut budget, mut clock) = (RealTimeBudget::new(0, 0), (0, 0));
        run(&mut budget, &mut clock, 20 * WINDOW_NS, 5);
        assert!(budget.samples.len() as u64 <= WINDOW_NS / SAMPLE_NS + 2);
    }
}
