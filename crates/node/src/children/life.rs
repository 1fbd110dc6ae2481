//! Watches over a child from its start to its end: keeps its time limit, leads connections to it, hears when its container ends; then cleans up.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use farfork_container::{MemoryEnd, RunningContainer};
use farfork_fork::resume::STATUS_FILE;

use super::{Child, Ended, Exit, limit};
use crate::clock;
use crate::descriptor_watch::watch_readable;
use crate::limits::ATTACH_GRACE;
use crate::network::Doors;
use crate::pager_link::PagerLink;

/// Who lives for longer leaves no root: to hold it costs the daemon a descriptor, and to make the next one is little beside such a life.
const HEIRS_LIMIT: Duration = Duration::from_secs(5);

/// For the end of a child that was killed to be told by its container's init, which reaps it and says how it ended. An init that stands
/// still, as one that a child traces, does not: then all that is in the container is killed.
const KILLED_END_LIMIT: Duration = Duration::from_secs(2);

/// A container's init, as something to wait for: its pidfd is readable once it has ended.
struct Init(Arc<RunningContainer>);

impl AsFd for Init {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.init().as_fd()
    }
}

/// Watches until the first process of the child's container has ended; gives what is left of that.
pub(super) async fn watch_over(child: &Child, container: RunningContainer, doors: Doors) -> Arc<RunningContainer> {
    let container = Arc::new(container);
    tokio::select! {
        () = container_end(&container) => {}
        () = interfere(child, &container) => {}
        () = doors.serve(container.clone()) => {}
    }
    container
}

/// A child whose container ended while no daemon was there; `memory_end`: the kernel killed a process of it.
pub(super) fn conclude_past(child: &Child, memory_end: Option<MemoryEnd>, pager: &PagerLink) {
    if child.lives() {
        let file = child.directory().join(STATUS_FILE);
        let modified = fs::metadata(&file).and_then(|metadata| metadata.modified());
        let unix_ms = modified.map_or_else(|_| clock::unix_ms_now(), clock::unix_ms);
        let exit = Exit::read(&file);
        let limit_met = memory_end.and_then(|end| limit::of_past(child, &exit, end));
        let exit = exit.of_killed(limit_met.is_some());
        child.end(Ended { exit, limit_met, unix_ms, pager: pager.counts(&child.record().id) });
    }
    pager.release(&child.record().id);
    child.settle();
}

async fn container_end(container: &Arc<RunningContainer>) {
    match watch_readable(Init(container.clone())) {
        Ok(init) => match init.readable().await {
            Ok(_) => {}
            Err(error) => poll_end(container, &error).await,
        },
        Err(error) => poll_end(container, &error).await,
    }
}

/// Where the kernel cannot tell us (no memory for another watch), we ask.
async fn poll_end(container: &RunningContainer, error: &std::io::Error) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    tracing::warn!(container = container.id(), %error, "its end has to be polled for");
    while matches!(farfork_sys::pidfd::wait_exit(container.init(), Duration::ZERO), Ok(false)) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// What time does to a child that runs: never returns.
async fn interfere(child: &Child, container: &RunningContainer) {
    let deadline = async {
        let record = child.record();
        match (record.deadline_boot_ms, record.deadline_unix_ms) {
            (Some(deadline), _) => tokio::time::sleep(clock::until(deadline, clock::boot_ms_now())).await,
            (None, Some(deadline)) => tokio::time::sleep(clock::until(deadline, clock::unix_ms_now())).await,
            (None, None) => std::future::pending().await,
        }
        tracing::info!(child = %child.record().id, "killed: its time is over");
        child.kill_overdue();
    };
    let nobody_attached = async {
        if child.has_stdin() {
            tokio::time::sleep(ATTACH_GRACE).await;
            drop(child.take_stdin());
        }
    };
    let killed = async {
        child.wait_killed().await;
        tokio::time::sleep(KILLED_END_LIMIT).await;
        let waited_s = KILLED_END_LIMIT.as_secs();
        tracing::warn!(child = %child.record().id, waited_s, "was killed, and its container's first process does not tell its end: the container is killed");
        container.kill();
    };
    let no_heirs = async {
        tokio::time::sleep(HEIRS_LIMIT).await;
        container.disinherit();
    };
    tokio::join!(deadline, nobody_attached, no_heirs, killed);
    std::future::pending().await
}

/// Has nothing left of the container of a child that has ended. The figures are taken before the end is told, so that who waits for the end
/// can ask for them. Blocks.
pub(super) fn conclude(child: &Child, container: &RunningContainer, pager: &PagerLink) {
    let id = &child.record().id;
    let exit = Exit::read(&child.directory().join(STATUS_FILE));
    let limit_met = limit::of(child, &exit, container.cgroup());
    let exit = exit.of_killed(limit_met.is_some() || child.killer().is_some());
    // With its first process all others have ended: one question is enough, but where something still looks at their memory.
    let released = pager.release_at_once(id);
    let counts = released.unwrap_or_else(|| pager.counts(id));
    child.end(Ended { exit, limit_met, unix_ms: clock::unix_ms_now(), pager: counts });
    if child.withholds_root() {
        container.disinherit();
    }
    match container.remove() {
        Ok(()) => {
            if released.is_none() {
                pager.release(id);
            }
            child.settle();
        }
        Err(error) => tracing::warn!(child = %id, %error, "the container of a child that ended is not removed"),
    }
}
