//! Lets open(2) succeed on a name that another client replaces all the time. If the kernel knew an old file by the name, the
//! answer is ESTALE, and the kernel looks up the name again. The file that this lookup finds is opened even if it was
//! replaced since, because the name led to the file after open(2) was called. The data of the file is kept open from the
//! lookup on, because the other client may drop the file.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::stale_entries::REPEAT_TIME_MAX;
use crate::record::InodeNumber;

/// Limit of the table of threads that were answered ESTALE and have not opened a file since. At this size, the table is
/// emptied.
const THREADS_MAX: usize = 1024;

/// Threads of programs that repeat an open(2) after ESTALE.
#[derive(Debug, Default)]
pub(super) struct OpenRetries {
    /// By thread id.
    threads: Mutex<HashMap<u32, RetryingThread>>,
}

/// A thread that was answered ESTALE.
#[derive(Debug)]
struct RetryingThread {
    since: Instant,
    found: Option<FoundFile>,
}

/// The last file that a thread has looked up.
#[derive(Debug)]
struct FoundFile {
    inode: InodeNumber,
    data: Arc<File>,
}

impl OpenRetries {
    /// Adds a thread that is answered ESTALE.
    pub(super) fn begin(&self, thread: u32) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= THREADS_MAX {
            threads.clear();
        }
        threads.insert(thread, RetryingThread { since: Instant::now(), found: None });
    }

    /// Whether a thread repeats an open(2) after ESTALE.
    pub(super) fn contains(&self, thread: u32) -> bool {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&thread)
    }

    /// Removes a thread whose call has failed.
    pub(super) fn give_up(&self, thread: u32) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).remove(&thread);
    }

    /// Keeps open the file that the thread has looked up.
    pub(super) fn hold(&self, thread: u32, inode: InodeNumber, data: Arc<File>) {
        if let Some(retrying) = self.threads.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&thread) {
            retrying.found = Some(FoundFile { inode, data });
        }
    }

    /// Removes a thread, which opens a file. Returns the data if the thread has looked up this file.
    pub(super) fn end(&self, thread: u32, inode: InodeNumber) -> Option<Arc<File>> {
        let retrying = self.threads.lock().unwrap_or_else(PoisonError::into_inner).remove(&thread);
        let retrying = retrying.filter(|retrying| retrying.since.elapsed() < REPEAT_TIME_MAX)?;
        retrying.found.filter(|found| found.inode == inode).map(|found| found.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retried_open_gets_only_the_newly_found_file() {
        let data = || Arc::new(tempfile::tempfile().unwrap());
        let (retries, old, new) = (OpenRetries::default(), InodeNumber(5), InodeNumber(6));
        retries.hold(1, old, data());
        assert!(retries.end(1, old).is_none(), "the file was not looked up again");
        retries.begin(1);
        assert!(retries.contains(1) && !retries.contains(2));
        retries.hold(1, new, data());
        assert!(retries.end(2, new).is_none(), "another thread");
        assert!(retries.end(1, new).is_some());
        assert!(retries.end(1, new).is_none(), "the next open(2) walks the path itself");
        retries.begin(1);
        retries.hold(1, new, data());
        assert!(retries.end(1, old).is_none());
    }
}
