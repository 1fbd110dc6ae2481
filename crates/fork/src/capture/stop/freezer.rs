//! Detects whether a control group's freezer holds a process. A frozen task never reaches a ptrace stop (v1), or
//! freezes again before it executes anything (v2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use farfork_sys::mount::watch::MountWatch;
use farfork_sys::process;

/// Returns the control group that keeps `pid` frozen, if any. If a file cannot be read, the process counts as not frozen:
/// the attempt has its own time limit.
pub(in crate::capture) fn freezing_group(pid: i32) -> Option<PathBuf> {
    let memberships = process::read_text(&format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = mount_table().ok()?;
    memberships.lines().find_map(|line| {
        let (controllers, path) = parse_membership(line)?;
        let (is_frozen, filesystem): (fn(&Path) -> bool, _) = match controllers {
            "" => (is_frozen_v2, "cgroup2"),
            _ if controllers.split(',').any(|controller| controller == "freezer") => (is_frozen_v1, "cgroup"),
            _ => return None,
        };
        let group = group_directory(&mounts, filesystem, controllers, path)?;
        is_frozen(&group).then_some(group)
    })
}

/// Returns the mount table of this process. Reads it again only after a change: a machine may have thousands of mounts.
fn mount_table() -> io::Result<Arc<str>> {
    static MOUNT_TABLE: Mutex<Option<(MountWatch, Arc<str>)>> = Mutex::new(None);
    let mut known = MOUNT_TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((watch, mounts)) = &*known
        && !watch.has_changed()?
    {
        return Ok(mounts.clone());
    }
    let watch = MountWatch::start()?;
    let mounts: Arc<str> = fs::read_to_string("/proc/self/mountinfo")?.into();
    *known = Some((watch, mounts.clone()));
    Ok(mounts)
}

/// `HIERARCHY:CONTROLLERS:PATH`; cgroups(7).
fn parse_membership(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(':')?;
    rest.split_once(':')
}

/// True for freezing and frozen groups. The state of a group includes the states of its ancestors.
fn is_frozen_v1(group: &Path) -> bool {
    fs::read_to_string(group.join("freezer.state")).is_ok_and(|state| state.trim() != "THAWED")
}

fn is_frozen_v2(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.events")).is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

/// Finds the directory of a group: the root in mountinfo is a prefix of the group's path.
fn group_directory(mounts: &str, filesystem: &str, controllers: &str, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        if source.next() != Some(filesystem) {
            return None;
        }
        let options = source.nth(1)?;
        let carries_all = controllers.split(',').all(|name| name.is_empty() || options.split(',').any(|o| o == name));
        let mut fields = mount.split(' ').skip(3);
        let (root, directory) = (fields.next()?, fields.next()?);
        let below = if root == "/" { Some(path) } else { path.strip_prefix(root) }?;
        carries_all.then(|| Path::new(directory).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup/freezer rw,relatime shared:9 - cgroup cgroup rw,freezer
31 25 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let v1 = group_directory(MOUNTS, "cgroup", "freezer", "/a/b");
        assert_eq!(v1.unwrap(), Path::new("/sys/fs/cgroup/freezer/a/b"));
        let v2 = group_directory(MOUNTS, "cgroup2", "", "/");
        assert_eq!(v2.unwrap(), Path::new("/sys/fs/cgroup/unified/"));
        assert_eq!(group_directory(MOUNTS, "cgroup", "memory", "/"), None);
    }

    #[test]
    fn this_process_is_not_frozen() {
        assert_eq!(freezing_group(std::process::id() as i32), None);
    }
}
