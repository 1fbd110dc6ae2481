//! The leftover containers of a dead daemon, found by their records. The start time of each init, and the name of the node's
//! control groups, distinguish these containers from other programs' processes and groups.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use farfork_sys::mount::point;
use farfork_sys::{clone, pidfd};
use rustix::process::Signal;

use crate::cgroup::{NodeCgroups, OomCause, group_name};
use crate::config::ContainerConfig;
use crate::error::ContainerError;
use crate::handle::RunningContainer;
use crate::record::{self, ContainerRecord, RecordState};
use crate::root::PRIVATE_DIR;

/// Longest wait for the end of a leftover init, in milliseconds. If it does not end, a warning is logged, and the next
/// daemon tries again.
const KILL_MS_MAX: u64 = 5_000;

/// The leftovers that were found.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Containers in which children still run; they are left alone.
    pub running: Vec<RunningContainer>,
    /// Ids of ended containers in which the kernel killed a process for lack of memory. Their control groups, which recorded
    /// this, have been removed.
    pub oom_killed: Vec<(String, OomCause)>,
    /// The number of removed containers and control groups.
    pub removed: usize,
}

/// Removes what an earlier daemon of this run directory left: containers that waited in its pool, and records and control
/// groups of ended containers. Returns containers in use. Call it before the pool starts, while no other daemon runs in this
/// directory.
///
/// # Errors
/// [`ContainerError::Record`] or [`ContainerError::Cgroup`] if the leftovers cannot be determined. A failed removal is only
/// logged.
pub fn clean_leftovers(config: &ContainerConfig) -> Result<Leftovers, ContainerError> {
    let cgroups = NodeCgroups::create(&config.cgroup_root_name)?;
    let mut found = Leftovers::default();
    for record in record::read_leftover_records(&config.records_dir())? {
        match record.init.open().ok().flatten() {
            Some(init) if record.state == RecordState::InUse => {
                found.running.push(adopt_running(config, &cgroups, &record, init));
            }
            other => {
                if let Some(init) = other {
                    let _ = pidfd::send_signal(&init, Signal::KILL.as_raw());
                    let _ = clone::reap_within(&init, Duration::from_millis(KILL_MS_MAX));
                }
                let memory_end = cgroups.open_group(&group_name(&record.id)).oom_cause();
                found.oom_killed.extend(memory_end.map(|end| (record.id.clone(), end)));
                found.removed += usize::from(remove_container(config, &cgroups, &record));
            }
        }
    }
    if found.running.is_empty() {
        point::remove_unused(Path::new(PRIVATE_DIR));
    }
    found.removed += remove_unrecorded_groups(&cgroups, &found.running);
    remove_former_groups(config, &cgroups);
    Ok(found)
}

fn adopt_running(
    config: &ContainerConfig,
    cgroups: &NodeCgroups,
    record: &ContainerRecord,
    init: OwnedFd,
) -> RunningContainer {
    RunningContainer {
        id: record.id.clone(),
        init_pid: record.init.pid,
        init,
        cgroup: cgroups.open_group(&group_name(&record.id)),
        records_dir: config.records_dir(),
        _held: None,
        reusable_root: Mutex::default(),
    }
}

fn remove_container(config: &ContainerConfig, cgroups: &NodeCgroups, record: &ContainerRecord) -> bool {
    match cgroups.open_group(&group_name(&record.id)).remove() {
        Ok(()) => {
            record::remove_record(&config.records_dir(), &record.id, record.state);
            true
        }
        Err(error) => {
            tracing::warn!(%error, container = %record.id, "a leftover container could not be removed");
            false
        }
    }
}

/// Removes groups of containers that ended before their record was written. A group with processes is not removed.
fn remove_unrecorded_groups(cgroups: &NodeCgroups, running: &[RunningContainer]) -> usize {
    let in_use = |name: &str| running.iter().any(|container| group_name(container.id()) == name);
    let names = cgroups.group_names();
    let orphans = names.iter().filter(|name| name.starts_with("pool-") && !in_use(name));
    orphans
        .map(|name| cgroups.open_group(name))
        .filter(|group| group.processes().is_empty() && group.remove().is_ok())
        .count()
}

/// Removes groups that a daemon of this run directory used while the node had another name. Groups that are not empty stay.
fn remove_former_groups(config: &ContainerConfig, cgroups: &NodeCgroups) {
    let written = std::fs::read_to_string(config.cgroups_file()).unwrap_or_default();
    let is_former = |path: &PathBuf| !cgroups.paths().any(|directory| directory == path);
    let former = NodeCgroups::from_former(written.lines().map(PathBuf::from).filter(is_former));
    former.group_names().iter().for_each(|name| drop(former.open_group(name).remove()));
    former.remove_empty();
}
