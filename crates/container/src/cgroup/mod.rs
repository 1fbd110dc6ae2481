//! The control groups of a node: one for each container, others for its own services, all below a directory that is
//! the node's alone. Controllers are used in version 2 where it has them, else in version 1; the unified hierarchy is
//! used in any case, since a process can be *born* into its groups, which is cheaper than to be moved.
//!
//! ```text
//! OWN/farfork/NODE/pool-ID      a container          OWN: the group that the daemon was started in, so that what
//! OWN/farfork/NODE/templates    a service's           limits the daemon limits what it starts
//! OWN/farfork/NODE/children     version 1, beside the unified hierarchy: all containers without limits
//! ```
//!
//! In a hierarchy of version 1 nobody can be born where the parent is not, and a group that limits nothing is of no use: so a
//! container has one there only where it was built to have limits.

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
pub use self::node::NodeCgroups;

/// Name of a container's control group below the node's.
pub(crate) fn group_name(container: &str) -> String {
    format!("pool-{container}")
}

/// A group's directory in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupDirectory {
    version: CgroupVersion,
    controllers: Vec<String>,
    path: PathBuf,
}
