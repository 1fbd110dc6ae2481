//! One group, in every hierarchy that is used: who is in it, what it may use, what it uses.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::Version;

use super::unlimited::Unlimited;
use super::{CgroupError, Place};

/// Longest wait for the last process of a group to be gone, in milliseconds: those of a killed pid namespace take a
/// few; freeing many gigabytes takes longer.
const REMOVE_MS_MAX: u64 = 2_000;

/// A container's (or service's) group, in every hierarchy that is used for it.
#[derive(Debug, Clone)]
pub struct ContainerCgroup {
    pub(super) places: Vec<Place>,
    /// Where its processes are in other hierarchies, without a group of their own there.
    pub(super) common: Option<Unlimited>,
}

impl ContainerCgroup {
    /// Moves a process into the group.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub fn join(&self, pid: i32) -> Result<(), CgroupError> {
        self.places.iter().try_for_each(|place| join(place, pid))
    }

    /// The group's directory in each hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|place| place.path.as_path())
    }

    /// Opens the directory that a process can be born into, if there is a unified hierarchy.
    pub(crate) fn open_birthplace(&self) -> Result<Option<File>, CgroupError> {
        let unified = self.places.iter().find(|place| place.version == Version::V2);
        let open = |place: &Place| {
            cgroup::open(&place.path).map_err(|cause| CgroupError::File { path: place.path.clone(), cause })
        };
        unified.map(open).transpose()
    }

    /// Moves a process that was born in the group's unified directory to where it belongs in other hierarchies.
    pub(crate) fn join_others(&self, pid: i32) -> Result<(), CgroupError> {
        self.places.iter().filter(|place| place.version == Version::V1).try_for_each(|place| join(place, pid))?;
        self.common.as_ref().map_or(Ok(()), |common| common.join(pid))
    }

    /// Limits the number of the group's tasks (threads count).
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_tasks_max(&self, tasks: u64) -> Result<(), CgroupError> {
        write(self.with("pids")?, "pids.max", &tasks.to_string())
    }

    /// Memory that is charged to the group, page cache included, in bytes.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn memory_bytes(&self) -> Result<u64, CgroupError> {
        let place = self.with("memory")?;
        let file = by_version(place, "memory.usage_in_bytes", "memory.current");
        cgroup::read_number(&place.path, file).map_err(|cause| CgroupError::File { path: place.path.join(file), cause })
    }

    /// The processes of the group, as numbers of the caller's pid namespace.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> =
            self.places.iter().flat_map(|place| cgroup::processes(&place.path).unwrap_or_default()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes the group, which must have no processes but some that are ending.
    ///
    /// # Errors
    /// [`CgroupError::Remove`] for the first directory that cannot be removed; the others are.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let limit = Duration::from_millis(REMOVE_MS_MAX);
        let failures: Vec<CgroupError> = self
            .places
            .iter()
            .filter_map(|place| {
                let cause = cgroup::remove(&place.path, limit).err()?;
                Some(CgroupError::Remove { path: place.path.clone(), cause })
            })
            .collect();
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    pub(super) fn with(&self, controller: &'static str) -> Result<&Place, CgroupError> {
        let has = |place: &&Place| place.controllers.iter().any(|c| c == controller);
        self.places.iter().find(has).ok_or(CgroupError::ControllerMissing { controller })
    }
}

pub(super) fn by_version(place: &Place, v1: &'static str, v2: &'static str) -> &'static str {
    match place.version {
        Version::V1 => v1,
        Version::V2 => v2,
    }
}

pub(super) fn join(place: &Place, pid: i32) -> Result<(), CgroupError> {
    cgroup::join(&place.path, pid).map_err(|cause| CgroupError::Join { path: place.path.clone(), pid, cause })
}

pub(super) fn write(place: &Place, file: &str, value: &str) -> Result<(), CgroupError> {
    cgroup::write(&place.path, file, value).map_err(|cause| CgroupError::File { path: place.path.join(file), cause })
}
