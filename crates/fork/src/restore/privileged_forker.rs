//! Starts a child in a container whose init is in a user namespace and lacks the capabilities to fork the child.
//! A privileged forker, a stub next to the container, forks the child; init waits for it.
//! `planned_child` calls it. The C side is `restorer/privileged_forker.c`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farfork_sys::fd_passing;
use farfork_wire::Descriptor;

use super::RestoreError;
use super::stub::{self, RestoreReport, RestoreRequest};

/// The first process of a container that has its own user namespace.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInit<'a> {
    /// The process.
    pub pidfd: BorrowedFd<'a>,
    /// The daemon's end of its socket.
    pub control: BorrowedFd<'a>,
}

/// A request that a container's init wait for the end of a child that it has not forked.
#[derive(Debug)]
pub(super) struct InitWaitRequest<'a> {
    /// The init of the container.
    pub(super) init: ContainerInit<'a>,
    /// The file into which init writes the wait status.
    pub(super) status_file: BorrowedFd<'a>,
    /// The userfaultfd queue, which init must hold.
    pub(super) queue: OwnedFd,
}

//  daemon                               privileged forker           container's init         child
//    │ request: plan, socket, … ─────────▶│ an intermediate forks it ────┼──────────────────────▶│ restores itself
//    │                                    │ ends                         │                       │ enters its user
//    │◀── restored ───────────────────────┼──────────────────────────────┼───────────────────────│ namespace, runs on
//    │ wait request: status file, queue ──┼─────────────────────────────▶│ wait4                 │
/// Sends `request` to the privileged forker at `control`. Returns the userfaultfd queue that init must hold.
pub(super) fn send_forker_request(
    control: BorrowedFd<'_>,
    init: ContainerInit<'_>,
    request: RestoreRequest<'_>,
    descriptor: &Descriptor,
    limit: Duration,
) -> Result<OwnedFd, RestoreError> {
    let queue = fd_passing::self_connected_socket()
        .map_err(|e| RestoreError::from_object_error("its userfaultfd's socket", e))?;
    stub::wait_ready(control, limit, descriptor)?;
    let request = RestoreRequest { status_or_control: init.pidfd, cgroup_or_queue: Some(queue.as_fd()), ..request };
    stub::send_request(control, &request, descriptor)?;
    Ok(queue)
}

/// Waits, at most `limit`, until the child is restored, and requests init to wait for the child's end. The child
/// becomes init's child before it sends a report.
pub(super) fn finish_start(
    control: BorrowedFd<'_>,
    request: InitWaitRequest<'_>,
    descriptor: &Descriptor,
    limit: Duration,
) -> Result<RestoreReport, RestoreError> {
    let InitWaitRequest { init, status_file, queue } = request;
    let deadline = Instant::now() + limit;
    let restored = stub::wait_restored(control, limit, descriptor);
    let has_died = matches!(restored, Err(RestoreError::StubExited));
    let started = if has_died { None } else { Some(restored?) };
    stub::send_wait_request(init.control, (status_file, queue.as_fd()), descriptor)?;
    match started {
        Some(started) => Ok(started),
        // If the child has ended, init's report has the reason.
        None => stub::wait_restored(init.control, deadline.saturating_duration_since(Instant::now()), descriptor),
    }
}
