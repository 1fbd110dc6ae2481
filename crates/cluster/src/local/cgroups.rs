//! Control groups of a local cluster. Only the cluster's daemons start processes in them, so `down` may kill all of these.
//!
//! ```text
//! BASE/farfork-NAME/n1/farfork-daemon      the daemon and its pager
//! BASE/farfork-NAME/n1/farfork/...         what the daemon makes: containers, templates
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farfork_sys::cgroup::hierarchy::{self, CgroupVersion, DAEMON_LEAF};
use farfork_sys::{cgroup, clone, pidfd};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::error::LocalError;
use super::node::LocalNode;

/// The controllers that a node's limits need.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Longest wait for the end of killed processes, in milliseconds: freeing hundreds of gigabytes takes seconds.
const KILL_MS_MAX: u64 = 10_000;
/// Longest wait for one process before the processes are listed again, in milliseconds.
const KILL_RETRY_MS: u64 = 5;
/// Longest wait for a group to be free of ended processes, in milliseconds.
const REMOVE_MS_MAX: u64 = 2_000;

/// The cluster's group in one hierarchy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CgroupPlan {
    /// The directory in which the cluster's group is made.
    base: PathBuf,
    /// Name of the cluster's group.
    name: String,
    /// Whether the hierarchy is the unified one.
    unified: bool,
    /// Controllers to enable for the nodes' groups.
    controllers: Vec<String>,
}

impl CgroupPlan {
    /// The directory of a node's group.
    pub(super) fn node_directory(&self, node: &str) -> PathBuf {
        self.directory().join(node)
    }

    fn directory(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    fn version(&self) -> CgroupVersion {
        if self.unified { CgroupVersion::V2 } else { CgroupVersion::V1 }
    }
}

/// Plans the cluster's group in each hierarchy that it uses.
pub(super) fn plan_cgroups(cluster: &str) -> Result<Vec<CgroupPlan>, LocalError> {
    let hierarchies = hierarchy::mounted_hierarchies()
        .map_err(cgroup_error("find the hierarchy of", Path::new("/proc/self/cgroup")))?;
    let plans = hierarchies.iter().map(|hierarchy| {
        let base = hierarchy.creation_base(&CONTROLLERS);
        CgroupPlan {
            base: base.directory,
            name: format!("farfork-{cluster}"),
            unified: hierarchy.version == CgroupVersion::V2,
            controllers: base.controllers,
        }
    });
    Ok(plans.filter(|plan| plan.unified || !plan.controllers.is_empty()).collect())
}

/// The groups of the members of etcd: `BASE/farfork-NAME/etcd`.
pub(super) fn etcd_cgroups(plans: &[CgroupPlan]) -> Vec<PathBuf> {
    plans.iter().map(|plan| plan.directory().join("etcd")).collect()
}

/// Makes the groups of the members of etcd. Those of the nodes exist.
pub(super) fn create_etcd_cgroups(plans: &[CgroupPlan]) -> Result<(), LocalError> {
    let make = |group: PathBuf| cgroup::create(&group).map_err(cgroup_error("make", &group));
    etcd_cgroups(plans).into_iter().try_for_each(make)
}

/// Makes the groups of all nodes in each hierarchy.
pub(super) fn create_cgroups(plans: &[CgroupPlan], nodes: &[LocalNode]) -> Result<(), LocalError> {
    for plan in plans {
        for node in nodes {
            let name = Path::new(&plan.name).join(&node.name);
            cgroup::create_path(&plan.base, &name, plan.version(), &plan.controllers)
                .and_then(|()| cgroup::create(&daemon_leaf(&plan.node_directory(&node.name))))
                .map_err(cgroup_error("make", &plan.node_directory(&node.name)))?;
        }
    }
    Ok(())
}

/// The groups that a node's daemon is started in.
pub(super) fn daemon_cgroups(node: &LocalNode) -> impl Iterator<Item = PathBuf> {
    node.cgroups.iter().map(|group| daemon_leaf(group))
}

fn daemon_leaf(node_group: &Path) -> PathBuf {
    node_group.join(DAEMON_LEAF)
}

/// Kills all processes in the cluster's groups, and removes the groups.
pub(super) fn remove_cgroups(plans: &[CgroupPlan]) -> Result<(), LocalError> {
    let directories: Vec<PathBuf> = plans.iter().map(CgroupPlan::directory).collect();
    kill_all(&directories)?;
    for directory in &directories {
        let groups = cgroup::subtree(directory).map_err(cgroup_error("list", directory))?;
        for group in groups {
            cgroup::remove(&group, Duration::from_millis(REMOVE_MS_MAX)).map_err(cgroup_error("remove", &group))?;
        }
    }
    Ok(())
}

/// Kills all processes in the groups. Repeats until none is left, because a process may have started another one before it
/// was killed.
fn kill_all(directories: &[PathBuf]) -> Result<(), LocalError> {
    let deadline = Instant::now() + Duration::from_millis(KILL_MS_MAX);
    loop {
        let pids = processes_below(directories)?;
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(LocalError::KillTimeout { pids, waited_ms: KILL_MS_MAX });
        }
        let processes: Vec<(i32, OwnedFd)> =
            pids.into_iter().filter_map(|pid| Some((pid, pidfd::open(pid).ok()?))).collect();
        // List the processes again after opening them: if a process outside of the groups had reused a pid before the
        // opening, the pid is no longer in the list. An open pidfd always refers to the same process.
        let pids = processes_below(directories)?;
        for (_, process) in processes.iter().filter(|(pid, _)| pids.binary_search(pid).is_ok()) {
            let _ = pidfd::send_signal(process, Signal::KILL.as_raw());
        }
        for (_, process) in &processes {
            let _ = clone::reap_within(process, Duration::from_millis(KILL_RETRY_MS));
        }
    }
}

/// The processes in the groups and below them, in ascending order.
fn processes_below(directories: &[PathBuf]) -> Result<Vec<i32>, LocalError> {
    let mut pids = Vec::new();
    for directory in directories {
        for group in cgroup::subtree(directory).map_err(cgroup_error("list", directory))? {
            match cgroup::processes(&group) {
                Ok(found) => pids.extend(found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cgroup_error("list", &group)(cause)),
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn cgroup_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::Cgroup { action, path: path.to_owned(), cause }
}
