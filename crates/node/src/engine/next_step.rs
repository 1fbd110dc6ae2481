//! Chooses the next step that is suggested to a user when a child cannot be started.

use std::path::Path;
use std::{fs, io};

use farfork_container::{ContainerError, path_on_node};
use farfork_fork::pager::PlanError;
use farfork_fork::restore::RestoreError;
use farfork_fork::resume::ResumeError;
use rustix::io::Errno;

use super::options::StartOptions;
use crate::network::NetworkMode;

/// Next step if another process uses a port of the child.
const ADDRESS_IN_USE_STEP: &str = "another process of that network uses the address, perhaps its parent or another child: fork it with its own network (--net private)";

/// Next step if the child's network has no route to the peer of a socket.
const NET_UNREACHABLE_STEP: &str = "the child's network has no route to the socket's peer: close the socket in the parent before it is prepared, or fork it with the node's network (--net host)";

/// Next step if a file of the seed was changed.
const CHANGED_FILE_STEP: &str = "prepare its parent again; or fork it with --changed-files allow, which takes files that were changed in place as they are; or prepare it with --snapshot-files before they change";

/// Next step if the changed file has the performance data that each Java virtual machine writes all the time.
const JVM_DATA_STEP: &str = "it has performance data of a Java virtual machine: start the machine with -XX:-UsePerfData, or fork with --changed-files allow";

/// Next step if a file of the seed was changed, and the fork had `--changed-files allow`.
const LOST_FILE_STEP: &str = "prepare its parent again. --changed-files allow does not help: the file is no longer at its path, or the parent has written to a private mapping of it";

/// Next step when the child's node lacks a file or directory of the parent.
const MISSING_FILE_STEP: &str = "copy it to the same path on that node, or share its directory with all nodes, or fork to a node that has it (--to)";

/// As `MISSING_FILE_STEP`, for a child whose root is a directory of its node.
const MISSING_IN_ROOT_STEP: &str =
    "copy it to the same path below the directory of --root on that node, or fork with another root";

/// Next step if there is no disk space for a child's files.
pub(super) const DISK_FULL_STEP: &str =
    "make room there, or give the node another run directory (farfork node --run-dir)";

/// Next step if this kernel or daemon cannot connect a child to the outside of its network.
pub(super) const EGRESS_UNSUPPORTED_STEP: &str = "the daemon needs CAP_BPF and CAP_NET_ADMIN for BPF socket lookup, and Linux 5.9 or later: drop --egress, or fork it with --net host";

/// The next step after an error, if one is known.
pub(super) fn find_next_step(error: &ResumeError, options: &StartOptions) -> Option<&'static str> {
    let network = options.network;
    match error {
        ResumeError::Restore(RestoreError::Step { cause, .. }) if is_address_in_use(cause, network) => {
            Some(ADDRESS_IN_USE_STEP)
        }
        ResumeError::Restore(RestoreError::Step { cause, .. }) if is_errno(cause, Errno::NETUNREACH) => {
            Some(NET_UNREACHABLE_STEP)
        }
        ResumeError::Restore(RestoreError::Step { remedy, .. }) => *remedy,
        ResumeError::Restore(RestoreError::MissingFile { .. }) if options.root_directory.is_some() => {
            Some(MISSING_IN_ROOT_STEP)
        }
        ResumeError::Restore(RestoreError::MissingFile { .. }) => Some(MISSING_FILE_STEP),
        ResumeError::CreateResource { cause, .. } | ResumeError::Plan(PlanError::Write { source: cause, .. })
            if is_disk_full(cause) =>
        {
            Some(DISK_FULL_STEP)
        }
        ResumeError::UnavailableFile { .. } if options.allow_changed_files => Some(LOST_FILE_STEP),
        ResumeError::UnavailableFile { path, .. } if path.contains("/hsperfdata_") => Some(JVM_DATA_STEP),
        ResumeError::UnavailableFile { .. } => Some(CHANGED_FILE_STEP),
        _ => None,
    }
}

/// Returns the next step if a node lacks a volume: how to mount it. `root`: the directory of the node that is the child's
/// root.
pub(super) fn mount_volume_step(error: &ResumeError, node: &str, root: &Path) -> Option<String> {
    let ResumeError::VolumeNotMounted { volume, directory, mount_path, .. } = error else { return None };
    let mount_path = path_on_node(root, Path::new(mount_path)).display().to_string();
    Some(match directory.as_str() {
        "/" => format!(
            "on node {node}, run `farfork volume mount {volume} {mount_path}`, or fork to a node that has it (--to)"
        ),
        part => format!("on node {node}, mount {volume} and bind its directory {part} to {mount_path} (mount --bind)"),
    })
}

/// Returns the error of a bind in the words of a user, if the path is missing on this node. The container's text names the
/// container. `--shared PATH` is a bind of PATH to itself.
pub(super) fn explain_bind_error(error: ContainerError) -> Box<dyn std::error::Error> {
    match &error {
        ContainerError::Bind { host_path, inside_path, cause, .. }
            if cause.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(host_path).is_err() =>
        {
            let path = host_path.display();
            let option = if host_path == inside_path { "--shared" } else { "--bind" };
            format!("the path {path} of {option} does not exist on this node; create it there, or name another path")
                .into()
        }
        _ => error.into(),
    }
}

/// Whether the error is a file of the seed that is missing on this node. Children can get it from the seed's owner.
pub(super) fn is_missing_file(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(ResumeError::Restore(RestoreError::MissingFile { .. })))
}

/// Whether an address of the child is in use in a network that it shares.
fn is_address_in_use(cause: &io::Error, network: NetworkMode) -> bool {
    network != NetworkMode::Private && is_errno(cause, Errno::ADDRINUSE)
}

fn is_errno(cause: &io::Error, errno: Errno) -> bool {
    cause.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether a file system is full.
pub(super) fn is_disk_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
