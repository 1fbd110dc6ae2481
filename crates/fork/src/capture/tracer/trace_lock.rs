//! A lock for tracing a process, which has at most one tracer. Without the lock, two captures of one process, or a capture
//! and the reaping of an older template, would take each other for a debugger.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::capture::error::CaptureError;

static LOCKED_PIDS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
static LOCK_RELEASED: Condvar = Condvar::new();

/// The right to trace a process, until this value is dropped.
#[derive(Debug)]
pub(in crate::capture) struct TraceLock {
    pid: i32,
}

impl TraceLock {
    /// Waits for the lock, at most `limit`.
    ///
    /// # Errors
    /// [`CaptureError::TimedOut`]: another capture, or the reaping of a template, still traces the process.
    pub(in crate::capture) fn acquire(pid: i32, limit: Duration) -> Result<Self, CaptureError> {
        let under_way = LOCKED_PIDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut under_way, waited) = LOCK_RELEASED
            .wait_timeout_while(under_way, limit, |pids| pids.contains(&pid))
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && under_way.contains(&pid) {
            return Err(CaptureError::TimedOut { pid, limit, phase: "waiting for another capture of it" });
        }
        under_way.insert(pid);
        Ok(Self { pid })
    }
}

impl Drop for TraceLock {
    fn drop(&mut self) {
        LOCKED_PIDS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
        LOCK_RELEASED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_lock_excludes_only_the_same_process() {
        let one = TraceLock::acquire(-7, Duration::ZERO).unwrap();
        assert!(TraceLock::acquire(-7, Duration::from_millis(1)).is_err());
        assert!(TraceLock::acquire(-8, Duration::ZERO).is_ok());
        drop(one);
        assert!(TraceLock::acquire(-7, Duration::ZERO).is_ok());
    }
}
