//! The process that forks the child of a container with its own users. The container's init lacks the privileges for this,
//! even in its own user namespace. The forker runs the same program as init, in the same namespaces, except for the pid and
//! user namespaces, which are the node's.
//!
//! The forker ends when it has forked the child. In a waiting container, it ends with the daemon, as init does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use farfork_sys::clone::{self, SpawnedProcess};
use farfork_sys::pidfd;
use rustix::process::Signal;

/// Longest wait for the end of a process, in milliseconds. A killed process may have much memory to free.
const KILL_MS_MAX: u64 = 2_000;

/// A running privileged forker. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct PrivilegedForker {
    process: SpawnedProcess,
    /// The daemon's end of init's socket. The other end of the container's control socket belongs to this process, not to
    /// init.
    init_socket: OwnedFd,
}

impl PrivilegedForker {
    pub(crate) fn new(process: SpawnedProcess, init_socket: OwnedFd) -> Self {
        Self { process, init_socket }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Waits for its end. It ends after it has forked the child and reaped the intermediate process.
    pub(crate) fn wait_exit(&self) {
        // If it does not end in time, dropping it kills it.
        let _ = clone::reap_within(&self.process.pidfd, Duration::from_millis(KILL_MS_MAX));
    }

    /// The daemon's end of the socket of the container's init.
    pub(crate) fn init_socket(&self) -> BorrowedFd<'_> {
        self.init_socket.as_fd()
    }
}

impl Drop for PrivilegedForker {
    fn drop(&mut self) {
        kill_and_reap(&self.process);
    }
}

/// Kills and reaps a process in which no code of a child runs.
pub(crate) fn kill_and_reap(process: &SpawnedProcess) {
    // ESRCH: it has ended already.
    let _ = pidfd::send_signal(&process.pidfd, Signal::KILL.as_raw());
    if !clone::reap_within(&process.pidfd, Duration::from_millis(KILL_MS_MAX)).unwrap_or(false) {
        tracing::warn!(pid = process.pid, "a killed process of a container has not ended");
    }
}
