//! What a daemon that died left of its containers: found by their records, and told from what is not ours by the
//! start time of each init and by the name of the node's own control groups.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use farfork_sys::mount::point;
use farfork_sys::{clone, pidfd};
use rustix::process::Signal;

use crate::cgroup::{MemoryEnd, NodeCgroups, group_name};
use crate::config::ContainerConfig;
use crate::error::ContainerError;
use crate::handle::RunningContainer;
use crate::record::{self, Record, Use};
use crate::root::PRIVATE_DIR;

/// Longest wait for the end of a leftover init, in milliseconds; what does not end is reported and tried next time.
const KILL_MS_MAX: u64 = 5_000;

/// What was found.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Containers in which children still run; they are left alone.
    pub running: Vec<RunningContainer>,
    /// Ids of containers that ended meanwhile, of which the kernel had killed a process for want of memory: with their control groups goes
    /// what tells of it.
    pub killed: Vec<(String, MemoryEnd)>,
    /// How many containers and control groups were removed.
    pub removed: usize,
}

/// Removes what an earlier daemon of this run directory left: containers that waited in its pool, records and control
/// groups of containers that have ended. Containers in use are given back. To be called before the pool starts, with
/// no other daemon running in this directory.
///
/// # Errors
/// [`ContainerError::Record`] or [`ContainerError::Cgroup`] where it cannot be found out what is left; what merely
/// cannot be removed is logged.
pub fn clean_leftovers(config: &ContainerConfig) -> Result<Leftovers, ContainerError> {
    let cgroups = NodeCgroups::create(&config.cgroup_root_name)?;
    let mut found = Leftovers::default();
    for record in record::read_all(&config.records_dir())? {
        match record.init.open().ok().flatten() {
            Some(init) if record.used == Use::InUse => {
                found.running.push(adopt(config, &cgroups, &record, init));
            }
            other => {
                if let Some(init) = other {
                    let _ = pidfd::send_signal(&init, Signal::KILL.as_raw());
                    let _ = clone::reap(&init, Duration::from_millis(KILL_MS_MAX));
                }
                let memory_end = cgroups.existing(&group_name(&record.id)).memory_end();
                found.killed.extend(memory_end.map(|end| (record.id.clone(), end)));
                found.removed += usize::from(remove(config, &cgroups, &record));
            }
        }
    }
    if found.running.is_empty() {
        point::remove_unused(Path::new(PRIVATE_DIR));
    }
    found.removed += remove_unrecorded(&cgroups, &found.running);
    remove_former(config, &cgroups);
    Ok(found)
}

fn adopt(config: &ContainerConfig, cgroups: &NodeCgroups, record: &Record, init: OwnedFd) -> RunningContainer {
    RunningContainer {
        id: record.id.clone(),
        init_pid: record.init.pid,
        init,
        cgroup: cgroups.existing(&group_name(&record.id)),
        records: config.records_dir(),
        _held: None,
        legacy: Mutex::default(),
    }
}

fn remove(config: &ContainerConfig, cgroups: &NodeCgroups, record: &Record) -> bool {
    match cgroups.existing(&group_name(&record.id)).remove() {
        Ok(()) => {
            record::remove(&config.records_dir(), &record.id, record.used);
            true
        }
        Err(error) => {
            tracing::warn!(%error, container = %record.id, "a leftover container is not removed");
            false
        }
    }
}

/// Groups of containers that died before their record was written. One with processes is not removed.
fn remove_unrecorded(cgroups: &NodeCgroups, running: &[RunningContainer]) -> usize {
    let in_use = |name: &str| running.iter().any(|container| group_name(container.id()) == name);
    let names = cgroups.names();
    let orphans = names.iter().filter(|name| name.starts_with("pool-") && !in_use(name));
    orphans
        .map(|name| cgroups.existing(name))
        .filter(|group| group.processes().is_empty() && group.remove().is_ok())
        .count()
}

/// Groups that a daemon of this run directory had while the node was called otherwise; they are empty by now, or stay.
fn remove_former(config: &ContainerConfig, cgroups: &NodeCgroups) {
    let written = std::fs::read_to_string(config.cgroups_file()).unwrap_or_default();
    let is_former = |path: &PathBuf| !cgroups.directories().any(|directory| directory == path);
    let former = NodeCgroups::former(written.lines().map(PathBuf::from).filter(is_former));
    former.names().iter().for_each(|name| drop(former.existing(name).remove()));
    former.remove_empty();
}
