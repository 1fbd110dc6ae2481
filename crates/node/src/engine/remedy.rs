//! What a user can do where a child cannot be started.

use std::io;

use farfork_fork::pager::PlanError;
use farfork_fork::restore::RestoreError;
use farfork_fork::resume::ResumeError;
use rustix::io::Errno;

use crate::network::Network;

/// What a user can do where a port of the child's is somebody else's.
const TAKEN: &str = "another process of that network has it, its parent or another child perhaps: fork it with a network of its own (--net private)";

/// What a user can do where a socket of the child's is connected to somebody.
const UNREACHED: &str = "the child's network has no way to whom that socket is connected: have the parent close it before, or fork it with the node's (--net host)";

/// What a user can do where a file of the seed's is another by now.
const FILES: &str = "prepare its parent again; or fork it with --changed-files allow, which takes files that were changed in place as they are; or prepare it with --snapshot-files before they change";

/// What a user can do where a child's files have no room.
pub(super) const ROOM: &str = "make room there, or give the node another run directory (farfork node --run-dir)";

/// What a user can do where the kernel lets nothing out of a child's network.
pub(super) const NO_WAY_OUT: &str = "it takes a daemon that may load programs for the kernel's socket lookup (CAP_BPF and CAP_NET_ADMIN), on Linux 5.9 or later: leave --egress away, or fork it with --net host";

/// What a user can do about it, where that is known.
pub(super) fn of(error: &ResumeError, network: Network) -> Option<&'static str> {
    match error {
        ResumeError::Restore(RestoreError::Step { cause, .. }) if is_taken(cause, network) => Some(TAKEN),
        ResumeError::Restore(RestoreError::Step { cause, .. }) if is_errno(cause, Errno::NETUNREACH) => Some(UNREACHED),
        ResumeError::Restore(RestoreError::Step { remedy, .. }) => *remedy,
        ResumeError::Local { cause, .. } | ResumeError::Plan(PlanError::Write { source: cause, .. })
            if is_full(cause) =>
        {
            Some(ROOM)
        }
        ResumeError::File { .. } => Some(FILES),
        _ => None,
    }
}

/// Whether a file of the seed's is not on this node; children may have it from its owner.
pub(super) fn lacks_file(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(ResumeError::Restore(RestoreError::MissingFile { .. })))
}

/// Whether an address of the child's is not free in a network that it has with others.
fn is_taken(cause: &io::Error, network: Network) -> bool {
    network != Network::Private && is_errno(cause, Errno::ADDRINUSE)
}

fn is_errno(cause: &io::Error, errno: Errno) -> bool {
    cause.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether a file system has no room.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
