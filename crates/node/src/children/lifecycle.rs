//! Watches one child from start to end: enforces its time limits, serves its forwarding, waits until its container
//! ends, then cleans up.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use farfork_api::limits::ATTACH_GRACE;
use farfork_container::{OomCause, RunningContainer};
use farfork_fork::resume::STATUS_FILE;

use super::child::SIGKILL;
use super::kill_limit::KillSource;
use super::{Child, Exit, ExitRecord, kill_limit};
use crate::async_fd::watch_readable;
use crate::clock;
use crate::network::ChildForwarding;
use crate::pager_link::PagerLink;

/// Age of a child from which the root file system of its container is not kept for reuse. A kept root costs the daemon
/// a descriptor. For a long-lived child, the cost of a new root hardly matters.
const ROOT_REUSE_AGE_MAX: Duration = Duration::from_secs(5);

/// Time for the container's init to report the end of a killed child. An init that is stopped, for example because a child
/// traces it, reports nothing. Then all processes of the container are killed.
const KILLED_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A container's init. Its pidfd is readable once it has ended.
struct ContainerInit(Arc<RunningContainer>);

impl AsFd for ContainerInit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.init().as_fd()
    }
}

/// Watches the child until its container's first process has ended. Returns the container.
pub(super) async fn watch_until_exit(
    child: &Child,
    container: RunningContainer,
    forwarding: ChildForwarding,
) -> Arc<RunningContainer> {
    let container = Arc::new(container);
    tokio::select! {
        () = wait_container_exit(&container) => {}
        () = enforce_time_limits(child, &container) => {}
        () = forwarding.serve(container.clone()) => {}
    }
    container
}

/// Records the end of a child whose container ended while no daemon ran. `memory_end` is the cause if the OOM killer
/// killed one of its processes.
pub(super) fn record_past_exit(child: &Child, memory_end: Option<OomCause>, pager: &PagerLink) {
    if child.is_alive() {
        let file = child.directory().join(STATUS_FILE);
        let modified = fs::metadata(&file).and_then(|metadata| metadata.modified());
        let unix_ms = modified.map_or_else(|_| clock::unix_ms_now(), clock::unix_ms);
        let exit = Exit::read(&file);
        let limit_met = memory_end.and_then(|end| kill_limit::find_past_kill_limit(child, &exit, end));
        let exit = exit.adjust_for_kill(limit_met.is_some());
        let pager = pager.counters(&child.record().id);
        child.mark_ended(ExitRecord { exit, limit_met, by_program: false, unix_ms, pager });
    }
    pager.release(&child.record().id);
    child.mark_cleaned_up();
}

async fn wait_container_exit(container: &Arc<RunningContainer>) {
    match watch_readable(ContainerInit(container.clone())) {
        Ok(init) => match init.readable().await {
            Ok(_) => {}
            Err(error) => poll_container_exit(container, &error).await,
        },
        Err(error) => poll_container_exit(container, &error).await,
    }
}

/// Polls for the container's end. Used if epoll(7) cannot watch the pidfd of its init.
async fn poll_container_exit(container: &RunningContainer, error: &std::io::Error) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    tracing::warn!(container = container.id(), %error, "its end cannot be watched, and is polled for");
    while matches!(farfork_sys::pidfd::wait_exit(container.init(), Duration::ZERO), Ok(false)) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Enforces the time limits of a running child: its deadline, and the limits for attaching, for reuse of its root, and
/// for the end of a killed child. Never returns.
async fn enforce_time_limits(child: &Child, container: &RunningContainer) {
    let deadline = async {
        let record = child.record();
        match (record.deadline_boot_ms, record.deadline_unix_ms) {
            (Some(deadline), _) => tokio::time::sleep(clock::duration_until(deadline, clock::boot_ms_now())).await,
            (None, Some(deadline)) => tokio::time::sleep(clock::duration_until(deadline, clock::unix_ms_now())).await,
            (None, None) => std::future::pending().await,
        }
        tracing::info!(child = %child.record().id, "killed: its time limit has passed");
        child.kill_on_deadline();
    };
    let attach_expiry = async {
        if child.has_stdin() {
            tokio::time::sleep(ATTACH_GRACE).await;
            drop(child.take_stdin());
        }
    };
    let killed = async {
        child.wait_killed().await;
        tokio::time::sleep(KILLED_EXIT_TIMEOUT).await;
        let waited_s = KILLED_EXIT_TIMEOUT.as_secs();
        tracing::warn!(child = %child.record().id, waited_s, "was killed, but its container's first process does not report its end: the container is killed");
        container.kill();
    };
    let root_reuse_expiry = async {
        tokio::time::sleep(ROOT_REUSE_AGE_MAX).await;
        container.discard_root();
    };
    tokio::join!(deadline, attach_expiry, root_reuse_expiry, killed);
    std::future::pending().await
}

/// Records a child's end and removes its container. The pager's counters are read before the end is reported, so that
/// callers that wait for the end find them. Blocks.
pub(super) fn clean_up(child: &Child, container: &RunningContainer, pager: &PagerLink) {
    let id = &child.record().id;
    let exit = Exit::read(&child.directory().join(STATUS_FILE));
    let limit_met = kill_limit::find_kill_limit(child, &exit, container.cgroup());
    let exit = exit.adjust_for_kill(limit_met.is_some() || child.kill_source().is_some());
    // All processes of the container ended with its init. So one release request suffices, unless a reader still uses
    // their memory.
    let released = pager.release_now(id);
    let counts = released.unwrap_or_else(|| pager.counters(id));
    let by_program = exit == Exit::Signal(SIGKILL) && child.kill_source() == Some(KillSource::Program);
    child.mark_ended(ExitRecord { exit, limit_met, by_program, unix_ms: clock::unix_ms_now(), pager: counts });
    if child.is_root_reuse_disabled() {
        container.discard_root();
    }
    match container.remove() {
        Ok(()) => {
            if released.is_none() {
                pager.release(id);
            }
            child.mark_cleaned_up();
        }
        Err(error) => tracing::warn!(child = %id, %error, "the container of a child that ended is not removed"),
    }
}
