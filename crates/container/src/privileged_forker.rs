//! Who bears the child of a container that has users of its own. The container's first process has no rights that this needs, not
//! even in its own user namespace, so a process beside it does: of the same program, in the same namespaces but for those of
//! processes and users, which are the node's.
//!
//! It ends when the child is born. In a container that waits it ends with the daemon, as the first process does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use farfork_sys::clone::{self, SpawnedProcess};
use farfork_sys::pidfd;
use rustix::process::Signal;

/// Longest wait for the end of a process, in milliseconds: it is killed at once, but may have much memory to give back.
const KILL_MS_MAX: u64 = 2_000;

/// The process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct PrivilegedForker {
    process: SpawnedProcess,
    /// Our end of the first process's socket; that of this one is the container's.
    init_socket: OwnedFd,
}

impl PrivilegedForker {
    pub(crate) fn new(born: SpawnedProcess, waiter: OwnedFd) -> Self {
        Self { process: born, init_socket: waiter }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Waits for its end, which comes when the child is born: it has the midwife to reap.
    pub(crate) fn wait_exit(&self) {
        // Who does not end is killed.
        let _ = clone::reap_within(&self.process.pidfd, Duration::from_millis(KILL_MS_MAX));
    }

    /// Our end of the socket of the container's first process.
    pub(crate) fn init_socket(&self) -> BorrowedFd<'_> {
        self.init_socket.as_fd()
    }
}

impl Drop for PrivilegedForker {
    fn drop(&mut self) {
        kill_and_reap(&self.process);
    }
}

/// Ends a process that nothing of a child runs in.
pub(crate) fn kill_and_reap(born: &SpawnedProcess) {
    // ESRCH: it has ended already.
    let _ = pidfd::send_signal(&born.pidfd, Signal::KILL.as_raw());
    if !clone::reap_within(&born.pidfd, Duration::from_millis(KILL_MS_MAX)).unwrap_or(false) {
        tracing::warn!(pid = born.pid, "a process of a container that was killed has not ended");
    }
}
