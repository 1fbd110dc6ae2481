//! On a busy machine, the processor of the process that stands still: the tracer goes there for the pause.
//!
//! Who is woken on a processor that another thread uses waits until that has had its time, 3 to 4 ms, at each of the half
//! dozen steps of a pause. On the tracer's own processor it has its turn as soon as the tracer sleeps, and the tracer, a
//! real-time thread, as soon as it is woken. Where a processor is idle, it is woken there in any case.

use std::time::Duration;

use farfork_sys::process::Stat;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A stop takes 20 to 60 µs; one that took longer than this has waited for a processor.
const BUSY: Duration = Duration::from_micros(400);

/// The calling thread is on a process's processor until this is dropped.
#[derive(Debug)]
pub(super) struct Beside {
    before: CpuSet,
}

impl Beside {
    /// Joins `pid` on its processor, if it took so long to stop that others must be using it. Without the right to, so be it.
    pub(super) fn join(pid: i32, stop: Duration) -> Option<Self> {
        if stop < BUSY {
            return None;
        }
        let processor = Stat::read(pid).ok()?.processor as usize;
        let before = sched_getaffinity(None).ok()?;
        if processor >= CpuSet::MAX_CPU || !before.is_set(processor) {
            return None;
        }
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).ok()?;
        Some(Self { before })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_where_a_process_is_and_comes_back() {
        let before = sched_getaffinity(None).unwrap();
        let pid = std::process::id() as i32;
        assert!(Beside::join(pid, Duration::ZERO).is_none(), "a quick stop moves nobody");
        let beside = Beside::join(pid, BUSY);
        assert!(beside.is_none() || sched_getaffinity(None).unwrap().count() == 1);
        drop(beside);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
