//! The control groups of a node: one per container, others for its services, all below a directory of the node. A controller
//! is used in version 2 if it is available there, otherwise in version 1. The unified hierarchy is always used: a process
//! can be created inside its groups, which is cheaper than moving it.

mod container;
mod error;
mod freezer;
mod limits;
mod node;
mod unlimited;

use std::path::PathBuf;

use farfork_sys::cgroup::hierarchy::CgroupVersion;

pub use self::container::ContainerCgroup;
pub use self::error::CgroupError;
pub use self::limits::{CPU_MILLICORES_MIN, ContainerLimits, MEMORY_BYTES_MIN, OomCause};
pub use self::node::{LIMIT_CONTROLLERS, NodeCgroups};

/// Name of a container's control group in the node's directory.
pub(crate) fn group_name(container: &str) -> String {
    format!("pool-{container}")
}

//  OWN/farfork/NODE/pool-ID      a container
//  OWN/farfork/NODE/templates    a service
//  OWN/farfork/NODE/inits        version 2: inits of containers whose freezer a client uses
//  OWN/farfork/NODE/children     version 1, next to the unified hierarchy: all containers without limits
//
// OWN is the group in which the daemon was started, so limits of the daemon also apply to what it starts. In version 2, the
// daemon itself is in OWN/farfork-daemon (`farfork_sys::cgroup::daemon_leaf`).
//
// In a version 1 hierarchy, a process can only be created in its parent's group, and a group without limits has no use. So
// next to the unified hierarchy, a container has a version 1 group only if it was built to have limits.

/// The directory of a group in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupDirectory {
    version: CgroupVersion,
    controllers: Vec<String>,
    path: PathBuf,
}
