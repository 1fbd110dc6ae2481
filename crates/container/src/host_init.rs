//! The init program outside of containers, for a zygote: it runs in the daemon's namespaces, and in a control group of the
//! node. Its memory is shared with children in containers.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use farfork_sys::clone::SpawnedProcess;
use farfork_sys::pidfd;

use crate::privileged_forker;

/// The oom_score_adj of the process. The OOM killer takes it after children (900) and before templates: without a template,
/// no child could be forked again.
const OOM_SCORE_ADJUSTMENT: i32 = 850;

/// A process that runs the init program outside of containers. Dropping this kills the process, which also ends with the
/// daemon.
#[derive(Debug)]
pub struct HostInit {
    process: SpawnedProcess,
    control: OwnedFd,
}

impl HostInit {
    pub(crate) fn new(process: SpawnedProcess, control: OwnedFd) -> Self {
        let score = OOM_SCORE_ADJUSTMENT.to_string();
        if let Err(error) = fs::write(format!("/proc/{}/oom_score_adj", process.pid), score) {
            tracing::warn!(pid = process.pid, %error, "the OOM score of a zygote could not be raised");
        }
        Self { process, control }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Whether it has ended.
    pub fn has_exited(&self) -> bool {
        pidfd::wait_exit(&self.process.pidfd, Duration::ZERO).unwrap_or(false)
    }

    /// The daemon's end of the socket (SOCK_SEQPACKET) whose other end is the process's descriptor 3.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Drop for HostInit {
    fn drop(&mut self) {
        privileged_forker::kill_and_reap(&self.process);
    }
}
