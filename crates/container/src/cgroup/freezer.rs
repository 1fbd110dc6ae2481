//! Pauses all processes of a group: by the unified hierarchy if there is one, otherwise by the version 1 freezer.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_sys::cgroup::hierarchy::CgroupVersion;
use farfork_sys::cgroup::{self, freezer};
use farfork_sys::process::ProcStatus;

use super::container::join_directory;
use super::{CgroupDirectory, CgroupError, ContainerCgroup};

/// The node's group of container inits that are not frozen with their children.
const INITS: &str = "inits";

impl ContainerCgroup {
    /// Stops all tasks of the group and waits until they are stopped, at most `limit`. If that fails, all of them are
    /// resumed.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::Freeze`].
    pub fn freeze(&self, limit: Duration) -> Result<(), CgroupError> {
        let (directory, began) = (self.freezer()?, Instant::now());
        freezer::freeze(&directory.path, directory.version, limit).map_err(|cause| CgroupError::Freeze {
            path: directory.path.clone(),
            cause,
            waited_ms: began.elapsed().as_millis(),
        })
    }

    /// Resumes all stopped tasks. If none is stopped, nothing happens.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn thaw(&self) -> Result<(), CgroupError> {
        let directory = self.freezer()?;
        let failed = |cause| CgroupError::File { path: directory.path.clone(), cause };
        freezer::thaw(&directory.path, directory.version).map_err(failed)
    }

    /// The directory of the group in the unified hierarchy, for a client that freezes it directly. `None` if the node has
    /// only the version 1 freezer, in which a frozen process cannot even be killed.
    pub fn unified_freezer(&self) -> Option<&Path> {
        self.unified_directory().map(|directory| &*directory.path)
    }

    /// Moves the init of the container of `child` out of the group's directory in the unified hierarchy, so that a freeze
    /// stops one task less. A freeze and a thaw of a child and its init take twice as long as those of the child alone.
    /// `child` is a pid in this process's namespace.
    ///
    /// # Errors
    /// [`CgroupError::Create`], [`CgroupError::Join`].
    pub fn move_init_out(&self, child: i32) -> Result<(), CgroupError> {
        let (Some(directory), Some(init)) = (self.unified_directory(), self.init_of(child)) else { return Ok(()) };
        let inits = CgroupDirectory { path: directory.path.with_file_name(INITS), ..directory.clone() };
        cgroup::create(&inits.path).map_err(|cause| CgroupError::Create { path: inits.path.clone(), cause })?;
        join_directory(&inits, init)
    }

    /// The init of the pid namespace of `child`, if it is in the group.
    fn init_of(&self, child: i32) -> Option<i32> {
        let depth = ProcStatus::read(child).ok()?.namespace_ids.len();
        let is_init = |pid: &i32| {
            let ids = ProcStatus::read(*pid).map(|status| status.namespace_ids).unwrap_or_default();
            ids.len() == depth && ids.last() == Some(&1)
        };
        cgroup::processes(&self.unified_directory()?.path).ok()?.into_iter().find(is_init)
    }

    fn unified_directory(&self) -> Option<&CgroupDirectory> {
        self.freezer().ok().filter(|directory| directory.version == CgroupVersion::V2)
    }

    /// Whether the group is frozen, by this daemon or an earlier one.
    pub fn is_frozen(&self) -> bool {
        self.freezer().is_ok_and(|directory| freezer::is_frozen(&directory.path, directory.version))
    }

    /// Lets killed tasks end: the version 1 freezer blocks even SIGKILL.
    pub(crate) fn thaw_killed(&self) {
        if self.freezer().is_ok_and(|directory| directory.version == CgroupVersion::V1) && self.is_frozen() {
            // If a task stays frozen, the later wait for its end reports a timeout.
            let _ = self.thaw();
        }
    }

    fn freezer(&self) -> Result<&CgroupDirectory, CgroupError> {
        let can = |directory: &&CgroupDirectory| {
            directory.version == CgroupVersion::V2 || directory.controllers.iter().any(|c| c == "freezer")
        };
        self.directories.iter().find(can).ok_or(CgroupError::ControllerMissing { controller: "freezer" })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use farfork_sys::cgroup::hierarchy;

    use super::super::NodeCgroups;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// CPU time that a process has used, in ticks.
    fn ticks_used(process: &Child) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    fn goes_on(process: &Child) -> bool {
        let (before, deadline) = (ticks_used(process), Instant::now() + LIMIT);
        std::iter::repeat_with(|| ticks_used(process) > before).any(|more| more || Instant::now() > deadline)
            && ticks_used(process) > before
    }

    /// A busy process stops, is reported as frozen, and continues.
    fn stops_and_goes_on(version: CgroupVersion) {
        let mut hierarchies = hierarchy::mounted_hierarchies().unwrap();
        hierarchies.retain(|hierarchy| hierarchy.version == version);
        let name = format!("farfork-test-{}-{version:?}", std::process::id());
        let node = NodeCgroups::create_in(hierarchies, &name).unwrap();
        let group = node.create_group("paused").unwrap();
        let mut process = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        group.join(process.id().cast_signed()).unwrap();
        group.freeze(LIMIT).unwrap();
        group.freeze(LIMIT).unwrap();
        let frozen_ticks = ticks_used(&process);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((ticks_used(&process), group.is_frozen()), (frozen_ticks, true));
        group.thaw().unwrap();
        group.thaw().unwrap();
        assert!(goes_on(&process) && !group.is_frozen());
        group.freeze(LIMIT).unwrap();
        process.kill().unwrap();
        group.thaw_killed();
        process.wait().unwrap();
        group.remove().unwrap();
        node.remove_empty();
    }

    #[test]
    fn an_init_is_not_frozen_with_its_child() {
        let mut hierarchies = hierarchy::mounted_hierarchies().unwrap();
        hierarchies.retain(|hierarchy| hierarchy.version == CgroupVersion::V2);
        let node = NodeCgroups::create_in(hierarchies, &format!("farfork-test-{}-inits", std::process::id())).unwrap();
        let group = node.create_group("paused").unwrap();
        // `sh` is the init of a pid namespace, and `sleep` is its child.
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", "sleep 1000 & while :; do :; done"])
            .spawn()
            .unwrap();
        let children = |pid: u32| -> Vec<u32> {
            let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
        };
        let first_child =
            |pid| std::iter::repeat_with(|| children(pid)).find_map(|pids| pids.first().copied()).unwrap();
        let init = first_child(unshare.id());
        let child = first_child(init);
        [init, child].into_iter().for_each(|pid| group.join(pid.cast_signed()).unwrap());
        group.move_init_out(child.cast_signed()).unwrap();
        assert_eq!(group.processes(), [child.cast_signed()]);
        // No init is in the group any more.
        group.move_init_out(child.cast_signed()).unwrap();
        group.freeze(LIMIT).unwrap();
        assert!(!fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap().contains("/paused"));
        unshare.kill().unwrap();
        unshare.wait().unwrap();
        // The kernel kills the namespace of a dead init, including frozen processes.
        group.remove().unwrap();
        while node.group_names().contains(&INITS.to_owned()) {
            node.remove_empty();
        }
    }

    #[test]
    fn a_group_is_paused_in_the_unified_hierarchy() {
        stops_and_goes_on(CgroupVersion::V2);
    }

    #[test]
    fn a_group_is_paused_by_the_freezer_of_version_1() {
        stops_and_goes_on(CgroupVersion::V1);
    }
}
