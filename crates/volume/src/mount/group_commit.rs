//! Group commit: one fdatasync(2) of the log serves all calls that wait for it.

use std::fs::File;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

/// Flushes the log for many waiters.
#[derive(Debug)]
pub(super) struct GroupCommit {
    log: File,
    state: Mutex<CommitState>,
    flushed: Condvar,
}

#[derive(Debug, Default)]
struct CommitState {
    /// The log is on the disk up to here.
    durable_position: u64,
    is_flushing: bool,
    /// After a failed flush the kernel may have dropped pages that were never written: nothing more is acknowledged.
    has_failed: bool,
}

impl GroupCommit {
    pub(super) fn new(log: File) -> Self {
        Self { log, state: Mutex::default(), flushed: Condvar::new() }
    }

    /// Waits until the log is durable up to a position. `head` gives the end of the log at the time of the call.
    ///
    /// # Errors
    /// As fdatasync(2), for this call and every later one.
    pub(super) fn commit(&self, position: u64, head: impl Fn() -> u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.has_failed {
                return Err(io::Error::other("the log cannot be flushed"));
            }
            if state.durable_position >= position {
                return Ok(());
            }
            if state.is_flushing {
                state = self.flushed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_flushing = true;
            drop(state);
            let flushed_position = head();
            let result = self.log.sync_data();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_flushing = false;
            match result {
                Ok(()) => state.durable_position = state.durable_position.max(flushed_position),
                Err(error) => {
                    tracing::error!(%error, "the log cannot be flushed");
                    state.has_failed = true;
                }
            }
            self.flushed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_appended_before_it() {
        let commit = GroupCommit::new(tempfile::tempfile().unwrap());
        commit.commit(10, || 30).unwrap();
        commit.commit(30, || panic!("the first flush covers this")).unwrap();
    }

    #[test]
    fn a_failed_flush_is_never_acknowledged_later() {
        let (reader, _writer) = io::pipe().unwrap();
        let commit = GroupCommit::new(File::from(std::os::fd::OwnedFd::from(reader)));
        assert!(commit.commit(10, || 10).is_err(), "a pipe cannot be flushed");
        assert!(commit.commit(5, || 10).is_err());
    }
}
