//! An init process outside of containers, in the daemon's namespaces. It holds memory that children in containers will
//! share, and is in a control group of the node.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use farfork_sys::clone::SpawnedProcess;
use farfork_sys::pidfd;

use crate::privileged_forker;

/// Its position in the order of the OOM killer: after children (900), and before templates, which are half-way between
/// children and parents. Without a template, no child could be made again.
const OOM_SCORE_ADJUSTMENT: i32 = 850;

/// The process. Dropping it kills it. It also ends with the daemon.
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

    /// Our end of the socket (SOCK_SEQPACKET) whose other end is its descriptor 3.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Drop for HostInit {
    fn drop(&mut self) {
        privileged_forker::kill_and_reap(&self.process);
    }
}
