//! Computes when a thread entered the system call that it sleeps in.
//!
//! The kernel does not show that time. It shows when the thread was last on a CPU, by that CPU's scheduler clock: the
//! thread entered the call then, or had a spurious wake-up in it since. So a wait may appear younger than it is, never
//! older. `interrupted_calls` and the call timer use this module.

use std::collections::BTreeMap;

use farfork_sys::clock;
use farfork_sys::process::{self, ProcStat, ProcStatus, SchedStat, SystemCall};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::call_timeouts::LimitedCall;

/// A clock is looked at so often: each look may be late, and never early.
const SAMPLES: usize = 3;

/// A thread that sleeps in a call with a time limit, as it looked before it was stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SleepingCall {
    call: SystemCall,
    switch_out: SwitchOut,
    /// How often it had gone to sleep by itself.
    voluntary_switches: u64,
    /// When it was told to stop, by CLOCK_MONOTONIC.
    interrupted_ns: Option<u64>,
}

/// The context switch by which a thread left its processor.
#[derive(Debug, Clone, Copy)]
struct SwitchOut {
    processor: u32,
    /// By the scheduler's clock of that processor.
    at_ns: u64,
    /// What it had had of processors by then.
    time: SchedStat,
}

//  enters A ─ sleeps ── observe ── interrupt ─ woken ─ runs ─ stops              in A: woken by the stop
//  enters A ─ sleeps ── observe ─ woken ─ leaves A, enters B ─ interrupt ─ stops in B, which shows the same registers
//
// Only the time of the wake-up distinguishes these. It is the time of the last context switch, less the time that the
// thread ran and waited for a CPU since `observe` (`/proc/TID/schedstat`, Documentation/scheduler/sched-stats.rst).
/// The same of a thread that now stands where it was seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoppedCall {
    before: SleepingCall,
    switch_out: SwitchOut,
}

impl SleepingCall {
    /// Looks at a thread; `None` where it sleeps in no such call.
    pub(crate) fn observe(tid: i32) -> Option<Self> {
        let first = SystemCall::read(tid).ok()??;
        LimitedCall::from_arguments(first.number, &first.arguments)?;
        // The counts before all that they vouch for: a thread that leaves the call from here on is found by them.
        let sleeps = ProcStatus::read(tid).ok()?.voluntary_switches;
        let time = SchedStat::read(tid).ok()?;
        let call = SystemCall::read(tid).ok()??;
        LimitedCall::from_arguments(call.number, &call.arguments)?;
        Some(Self { call, switch_out: SwitchOut::read(tid, time)?, voluntary_switches: sleeps, interrupted_ns: None })
    }

    /// The thread is told to stop after this.
    pub(crate) fn mark_interrupted(&mut self) {
        self.interrupted_ns = Some(clock::monotonic_ns());
    }

    /// The thread, which now stands, if it is where it was and has gone to sleep once since, in the stop.
    pub(crate) fn to_stopped(self, tid: i32, stack_pointer: u64, instruction_pointer: u64) -> Option<StoppedCall> {
        const STOP_SWITCHES: u64 = 1;
        if (self.call.stack_pointer, self.call.instruction_pointer) != (stack_pointer, instruction_pointer) {
            return None;
        }
        let time = SchedStat::read(tid).ok()?;
        let has_run_once = time.timeslices == self.switch_out.time.timeslices + STOP_SWITCHES;
        let has_slept_once =
            || ProcStatus::read(tid).is_ok_and(|now| now.voluntary_switches <= self.voluntary_switches + STOP_SWITCHES);
        if !has_run_once && !has_slept_once() {
            return None;
        }
        Some(StoppedCall { before: self, switch_out: SwitchOut::read(tid, time)? })
    }
}

impl SwitchOut {
    fn read(tid: i32, time: SchedStat) -> Option<Self> {
        let at_ns = process::read_last_run_ns(tid).ok()?;
        Some(Self { processor: ProcStat::read(tid).ok()?.processor, at_ns, time })
    }
}

impl StoppedCall {
    /// When the thread has entered the call that it stands in, by CLOCK_MONOTONIC: not earlier than it has. `None` where that may be
    /// a later call: a thread that was woken before it was told to stop may have left the one that it was seen in, and have
    /// entered the next without any sleep.
    pub(crate) fn entered_at_ns(&self, clocks: &mut ProcessorClocks) -> Option<u64> {
        let woken_ns = clocks.get(self.switch_out.processor)?.earliest_ns(self.woken_at_ns()?)?;
        if woken_ns < self.before.interrupted_ns? {
            return None;
        }
        clocks.get(self.before.switch_out.processor)?.latest_ns(self.before.switch_out.at_ns)
    }

    /// When the thread was woken, by the clock of the processor that it stopped on: from then on it has run, or waited for a processor.
    fn woken_at_ns(&self) -> Option<u64> {
        let (before, now) = (&self.before.switch_out.time, &self.switch_out.time);
        let awake_ns = now.ran_ns.checked_sub(before.ran_ns)? + now.waited_ns.checked_sub(before.waited_ns)?;
        self.switch_out.at_ns.checked_sub(awake_ns)
    }
}

/// By how much CLOCK_MONOTONIC is ahead of the scheduler's clock of a processor, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct ClockOffset {
    least_ns: i64,
    most_ns: i64,
}

impl ClockOffset {
    fn earliest_ns(&self, scheduler_ns: u64) -> Option<u64> {
        scheduler_ns.checked_add_signed(self.least_ns)
    }

    fn latest_ns(&self, scheduler_ns: u64) -> Option<u64> {
        scheduler_ns.checked_add_signed(self.most_ns)
    }

    /// The calling thread looks for itself, on that processor.
    fn measure(processor: u32) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let mut only = CpuSet::new();
        if processor as usize >= CpuSet::MAX_CPU || !before.is_set(processor as usize) {
            return None;
        }
        only.set(processor as usize);
        sched_setaffinity(None, &only).ok()?;
        let looks: Vec<_> = (0..SAMPLES).filter_map(|_| Self::sample()).collect();
        // It was allowed there before.
        let _ = sched_setaffinity(None, &before);
        let least_ns = looks.iter().map(|look| look.least_ns).max()?;
        Some(Self { least_ns, most_ns: looks.iter().map(|look| look.most_ns).min()? })
    }

    fn sample() -> Option<Self> {
        let begun_ns = clock::monotonic_ns().cast_signed();
        // To tell it, the kernel notes the time; to yield would do so, too, but gives the processor away.
        let _ = clock_gettime(ClockId::ThreadCPUTime);
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let last_run_ns = process::read_last_run_ns(own).ok()?.cast_signed();
        Some(Self { least_ns: begun_ns - last_run_ns, most_ns: clock::monotonic_ns().cast_signed() - last_run_ns })
    }
}

/// The clocks of processors, each looked at once: for calls that are judged together.
#[derive(Debug, Default)]
pub(crate) struct ProcessorClocks(BTreeMap<u32, Option<ClockOffset>>);

impl ProcessorClocks {
    fn get(&mut self, processor: u32) -> Option<ClockOffset> {
        *self.0.entry(processor).or_insert_with(|| ClockOffset::measure(processor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_sys::ptrace;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(30);

    /// A program that sleeps, when it was started, and when it was seen to sleep.
    fn sleeper() -> (Child, u64, u64) {
        let begun_ns = clock::monotonic_ns();
        let sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let give_up = Instant::now() + LIMIT;
        while SleepingCall::observe(sleeper.id().cast_signed()).is_none() {
            assert!(Instant::now() < give_up, "it does not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        (sleeper, begun_ns, clock::monotonic_ns())
    }

    fn stop(tid: i32, seen: SleepingCall) -> StoppedCall {
        ptrace::interrupt(tid).unwrap();
        let stopped = crate::capture::Deadline::after(LIMIT).wait_report().unwrap();
        assert!(matches!(stopped, (of, ptrace::TraceeEvent::Stopped { .. }) if of == tid));
        let registers = ptrace::read_registers(tid).unwrap().unwrap();
        seen.to_stopped(tid, registers.rsp, registers.rip).expect("it is where it was")
    }

    /// A busy machine may make a wait younger, and never older: the best of several tells.
    #[test]
    fn a_wait_is_no_older_than_it_is_and_hardly_younger() {
        const ATTEMPTS: usize = 50;
        const LATE_NS_MAX: u64 = 50_000_000;
        let late_ns: Vec<u64> =
            (0..ATTEMPTS).map(|_| how_late()).take_while(|late_ns| *late_ns > LATE_NS_MAX).collect();
        assert!(late_ns.len() < ATTEMPTS, "each seems to have begun later than it was seen: {late_ns:?} ns");
    }

    /// By how much a wait seems to have begun later than it was seen. It never seems to have begun before the program.
    fn how_late() -> u64 {
        const ROUNDING_NS: u64 = 1_000_000;
        let (mut sleeper, begun_ns, sleeps_ns) = sleeper();
        std::thread::sleep(Duration::from_millis(200));
        let tid = sleeper.id().cast_signed();
        ptrace::seize(tid, 0).unwrap();
        let mut seen = SleepingCall::observe(tid).expect("it sleeps");
        seen.mark_interrupted();
        let stopped = stop(tid, seen);
        let entered_ns = stopped.entered_at_ns(&mut ProcessorClocks::default()).expect("it was woken by the stop");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(entered_ns + ROUNDING_NS >= begun_ns, "begun at {begun_ns}, entered at {entered_ns}");
        entered_ns.saturating_sub(sleeps_ns)
    }

    #[test]
    fn a_thread_that_was_woken_before_may_be_in_a_later_call() {
        let (mut sleeper, ..) = sleeper();
        let tid = sleeper.id().cast_signed();
        ptrace::seize(tid, 0).unwrap();
        let seen = SleepingCall::observe(tid).expect("it sleeps");
        let mut stopped = stop(tid, seen);
        let mut clocks = ProcessorClocks::default();
        assert_eq!(stopped.entered_at_ns(&mut clocks), None, "nobody has told it to stop");
        stopped.before.mark_interrupted();
        assert_eq!(stopped.entered_at_ns(&mut clocks), None, "it was told behind that");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
