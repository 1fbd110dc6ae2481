//! Floors and peers, measured in the same run as farfork. A floor is the minimum that any implementation needs. Each
//! floor has one file, next to its C++ program if it has one. The floors by `fork()` of a measured program are in
//! `workload`.

pub(crate) mod connect;
pub(crate) mod container;
pub(crate) mod criu;
pub(crate) mod echo;
pub(crate) mod fault;
pub(crate) mod glusterfs;
pub(crate) mod link_copy;
pub(crate) mod local_fanout;
pub(crate) mod paused_forks;
pub(crate) mod socket_chain;

use std::path::PathBuf;

use farfork_sys::cgroup::hierarchy::{self, CgroupVersion};

use crate::error::BenchError;
use crate::scratch::SCRATCH_PREFIX;

/// The names of control groups for floors, after their prefix.
pub(crate) const FLOOR_GROUPS: [&str; 2] = [CONTAINERS_GROUP, FREEZER_GROUP];
const CONTAINERS_GROUP: &str = "containers";
const FREEZER_GROUP: &str = "floor";

/// Returns the path of a control group for a floor, which is not created yet. `None` if the machine has no unified
/// hierarchy.
fn unified_cgroup_for(of: &str) -> Result<Option<PathBuf>, BenchError> {
    let name = format!("{SCRATCH_PREFIX}{}-{of}", std::process::id());
    Ok(unified_cgroup_base()?.map(|base| base.join(name)))
}

/// Returns the directory in which the control groups of floors are created.
pub(crate) fn unified_cgroup_base() -> Result<Option<PathBuf>, BenchError> {
    let failed = |cause| BenchError::File { path: "/proc/self/mountinfo".into(), cause };
    let hierarchies = hierarchy::mounted_hierarchies().map_err(failed)?;
    let unified = hierarchies.iter().find(|hierarchy| hierarchy.version == CgroupVersion::V2);
    Ok(unified.map(|unified| unified.creation_base(&[]).directory))
}
