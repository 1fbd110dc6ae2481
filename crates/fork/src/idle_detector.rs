//! Detects when a server becomes idle, so that it can return free memory to the system (`farfork_sys::allocator`).
//!
//! The allocator keeps freed memory: a daemon that used 55 MiB at peak load and 8 MiB seconds later still held 55 MiB
//! (`docs/decisions/020-memory-at-rest.md`). The daemon and the pager use this module.

use std::time::{Duration, Instant};

use farfork_sys::clock;

/// A server that uses less than this fraction of a CPU is idle.
const IDLE_CPU_FRACTION_MAX: f64 = 0.01;

/// CPU time since the server was last idle below which there is nothing to return: idle connections and timer checks
/// allocate no memory.
const WORK_MIN: Duration = Duration::from_millis(100);

/// Observes the CPU time of this process, on all CPUs.
#[derive(Debug)]
pub struct IdleDetector {
    checked_at: Instant,
    cpu_time: Duration,
    cpu_time_at_idle: Duration,
}

impl IdleDetector {
    /// Creates a detector. CPU time before this call counts, too, because the start of a server uses memory.
    pub fn new(now: Instant) -> Self {
        Self { checked_at: now, cpu_time: clock::process_cpu_time(), cpu_time_at_idle: Duration::ZERO }
    }

    /// Returns whether the process has become idle: since the last call it did almost nothing, but since it was last
    /// idle it did some work. Must be called every second or every few seconds.
    pub fn has_become_idle(&mut self, now: Instant) -> bool {
        self.update(now, clock::process_cpu_time())
    }

    fn update(&mut self, now: Instant, worked: Duration) -> bool {
        let most = now.saturating_duration_since(self.checked_at).mul_f64(IDLE_CPU_FRACTION_MAX);
        let is_at_rest = worked.saturating_sub(self.cpu_time) < most;
        (self.checked_at, self.cpu_time) = (now, worked);
        let begins = is_at_rest && worked.saturating_sub(self.cpu_time_at_idle) >= WORK_MIN;
        if begins {
            self.cpu_time_at_idle = worked;
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_is_reported_once_after_work() {
        let start = Instant::now();
        let mut rest = IdleDetector { cpu_time: Duration::ZERO, ..IdleDetector::new(start) };
        let worked_ms = [90, 900, 2000, 2001, 2009, 2091, 2099, 2102];
        let became_idle: Vec<_> = (1..)
            .zip(worked_ms)
            .map(|(second, worked)| rest.update(start + Duration::from_secs(second), Duration::from_millis(worked)))
            .collect();
        assert_eq!(became_idle, [false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_working_process_is_not_idle() {
        let start = Instant::now();
        let mut rest = IdleDetector::new(start);
        // On a busy machine, this thread may get its CPU time late. Then the process is idle in between, which is
        // correct.
        let start_time = clock::process_cpu_time();
        while clock::process_cpu_time() < start_time + 3 * WORK_MIN {
            std::hint::black_box(start);
        }
        let looked = start + Duration::from_millis(300);
        assert!(!rest.has_become_idle(looked));
    }
}
