//! A child whose container's first process has no rights to fork it: another, beside that one, does, and the first one waits.
//!
//! ```text
//!  daemon                               bearer                      first process            child
//!    │ request: plan, socket, … ─────────▶│ a midwife forks it ──────────┼──────────────────────▶│ restores itself
//!    │                                    │ ends                         │                       │ enters its users'
//!    │◀── restored ───────────────────────┼──────────────────────────────┼───────────────────────│ namespace, runs on
//!    │ await it: status file, keep ───────┼─────────────────────────────▶│ wait4                 │
//! ```
//!
//! The C side is `restorer/privileged_forker.c`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farfork_sys::fd_passing;
use farfork_wire::Descriptor;

use super::RestoreError;
use super::stub::{self, RestoreReport, RestoreRequest};

/// The first process of a container that has users of its own.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInit<'a> {
    /// The process.
    pub pidfd: BorrowedFd<'a>,
    /// Our end of its socket.
    pub control: BorrowedFd<'a>,
}

/// Has the bearer at `control` bear the child as `request` says. Gives the socket that the first process is to keep.
pub(super) fn send_forker_request(
    control: BorrowedFd<'_>,
    first: ContainerInit<'_>,
    (request, descriptor): (RestoreRequest<'_>, &Descriptor),
    limit: Duration,
) -> Result<OwnedFd, RestoreError> {
    let keep = fd_passing::self_connected_socket()
        .map_err(|e| RestoreError::from_object_error("its userfaultfd's socket", e))?;
    stub::wait_ready(control, limit, descriptor)?;
    let request = RestoreRequest { status_or_control: first.pidfd, cgroup_or_queue: Some(keep.as_fd()), ..request };
    stub::send_request(control, &request, descriptor)?;
    Ok(keep)
}

/// Waits until the child stands, at most `limit`, and has the `first` process wait for its end: it is that one's since before it
/// could tell anything.
pub(super) fn finish_start(
    control: BorrowedFd<'_>,
    (first, status_file, keep): (ContainerInit<'_>, BorrowedFd<'_>, OwnedFd),
    descriptor: &Descriptor,
    limit: Duration,
) -> Result<RestoreReport, RestoreError> {
    let until = Instant::now() + limit;
    let told = stub::wait_restored(control, limit, descriptor);
    let has_died = matches!(told, Err(RestoreError::StubExited));
    let started = if has_died { None } else { Some(told?) };
    stub::send_wait_request(first.control, (status_file, keep.as_fd()), descriptor)?;
    match started {
        Some(started) => Ok(started),
        // How, is the first process's to tell.
        None => stub::wait_restored(first.control, until.saturating_duration_since(Instant::now()), descriptor),
    }
}
