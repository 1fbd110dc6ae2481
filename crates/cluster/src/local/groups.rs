//! Control groups of a cluster: whatever is in them was started by its daemons.
//!
//! ```text
//! BASE/farfork-NAME/n1/farfork-daemon      the daemon and its pager
//! BASE/farfork-NAME/n1/farfork/...         what the daemon makes: containers, templates
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farfork_sys::cgroup::hierarchy::{self, DAEMON_LEAF, Version};
use farfork_sys::{cgroup, clone, pidfd};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::error::LocalError;
use super::node::LocalNode;

/// The controllers that a node's limits need.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Longest wait for the end of what was killed, in milliseconds: freeing hundreds of gigabytes takes seconds.
const KILL_MS_MAX: u64 = 10_000;
/// Longest wait for one process before all are looked at again, in milliseconds.
const KILL_RETRY_MS: u64 = 5;
/// Longest wait for a group to be free of ended processes, in milliseconds.
const REMOVE_MS_MAX: u64 = 2_000;

/// The cluster's group in one hierarchy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GroupPlan {
    /// Where the cluster's group is made.
    base: PathBuf,
    /// Its name there.
    name: String,
    /// Whether the hierarchy is the unified one.
    unified: bool,
    /// Controllers to hand on to the nodes.
    controllers: Vec<String>,
}

impl GroupPlan {
    /// The directory of a node's group.
    pub(super) fn of_node(&self, node: &str) -> PathBuf {
        self.directory().join(node)
    }

    fn directory(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    fn version(&self) -> Version {
        if self.unified { Version::V2 } else { Version::V1 }
    }
}

/// Finds the hierarchies that a cluster uses.
pub(super) fn plan(cluster: &str) -> Result<Vec<GroupPlan>, LocalError> {
    let hierarchies = hierarchy::mounted().map_err(failed("find the hierarchy of", Path::new("/proc/self/cgroup")))?;
    let plans = hierarchies.iter().map(|hierarchy| {
        let base = hierarchy.base(&CONTROLLERS);
        GroupPlan {
            base: base.directory,
            name: format!("farfork-{cluster}"),
            unified: hierarchy.version == Version::V2,
            controllers: base.controllers,
        }
    });
    Ok(plans.filter(|plan| plan.unified || !plan.controllers.is_empty()).collect())
}

/// Makes the groups of all nodes.
pub(super) fn create(plans: &[GroupPlan], nodes: &[LocalNode]) -> Result<(), LocalError> {
    for plan in plans {
        for node in nodes {
            let name = Path::new(&plan.name).join(&node.name);
            cgroup::create_path(&plan.base, &name, plan.version(), &plan.controllers)
                .and_then(|()| cgroup::create(&leaf(&plan.of_node(&node.name))))
                .map_err(failed("make", &plan.of_node(&node.name)))?;
        }
    }
    Ok(())
}

/// The groups that a node's daemon is started in.
pub(super) fn of_daemon(node: &LocalNode) -> impl Iterator<Item = PathBuf> {
    node.cgroups.iter().map(|group| leaf(group))
}

fn leaf(node_group: &Path) -> PathBuf {
    node_group.join(DAEMON_LEAF)
}

/// Kills everything in the cluster's groups, and removes them.
pub(super) fn remove(plans: &[GroupPlan]) -> Result<(), LocalError> {
    let directories: Vec<PathBuf> = plans.iter().map(GroupPlan::directory).collect();
    kill_all(&directories)?;
    for directory in &directories {
        let groups = cgroup::subtree(directory).map_err(failed("list", directory))?;
        for group in groups {
            cgroup::remove(&group, Duration::from_millis(REMOVE_MS_MAX)).map_err(failed("remove", &group))?;
        }
    }
    Ok(())
}

/// Again and again, since what is killed may just have started something.
fn kill_all(directories: &[PathBuf]) -> Result<(), LocalError> {
    let deadline = Instant::now() + Duration::from_millis(KILL_MS_MAX);
    loop {
        let pids = members(directories)?;
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(LocalError::Stuck { pids, waited_ms: KILL_MS_MAX });
        }
        let processes: Vec<(i32, OwnedFd)> =
            pids.into_iter().filter_map(|pid| Some((pid, pidfd::open(pid).ok()?))).collect();
        // Looked up again after they were opened: a number that came to mean another process meanwhile is not among
        // the members, and from now on none can.
        let pids = members(directories)?;
        for (_, process) in processes.iter().filter(|(pid, _)| pids.binary_search(pid).is_ok()) {
            let _ = pidfd::send_signal(process, Signal::KILL.as_raw());
        }
        for (_, process) in &processes {
            let _ = clone::reap(process, Duration::from_millis(KILL_RETRY_MS));
        }
    }
}

/// The processes in the groups and below them, in ascending order.
fn members(directories: &[PathBuf]) -> Result<Vec<i32>, LocalError> {
    let mut pids = Vec::new();
    for directory in directories {
        for group in cgroup::subtree(directory).map_err(failed("list", directory))? {
            match cgroup::processes(&group) {
                Ok(found) => pids.extend(found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(failed("list", &group)(cause)),
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |cause| LocalError::Group { action, path: path.to_owned(), cause }
}
