//! The control group of one container in every used hierarchy: its processes, limits and usage.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::CgroupVersion;

use super::unlimited::UnlimitedGroup;
use super::{CgroupDirectory, CgroupError};

/// Longest wait for the last process of a group to end, in milliseconds. Killing a pid namespace takes a few milliseconds;
/// freeing many gigabytes takes longer.
const REMOVE_MS_MAX: u64 = 2_000;

/// The group of a container or service, in every hierarchy that is used for it.
#[derive(Debug, Clone)]
pub struct ContainerCgroup {
    pub(super) directories: Vec<CgroupDirectory>,
    /// The common group of unlimited containers in version 1 hierarchies, if the container has no group of its own in them.
    pub(super) unlimited: Option<UnlimitedGroup>,
}

impl ContainerCgroup {
    /// Moves a process into the group.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub fn join(&self, pid: i32) -> Result<(), CgroupError> {
        self.directories.iter().try_for_each(|directory| join_directory(directory, pid))
    }

    /// Moves a process into all groups of the container's processes.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub fn join_with_common(&self, pid: i32) -> Result<(), CgroupError> {
        self.join(pid)?;
        self.unlimited.as_ref().map_or(Ok(()), |common| common.join(pid))
    }

    /// The group's directory in each hierarchy.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(|directory| directory.path.as_path())
    }

    /// Opens the group's directory in the unified hierarchy, if there is one: clone3(2) can create a process in it.
    pub(crate) fn open_clone_target(&self) -> Result<Option<File>, CgroupError> {
        let unified = self.directories.iter().find(|directory| directory.version == CgroupVersion::V2);
        let open = |directory: &CgroupDirectory| {
            cgroup::open(&directory.path).map_err(|cause| CgroupError::File { path: directory.path.clone(), cause })
        };
        unified.map(open).transpose()
    }

    /// Moves a process that was created in the group's unified directory into its groups of the version 1 hierarchies.
    pub(crate) fn join_v1(&self, pid: i32) -> Result<(), CgroupError> {
        self.directories
            .iter()
            .filter(|directory| directory.version == CgroupVersion::V1)
            .try_for_each(|directory| join_directory(directory, pid))?;
        self.unlimited.as_ref().map_or(Ok(()), |common| common.join(pid))
    }

    /// Limits the number of the group's tasks (threads count).
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_tasks_max(&self, tasks: u64) -> Result<(), CgroupError> {
        write_file(self.directory_with("pids")?, "pids.max", &tasks.to_string())
    }

    /// Memory that is charged to the group, page cache included, in bytes.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn memory_bytes(&self) -> Result<u64, CgroupError> {
        let directory = self.directory_with("memory")?;
        let file = by_version(directory, "memory.usage_in_bytes", "memory.current");
        cgroup::read_number(&directory.path, file)
            .map_err(|cause| CgroupError::File { path: directory.path.join(file), cause })
    }

    /// The processes of the group, as numbers in the caller's pid namespace.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .directories
            .iter()
            .flat_map(|directory| cgroup::processes(&directory.path).unwrap_or_default())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes the group. All its processes must have been killed.
    ///
    /// # Errors
    /// [`CgroupError::Remove`] for the first directory that cannot be removed. The others are removed.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let limit = Duration::from_millis(REMOVE_MS_MAX);
        let failures: Vec<CgroupError> = self
            .directories
            .iter()
            .filter_map(|directory| {
                let cause = cgroup::remove(&directory.path, limit).err()?;
                Some(CgroupError::Remove { path: directory.path.clone(), cause })
            })
            .collect();
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    pub(super) fn directory_with(&self, controller: &'static str) -> Result<&CgroupDirectory, CgroupError> {
        let has = |directory: &&CgroupDirectory| directory.controllers.iter().any(|c| c == controller);
        self.directories.iter().find(has).ok_or(CgroupError::ControllerMissing { controller })
    }
}

pub(super) fn by_version(directory: &CgroupDirectory, v1: &'static str, v2: &'static str) -> &'static str {
    match directory.version {
        CgroupVersion::V1 => v1,
        CgroupVersion::V2 => v2,
    }
}

pub(super) fn join_directory(directory: &CgroupDirectory, pid: i32) -> Result<(), CgroupError> {
    cgroup::move_process(&directory.path, pid).map_err(|cause| CgroupError::Join {
        path: directory.path.clone(),
        pid,
        cause,
    })
}

pub(super) fn write_file(directory: &CgroupDirectory, file: &str, value: &str) -> Result<(), CgroupError> {
    cgroup::write(&directory.path, file, value)
        .map_err(|cause| CgroupError::File { path: directory.path.join(file), cause })
}
