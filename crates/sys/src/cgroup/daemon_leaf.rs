//! The leaf of a daemon: a group below the daemon's own version 2 group that holds only the daemon and its helpers. Then the
//! own group has no processes, so that groups below it can have controllers, and its limits apply to them. The daemon enters
//! the leaf when it starts, unless its service manager has started it there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hierarchy::{self, CgroupVersion, DAEMON_LEAF};

/// Longest wait until processes that are ending have left the leaf.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// This process in the leaf. Dropping it returns the process and its helpers to their own group, and removes the leaf.
#[derive(Debug)]
pub struct DaemonLeaf {
    own: PathBuf,
}

impl DaemonLeaf {
    /// Moves this process into the leaf of its group. Returns `None`, and changes nothing, if the process is in the root, in a
    /// leaf, not alone in its group, or in a group of systemd. systemd cannot start a service again in a group if groups below
    /// have controllers.
    ///
    /// # Errors
    /// As reading `/proc/self/cgroup`, mkdir(2), and [`super::move_process`].
    pub fn enter() -> io::Result<Option<Self>> {
        let hierarchies = hierarchy::mounted_hierarchies()?;
        let Some(unified) = hierarchies.into_iter().find(|hierarchy| hierarchy.version == CgroupVersion::V2) else {
            return Ok(None);
        };
        let own = unified.own;
        if super::is_root(&own) || own.ends_with(DAEMON_LEAF) || is_of_systemd(&own) || !is_alone_in(&own)? {
            return Ok(None);
        }
        let leaf = own.join(DAEMON_LEAF);
        super::create(&leaf)?;
        match super::move_process(&leaf, own_pid()) {
            Ok(()) => Ok(Some(Self { own })),
            Err(error) => {
                let _ = super::remove(&leaf, Duration::ZERO);
                Err(error)
            }
        }
    }

    fn leave(&self) -> io::Result<()> {
        super::disable_for_children(&self.own)?;
        let leaf = self.own.join(DAEMON_LEAF);
        for pid in super::processes(&leaf)? {
            // Helpers end with this process. Some may have ended already.
            let _ = super::move_process(&self.own, pid);
        }
        super::remove(&leaf, LEAVE_LIMIT)
    }
}

impl Drop for DaemonLeaf {
    fn drop(&mut self) {
        // Fails if groups below are still in use, such as by children that outlive the daemon. The leaf then stays.
        let _ = self.leave();
    }
}

/// Whether systemd runs this machine (sd_booted(3)).
pub fn is_systemd_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

fn is_of_systemd(group: &Path) -> bool {
    let is_unit = group.extension().is_some_and(|extension| extension == "service" || extension == "scope");
    is_unit && is_systemd_running()
}

fn is_alone_in(group: &Path) -> io::Result<bool> {
    let listed = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(listed.trim() == own_pid().to_string())
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use super::super::hierarchy::Hierarchy;
    use super::*;

    /// Environment variable that passes the group to the process that the test moves into it.
    const GROUP_VARIABLE: &str = "FARFORK_TEST_DAEMON_GROUP";

    fn unified() -> Hierarchy {
        let found = hierarchy::mounted_hierarchies().unwrap();
        found.into_iter().find(|hierarchy| hierarchy.version == CgroupVersion::V2).expect("a unified hierarchy")
    }

    fn read(group: &Path, file: &str) -> String {
        fs::read_to_string(group.join(file)).unwrap().trim().to_owned()
    }

    /// A group below this process's group, and a controller that the group has. Removed on drop.
    struct TestGroup {
        path: PathBuf,
        controller: String,
        base: PathBuf,
        enabled_before: bool,
    }

    impl TestGroup {
        fn create() -> Self {
            let hierarchy = unified();
            let controllers = super::super::controllers(&hierarchy.top).unwrap();
            let controller = controllers.into_iter().next().expect("a controller of version 2");
            let enabled =
                |group: &Path| read(group, "cgroup.subtree_control").split(' ').any(|name| name == controller);
            let enabled_before = enabled(&hierarchy.top);
            let base = hierarchy.creation_base(&[&controller]).directory;
            let path = base.join(format!("farfork-test-{}", std::process::id()));
            super::super::create(&path).unwrap();
            Self { path, controller, base, enabled_before }
        }
    }

    impl Drop for TestGroup {
        fn drop(&mut self) {
            for group in super::super::subtree(&self.path).unwrap() {
                super::super::remove(&group, LEAVE_LIMIT).unwrap();
            }
            if !self.enabled_before {
                // Fails if another process uses the controller meanwhile.
                let _ = super::super::write(&self.base, "cgroup.subtree_control", &format!("-{}", self.controller));
            }
        }
    }

    /// Runs in a process of the test, which moves itself into the group.
    fn check_in(group: &Path, controller: &str) {
        super::super::move_process(group, own_pid()).unwrap();
        let mut neighbour: Child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(DaemonLeaf::enter().unwrap().is_none(), "another process is in the group");
        assert_ne!(unified().creation_base(&[controller]).directory, group);
        assert_eq!(
            (read(group, "cgroup.subtree_control"), read(group, "cgroup.type")),
            (String::new(), "domain".into())
        );
        neighbour.kill().unwrap();
        neighbour.wait().unwrap();

        let leaf = DaemonLeaf::enter().unwrap().expect("this process is alone in the group");
        assert_eq!(unified().own, group.join(DAEMON_LEAF));
        assert!(DaemonLeaf::enter().unwrap().is_none(), "this process is in its leaf");
        let base = unified().creation_base(&[controller]);
        assert_eq!((&*base.directory, &base.controllers[..]), (group, &[controller.to_owned()][..]));
        assert_eq!(
            (read(group, "cgroup.subtree_control"), read(group, "cgroup.type")),
            (controller.into(), "domain".into())
        );
        drop(leaf);
        assert_eq!((unified().own, read(group, "cgroup.subtree_control")), (group.to_owned(), String::new()));
        assert!(!group.join(DAEMON_LEAF).exists());
    }

    /// Uses real groups, and a process of its own.
    #[test]
    fn groups_of_a_daemon_are_below_its_own_group() {
        if let Some(group) = std::env::var_os(GROUP_VARIABLE) {
            let group = PathBuf::from(group);
            let controller = read(&group, "cgroup.controllers");
            return check_in(&group, controller.split(' ').next().unwrap());
        }
        let group = TestGroup::create();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("groups_of_a_daemon_are_below_its_own_group").env(GROUP_VARIABLE, &group.path);
        let ended = command.output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}
