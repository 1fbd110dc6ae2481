//! Pins the tracer to the CPU of the captured process, if that avoids waiting. `attempt` calls it.
//!
//! The tracer and the process wake each other half a dozen times. Each wake-up takes 2 to 3 µs on one CPU, and 15 µs or more
//! between two CPUs of a virtual machine.

use std::time::Duration;

use farfork_sys::process::ProcStat;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A stop that takes longer than this has waited for a CPU: other stops take 20 to 60 µs.
const BUSY_STOP: Duration = Duration::from_micros(400);

// Between two CPUs, a wake-up takes an interrupt, and longer still if the other CPU sleeps. A process that requests
// its own capture has no other use for its CPU, so the tracer always joins it. Any other process is joined only if its
// CPU is busy: a thread woken on a CPU that another thread uses waits for the end of that thread's time slice, 3 to
// 4 ms. On the tracer's CPU it runs as soon as the tracer, a real-time thread, sleeps.
/// Keeps the calling thread on one CPU until it is dropped.
#[derive(Debug)]
pub(in crate::capture) struct CpuPin {
    saved_cpus: CpuSet,
    pinned_cpu: CpuSet,
    /// Other processes, which stay pinned as long as this value exists.
    pinned_others: Vec<Pid>,
}

impl CpuPin {
    /// Pins this thread to the CPU on which the process ran when `stat` was read. Failure is harmless.
    pub(in crate::capture) fn pin_to(stat: &ProcStat) -> Option<Self> {
        let processor = stat.processor as usize;
        let before = sched_getaffinity(None).ok()?;
        if processor >= CpuSet::MAX_CPU || !before.is_set(processor) {
            return None;
        }
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).ok()?;
        Some(Self { saved_cpus: before, pinned_cpu: only, pinned_others: Vec::new() })
    }

    /// Pins this thread if the stop of `pid` took so long that other threads must be using its CPU.
    pub(in crate::capture) fn pin_to_busy(pid: i32, stop: Duration) -> Option<Self> {
        if stop < BUSY_STOP { None } else { Self::pin_to(&ProcStat::read(pid).ok()?) }
    }

    /// Pins a template to this thread's CPU.
    pub(in crate::capture) fn pin_template(&mut self, template: i32) {
        let template = Pid::from_raw(template).filter(|pid| sched_setaffinity(Some(*pid), &self.pinned_cpu).is_ok());
        self.pinned_others.extend(template);
    }
}

impl Drop for CpuPin {
    fn drop(&mut self) {
        // Templates get this thread's saved CPUs, not the CPUs of their parents: the CPU of a template does not matter.
        for pid in self.pinned_others.iter().copied().map(Some).chain([None]) {
            let _ = sched_setaffinity(pid, &self.saved_cpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_gets_its_affinity_back() {
        let before = sched_getaffinity(None).unwrap();
        let pid = std::process::id() as i32;
        assert!(CpuPin::pin_to_busy(pid, Duration::ZERO).is_none(), "a quick stop pins no thread");
        let join: [fn(i32) -> Option<CpuPin>; 2] =
            [|pid| CpuPin::pin_to_busy(pid, BUSY_STOP), |pid| CpuPin::pin_to(&ProcStat::read(pid).unwrap())];
        for join in join {
            let cpu_pin = join(pid);
            assert!(cpu_pin.is_none() || sched_getaffinity(None).unwrap().count() == 1);
            drop(cpu_pin);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        }
    }

    #[test]
    fn a_pinned_template_gets_its_affinity_back() {
        let before = sched_getaffinity(None).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&sleeper);
        if let Some(mut beside) = CpuPin::pin_to(&ProcStat::read(std::process::id() as i32).unwrap()) {
            beside.pin_template(pid.as_raw_nonzero().get());
            assert_eq!(sched_getaffinity(Some(pid)).unwrap().count(), 1);
        }
        assert_eq!(sched_getaffinity(Some(pid)).unwrap(), before);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
