//! A process that stands still for somebody to look at it, and then goes on as it was.

use std::time::Duration;

use super::interrupted_calls;
use super::stop_guard::StopGuard;
use crate::capture::error::CaptureError;
use crate::capture::stop::stop_threads;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::trace_lock::TraceLock;

/// All threads of a process, stopped by the calling thread, which alone may read their registers. Dropping it lets them go
/// on. Where it cannot be made, only the end of the calling thread lets go of all that it has stopped: call from a thread
/// that may end.
#[derive(Debug)]
pub struct StoppedProcess {
    pub(super) stopped: StopGuard,
    /// Behind the stop, which is over first.
    _settlement: CallSettlement,
    _lock: TraceLock,
}

/// Settles interrupted calls when it is dropped.
#[derive(Debug)]
struct CallSettlement;

impl Drop for CallSettlement {
    fn drop(&mut self) {
        interrupted_calls::settle_calls();
    }
}

impl StoppedProcess {
    /// Stops a process, within a limit.
    ///
    /// # Errors
    /// It has ended, somebody traces it, or it does not stop.
    pub fn stop(pid: i32, limit: Duration) -> Result<Self, CaptureError> {
        let trace_lock = TraceLock::acquire(pid, limit).ok_or(CaptureError::ProcessGone { pid })?;
        let deadline = Deadline::after(limit);
        interrupted_calls::observe_process(pid);
        let settlement = CallSettlement;
        let threads = stop_threads(pid, &deadline)?;
        Ok(Self { stopped: StopGuard::new(pid, &threads)?, _settlement: settlement, _lock: trace_lock })
    }

    /// Its threads, the main one first.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.stopped.snapshot.threads.iter().map(|thread| thread.tid)
    }

    /// Signals that a thread blocks; bit N−1 is signal N.
    pub fn signal_mask(&self, tid: i32) -> u64 {
        let thread = self.stopped.snapshot.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or(0, |thread| thread.signal_mask)
    }
}
