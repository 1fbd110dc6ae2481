//! A process that is stopped for inspection and then resumes unchanged. Core files and the differ use it.

use std::time::Duration;

use super::interrupted_calls;
use super::stop_guard::StopGuard;
use crate::capture::error::CaptureError;
use crate::capture::stop::stop_threads;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::trace_lock::TraceLock;

/// All threads of a process, stopped by the calling thread, which alone may read their registers. Dropping this value
/// resumes them. If `stop` fails, only the end of the calling thread releases the threads that it has stopped. So call
/// `stop` from a thread that may end.
#[derive(Debug)]
pub struct StoppedProcess {
    pub(super) stopped: StopGuard,
    /// Declared after `stopped`, so that it is dropped when the threads run again.
    _call_timeouts: CallTimeoutGuard,
    _lock: TraceLock,
}

/// Schedules the timeouts of interrupted calls when it is dropped.
#[derive(Debug)]
struct CallTimeoutGuard;

impl Drop for CallTimeoutGuard {
    fn drop(&mut self) {
        interrupted_calls::schedule_call_timeouts();
    }
}

impl StoppedProcess {
    /// Stops a process, within a time limit.
    ///
    /// # Errors
    /// If the process has ended, is already traced, or does not stop.
    pub fn stop(pid: i32, limit: Duration) -> Result<Self, CaptureError> {
        let trace_lock = TraceLock::acquire(pid, limit)?;
        let deadline = Deadline::after(limit);
        interrupted_calls::observe_process(pid);
        let call_timeouts = CallTimeoutGuard;
        let threads = stop_threads(pid, &deadline)?;
        Ok(Self { stopped: StopGuard::new(pid, &threads)?, _call_timeouts: call_timeouts, _lock: trace_lock })
    }

    /// Ids of its threads, the main thread's first.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.stopped.snapshot.threads.iter().map(|thread| thread.tid)
    }

    /// Signals that a thread blocks; bit N−1 is signal N.
    pub fn signal_mask(&self, tid: i32) -> u64 {
        let thread = self.stopped.snapshot.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or(0, |thread| thread.signal_mask)
    }
}
