//! The common group of all containers without limits, in version 1 hierarchies next to the unified one. The daemon's threads
//! that start containers are in it, so that no process has to be moved into it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::CgroupVersion;

use super::limits::read_oom_kills;
use super::{CgroupDirectory, CgroupError, NodeCgroups};

/// Name of the group in the node's directory.
const NAME: &str = "children";

/// Longest wait until the kernel has removed ended threads from the group, and the pause between two checks.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);
const LEAVE_PAUSE: Duration = Duration::from_millis(2);

thread_local! {
    /// Whether processes that this thread starts are in the group.
    static IS_IN: Cell<bool> = const { Cell::new(false) };
}

/// The common group. It has no directories if there is only the unified hierarchy, or none.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnlimitedGroup {
    directories: Vec<CgroupDirectory>,
    /// How many of the kernel's kills for lack of memory have been attributed to a container.
    reported_oom_kills: Arc<AtomicU64>,
}

impl NodeCgroups {
    /// Creates the group. It has no directory if there is only the unified hierarchy, or none.
    pub(super) fn make_unlimited(&self) -> Result<UnlimitedGroup, CgroupError> {
        let is_unified = self.directories.first().is_some_and(|directory| directory.version == CgroupVersion::V2);
        let directories: Vec<CgroupDirectory> = match is_unified {
            true => self
                .group_below(NAME)
                .directories
                .into_iter()
                .filter(|directory| directory.version == CgroupVersion::V1)
                .collect(),
            false => Vec::new(),
        };
        for directory in &directories {
            cgroup::create(&directory.path)
                .map_err(|cause| CgroupError::Create { path: directory.path.clone(), cause })?;
        }
        let unlimited = UnlimitedGroup { directories, reported_oom_kills: Arc::default() };
        unlimited.reported_oom_kills.store(unlimited.read_oom_kills(), Ordering::Relaxed);
        Ok(unlimited)
    }
}

impl UnlimitedGroup {
    /// Whether the machine has a hierarchy that needs this group.
    pub(crate) fn exists(&self) -> bool {
        !self.directories.is_empty()
    }

    /// Moves the calling thread into the group, so that everything it starts is in the group.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub(crate) fn enter(&self) -> Result<(), CgroupError> {
        let enter = |directory: &CgroupDirectory| {
            cgroup::move_thread(&directory.path).map_err(|cause| {
                let pid = std::process::id().cast_signed();
                CgroupError::Join { path: directory.path.clone(), pid, cause }
            })
        };
        self.directories.iter().try_for_each(enter)?;
        IS_IN.set(true);
        Ok(())
    }

    /// Moves a process that the calling thread has started into the group, unless the process was created in it.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub(crate) fn join(&self, pid: i32) -> Result<(), CgroupError> {
        if IS_IN.get() {
            return Ok(());
        }
        self.directories.iter().try_for_each(|directory| super::container::join_directory(directory, pid))
    }

    /// Waits until this process has no threads in the group. Ended threads remain in it for a short time.
    pub(super) fn wait_threads_left(&self) {
        let deadline = Instant::now() + LEAVE_LIMIT;
        let us = std::process::id().cast_signed();
        let has_us =
            |directory: &CgroupDirectory| cgroup::processes(&directory.path).is_ok_and(|pids| pids.contains(&us));
        while self.directories.iter().any(has_us) && Instant::now() < deadline {
            std::thread::sleep(LEAVE_PAUSE);
        }
    }

    /// Attributes one of the kernel's kills for lack of memory to a container. Returns whether there was one that was not
    /// attributed yet. Call only for a container whose process was killed.
    pub(super) fn take_oom_kill(&self) -> bool {
        let kills = self.read_oom_kills();
        let next_count = |reported: u64| (reported < kills).then_some(reported + 1);
        self.reported_oom_kills.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_count).is_ok()
    }

    fn read_oom_kills(&self) -> u64 {
        let directory =
            self.directories.iter().find(|directory| directory.controllers.iter().any(|name| name == "memory"));
        directory.map_or(0, read_oom_kills)
    }
}
