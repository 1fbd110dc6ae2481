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

/// Samples per clock. The bounds of each sample are valid, but they are wide if the thread was interrupted.
const SAMPLES: usize = 3;

/// A thread that sleeps in a call with a time limit, as observed before its stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SleepingCall {
    call: SystemCall,
    switch_out: SwitchOut,
    /// Number of voluntary context switches of the thread so far.
    voluntary_switches: u64,
    /// When the thread was interrupted, by CLOCK_MONOTONIC.
    interrupted_ns: Option<u64>,
}

/// The context switch by which a thread left its CPU.
#[derive(Debug, Clone, Copy)]
struct SwitchOut {
    processor: u32,
    /// Time of the switch, by the scheduler clock of that CPU.
    at_ns: u64,
    /// The CPU time that the thread had used, and had waited for, by then.
    time: SchedStat,
}

//  enters A ─ sleeps ── observe ── interrupt ─ woken ─ runs ─ stops              in A: woken by the stop
//  enters A ─ sleeps ── observe ─ woken ─ leaves A, enters B ─ interrupt ─ stops in B, which shows the same registers
//
// Only the time of the wake-up distinguishes these two cases. It is the time of the last context switch, less the time that
// the thread ran and waited for a CPU since `observe` (`/proc/TID/schedstat`, Documentation/scheduler/sched-stats.rst).
/// A sleeping call whose thread has stopped in the same place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoppedCall {
    before: SleepingCall,
    switch_out: SwitchOut,
}

impl SleepingCall {
    /// Observes a thread; `None` if it does not sleep in a call with a time limit.
    pub(crate) fn observe(tid: i32) -> Option<Self> {
        let first = SystemCall::read(tid).ok()??;
        LimitedCall::from_arguments(first.number, &first.arguments)?;
        // Read the counters before `call`: if the thread leaves this call from here on, the counters change.
        let sleeps = ProcStatus::read(tid).ok()?.voluntary_switches;
        let time = SchedStat::read(tid).ok()?;
        let call = SystemCall::read(tid).ok()??;
        LimitedCall::from_arguments(call.number, &call.arguments)?;
        Some(Self { call, switch_out: SwitchOut::read(tid, time)?, voluntary_switches: sleeps, interrupted_ns: None })
    }

    /// Records the time of the interruption. Call it just before the thread is interrupted.
    pub(crate) fn mark_interrupted(&mut self) {
        self.interrupted_ns = Some(clock::monotonic_ns());
    }

    /// Returns the call of the stopped thread, if the thread is at the same instruction and has slept only once since: in
    /// the stop.
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
    /// Returns when the thread entered the call in which it is stopped, by CLOCK_MONOTONIC. The result may be too late,
    /// never too early. `None` if the call may be a later one than the observed one: a thread that was woken before it was
    /// interrupted may have left that call, and entered the next without sleeping.
    pub(crate) fn entered_at_ns(&self, clocks: &mut ProcessorClocks) -> Option<u64> {
        let woken_ns = clocks.get(self.switch_out.processor)?.earliest_ns(self.woken_at_ns()?)?;
        if woken_ns < self.before.interrupted_ns? {
            return None;
        }
        clocks.get(self.before.switch_out.processor)?.latest_ns(self.before.switch_out.at_ns)
    }

    /// Returns when the thread was woken, by the scheduler clock of the CPU on which it stopped. Since then it has run, or
    /// waited for a CPU.
    fn woken_at_ns(&self) -> Option<u64> {
        let (before, now) = (&self.before.switch_out.time, &self.switch_out.time);
        let awake_ns = now.ran_ns.checked_sub(before.ran_ns)? + now.waited_ns.checked_sub(before.waited_ns)?;
        self.switch_out.at_ns.checked_sub(awake_ns)
    }
}

/// CLOCK_MONOTONIC minus the scheduler clock of a CPU, in nanoseconds: lower and upper bound.
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

    /// Measures the offset of a CPU. The calling thread moves to that CPU during the measurement.
    fn measure(processor: u32) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let mut only = CpuSet::new();
        if processor as usize >= CpuSet::MAX_CPU || !before.is_set(processor as usize) {
            return None;
        }
        only.set(processor as usize);
        sched_setaffinity(None, &only).ok()?;
        let looks: Vec<_> = (0..SAMPLES).filter_map(|_| Self::sample()).collect();
        // This cannot fail: the thread was allowed to run on these CPUs before.
        let _ = sched_setaffinity(None, &before);
        let least_ns = looks.iter().map(|look| look.least_ns).max()?;
        Some(Self { least_ns, most_ns: looks.iter().map(|look| look.most_ns).min()? })
    }

    fn sample() -> Option<Self> {
        let started_ns = clock::monotonic_ns().cast_signed();
        // This call makes the kernel update the time that `read_last_run_ns` reads. sched_yield(2) would do so, too, but
        // gives up the CPU.
        let _ = clock_gettime(ClockId::ThreadCPUTime);
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let last_run_ns = process::read_last_run_ns(own).ok()?.cast_signed();
        Some(Self { least_ns: started_ns - last_run_ns, most_ns: clock::monotonic_ns().cast_signed() - last_run_ns })
    }
}

/// Clock offsets of CPUs, each measured once. For calls that are judged at the same time.
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

    /// Starts a program that sleeps. Returns the program, the time before its start, and a time at which it was seen asleep.
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
        seen.to_stopped(tid, registers.rsp, registers.rip).expect("the thread is still in its call")
    }

    /// On a busy machine a wait may seem younger, never older, so the best of several counts.
    #[test]
    fn the_start_of_a_wait_is_exact_or_slightly_late() {
        const ATTEMPTS: usize = 50;
        const LATE_NS_MAX: u64 = 50_000_000;
        let late_ns: Vec<u64> =
            (0..ATTEMPTS).map(|_| how_late()).take_while(|late_ns| *late_ns > LATE_NS_MAX).collect();
        assert!(late_ns.len() < ATTEMPTS, "each seems to have begun later than it was seen: {late_ns:?} ns");
    }

    /// Returns by how many nanoseconds the computed start of a wait is later than the observed one. Checks that the computed
    /// start is not before the start of the program.
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
    fn a_thread_that_was_woken_may_be_in_a_later_call() {
        let (mut sleeper, ..) = sleeper();
        let tid = sleeper.id().cast_signed();
        ptrace::seize(tid, 0).unwrap();
        let seen = SleepingCall::observe(tid).expect("it sleeps");
        let mut stopped = stop(tid, seen);
        let mut clocks = ProcessorClocks::default();
        assert_eq!(stopped.entered_at_ns(&mut clocks), None, "no interruption was recorded");
        stopped.before.mark_interrupted();
        assert_eq!(stopped.entered_at_ns(&mut clocks), None, "the interruption was recorded after the wake-up");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
