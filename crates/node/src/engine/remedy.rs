//! What a user can do where a child cannot be started.

use std::io;

use farfork_fork::pager::PlanError;
use farfork_fork::restore::RestoreError;
use farfork_fork::resume::ResumeError;

use crate::network::Network;

/// What a user can do where a port of the child's is somebody else's.
const TAKEN: &str = "another process of that network has it, its parent or another child perhaps: fork it with a network of its own (--net private)";

/// What a user can do where a child's files have no room.
pub(super) const ROOM: &str = "make room there, or give the node another run directory (farfork node --run-dir)";

/// What a user can do about it, where that is known.
pub(super) fn of(error: &ResumeError, network: Network) -> Option<&'static str> {
    match error {
        ResumeError::Restore(RestoreError::Step { cause, .. }) if is_taken(cause, network) => Some(TAKEN),
        ResumeError::Restore(RestoreError::Step { remedy, .. }) => *remedy,
        ResumeError::Local { cause, .. } | ResumeError::Plan(PlanError::Write { source: cause, .. })
            if is_full(cause) =>
        {
            Some(ROOM)
        }
        _ => None,
    }
}

/// Whether an address of the child's is not free in a network that it has with others.
fn is_taken(cause: &io::Error, network: Network) -> bool {
    network != Network::Private && cause.raw_os_error() == Some(rustix::io::Errno::ADDRINUSE.raw_os_error())
}

/// Whether a file system has no room.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
