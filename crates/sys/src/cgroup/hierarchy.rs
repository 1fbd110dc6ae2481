//! The control group hierarchies of this machine, of either version, and the calling process's group in each.

use std::io;
use std::path::{Path, PathBuf};

use crate::mount::table::{self, Mount};

/// The version of a hierarchy's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller or set of controllers (cgroups(7), version 1).
    V1,
    /// The single unified hierarchy.
    V2,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: CgroupVersion,
    /// The mount point: the directory of the topmost visible group.
    pub top: PathBuf,
    /// The directory of the calling process's group.
    pub own: PathBuf,
    /// The controllers of a version 1 hierarchy. In version 2, each group lists its controllers in `cgroup.controllers`.
    pub controllers: Vec<String>,
}

/// Name of a group that holds only a daemon and its helper processes ([`super::daemon_leaf`]). The daemon creates groups next
/// to this group, not below it. A version 2 group cannot have both processes and controllers for the groups below.
pub const DAEMON_LEAF: &str = "farfork-daemon";

/// Where hierarchies are usually mounted. A mount elsewhere belongs to another program, which may unmount it while groups
/// are in use.
pub const STANDARD_TOP: &str = "/sys/fs/cgroup";

/// The place in a hierarchy where this process creates groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreationBase {
    /// The directory to create groups in.
    pub directory: PathBuf,
    /// The wanted controllers that groups in `directory` can have.
    pub controllers: Vec<String>,
}

impl Hierarchy {
    /// Whether the hierarchy has this controller, for any of its groups. Changes nothing, unlike [`Self::creation_base`].
    pub fn has_controller(&self, name: &str) -> bool {
        let of_top = match self.version {
            CgroupVersion::V1 => self.controllers.clone(),
            CgroupVersion::V2 => super::controllers(&self.top).unwrap_or_default(),
        };
        of_top.iter().any(|controller| controller == name)
    }

    /// The group whose limits apply to this process: its own group or, for a daemon in its leaf, the group above.
    pub fn limiting_group(&self) -> &Path {
        match self.own.parent() {
            Some(above) if self.own.ends_with(DAEMON_LEAF) => above,
            _ => &self.own,
        }
    }

    /// Chooses where this process creates groups that need the `wanted` controllers. The process's own group is preferred,
    /// so that the limits of the process also limit what the process starts. A version 2 group that has processes cannot
    /// enable controllers for the groups below it. Then the topmost group is tried. If it cannot enable them either, the new
    /// groups are below the process's own group and have no controllers. A group that cannot enable them is not changed.
    pub fn creation_base(&self, wanted: &[&str]) -> CreationBase {
        let own = self.limiting_group();
        let select = |all: Vec<String>| all.into_iter().filter(|c| wanted.contains(&c.as_str())).collect::<Vec<_>>();
        if self.version == CgroupVersion::V1 {
            return CreationBase { directory: own.to_owned(), controllers: select(self.controllers.clone()) };
        }
        let delegated = |directory: &Path| {
            let controllers = select(super::controllers(directory).unwrap_or_default());
            let complete = !controllers.is_empty() && super::enable_for_children(directory, &controllers).is_ok();
            complete.then(|| CreationBase { directory: directory.to_owned(), controllers })
        };
        delegated(own)
            .or_else(|| delegated(&self.top))
            .unwrap_or_else(|| CreationBase { directory: own.to_owned(), controllers: Vec::new() })
    }
}

/// Finds the hierarchies that are mounted in the calling thread's mount namespace, at [`STANDARD_TOP`] or below it. If none
/// is mounted there, returns those that are mounted elsewhere.
///
/// # Errors
/// As reading `/proc/thread-self/mountinfo` and `/proc/self/cgroup`.
pub fn mounted_hierarchies() -> io::Result<Vec<Hierarchy>> {
    let membership = std::fs::read_to_string("/proc/self/cgroup")?;
    Ok(from_tables(&table::read_thread_mounts()?, &membership))
}

fn from_tables(mounts: &[Mount], membership: &str) -> Vec<Hierarchy> {
    let visible = table::visible_mounts(mounts);
    let is_standard = |mount: &&&Mount| mount.point.starts_with(STANDARD_TOP);
    let standard = hierarchies(visible.iter().filter(is_standard), membership);
    if standard.is_empty() { hierarchies(visible.iter(), membership) } else { standard }
}

fn hierarchies<'a>(mounts: impl Iterator<Item = &'a &'a Mount>, membership: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts {
        let version = match mount.filesystem.as_str() {
            "cgroup" => CgroupVersion::V1,
            "cgroup2" => CgroupVersion::V2,
            _ => continue,
        };
        let Some((path, controllers)) = find_membership(membership, version, &mount.options) else {
            continue;
        };
        let own = match Path::new(path).strip_prefix(&mount.root) {
            Ok(below) if below.as_os_str().is_empty() => mount.point.clone(),
            Ok(below) => mount.point.join(below),
            // The process's group is outside of the mounted part, as in some containers.
            Err(_) => mount.point.clone(),
        };
        let hierarchy = Hierarchy { version, top: mount.point.clone(), own, controllers };
        // A hierarchy may be mounted twice. Use the first mount.
        if !found.iter().any(|h| h.version == version && h.controllers == hierarchy.controllers) {
            found.push(hierarchy);
        }
    }
    found
}

/// Finds the line of `/proc/self/cgroup` for a mount, and returns its path and controllers. The line is `0::/path` in
/// version 2, and `4:cpu,cpuacct:/path` in version 1. The options of a version 1 mount contain its controllers. Named
/// hierarchies without controllers are ignored.
fn find_membership<'a>(membership: &'a str, version: CgroupVersion, options: &str) -> Option<(&'a str, Vec<String>)> {
    membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match version {
            CgroupVersion::V2 => controllers.is_empty().then(|| (path, Vec::new())),
            CgroupVersion::V1 => {
                let names: Vec<String> = controllers.split(',').map(str::to_owned).collect();
                let mounted = |name: &String| options.split(',').any(|option| option == name);
                (!controllers.is_empty() && names.iter().all(mounted)).then_some((path, names))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
27 1 254:0 / / rw - ext4 /dev/vda rw
31 27 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const MEMBERSHIP: &str = "9:name=systemd:/\n4:memory:/docker/ab/inner\n1:cpu,cpuacct:/\n0::/outer\n";

    /// Environment variable that passes the other program's mount point to the test process with its own mount namespace.
    const FOREIGN_VARIABLE: &str = "FARFORK_TEST_FOREIGN_GROUPS";

    /// Uses real mounts in the test's own mount namespace. The other program's mount is older than the usual one.
    #[test]
    fn a_cgroup_mount_of_another_program_is_not_used() {
        if let Some(foreign) = std::env::var_os(FOREIGN_VARIABLE) {
            let found = mounted_hierarchies().unwrap();
            assert!(table::read_thread_mounts().unwrap().iter().any(|mount| mount.point == Path::new(&foreign)));
            assert!(found.iter().any(|hierarchy| hierarchy.version == CgroupVersion::V2), "{found:?}");
            assert!(found.iter().all(|hierarchy| hierarchy.top.starts_with(STANDARD_TOP)), "{found:?}");
            return;
        }
        let usual = mounted_hierarchies().unwrap().into_iter().find(|hierarchy| hierarchy.version == CgroupVersion::V2);
        let usual = usual.expect("a unified hierarchy").top;
        let foreign = tempfile::tempdir().unwrap();
        let script = "umount -l \"$USUAL\" && mount -t cgroup2 foreign \"$FOREIGN\" && mount -t cgroup2 usual \"$USUAL\" && exec \"$0\" a_cgroup_mount_of_another_program_is_not_used";
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
        command.env("USUAL", usual).env("FOREIGN", foreign.path()).env(FOREIGN_VARIABLE, foreign.path());
        let ended = command.output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    }

    /// A mount at another path is used only if no hierarchy has a usual path, whatever the order of the lines.
    #[test]
    fn cgroup_mounts_at_other_paths_are_a_fallback() {
        let tops = |table: &str| {
            let found = from_tables(&table::parse(table.as_bytes()).unwrap(), MEMBERSHIP);
            found.into_iter().map(|hierarchy| hierarchy.top).collect::<Vec<_>>()
        };
        let foreign = "20 27 0:37 / /srv/groups rw - cgroup2 cgroup2 rw\n";
        let expected = tops(HYBRID);
        assert!(expected.iter().all(|top| top.starts_with(STANDARD_TOP)), "{expected:?}");
        let first = HYBRID.replacen("31 27", &format!("{foreign}31 27"), 1);
        let version_1_only: String =
            first.lines().filter(|line| !line.starts_with("41 ")).map(|line| format!("{line}\n")).collect();
        assert_eq!((tops(&first), tops(&format!("{HYBRID}{foreign}"))), (expected.clone(), expected.clone()));
        assert_eq!(tops(&version_1_only), expected[..expected.len() - 1]);
        let alone = format!("27 1 254:0 / / rw - ext4 /dev/vda rw\n{foreign}");
        assert_eq!(tops(&alone), [Path::new("/srv/groups")]);
    }

    #[test]
    fn hybrid_hierarchies_are_distinguished() {
        let mounts = table::parse(HYBRID.as_bytes()).unwrap();
        let found = from_tables(&mounts, MEMBERSHIP);
        let own: Vec<_> = found
            .iter()
            .filter(|h| h.controllers.iter().all(|name| !name.starts_with("name=")))
            .map(|h| (h.version, h.own.to_str().unwrap(), h.controllers.join("+")))
            .collect();
        assert_eq!(
            own,
            [
                (CgroupVersion::V1, "/sys/fs/cgroup/cpu,cpuacct", "cpu+cpuacct".to_owned()),
                (CgroupVersion::V1, "/sys/fs/cgroup/memory/inner", "memory".to_owned()),
                (CgroupVersion::V2, "/sys/fs/cgroup/unified/outer", String::new()),
            ]
        );
    }
}
