//! Removes what ended benchmarks have left: scratch directories, with the nodes and mounts in them, and control groups.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_cluster::local::{LocalCluster, LocalError};
use farfork_sys::cgroup;
use farfork_sys::mount::{self, table};
use farfork_sys::process::ProcStat;
use rustix::fs::FlockOperation;

use super::{CLUSTER_DIRECTORY, MOUNT_DIRECTORY, SCRATCH_PREFIX, lock};
use crate::baseline;
use crate::error::BenchError;

/// Time limit for killed processes to leave a control group.
const GROUP_REMOVE_LIMIT: Duration = Duration::from_secs(5);

/// Removes the scratch directories in `parent`, and the control groups, of benchmarks that have ended. Reports failures on
/// standard error, because they do not concern the present benchmark.
pub(super) fn remove_ended(parent: &Path) {
    for path in marked_entries(parent, is_ended) {
        // Another process removes the directory, or a benchmark in another pid namespace uses it.
        if let Some(_lock) = lock(&path, FlockOperation::NonBlockingLockExclusive)
            && is_own_directory(&path)
        {
            report_failure(&path, remove_directory(&path));
        }
    }
    remove_groups(is_ended);
}

/// Removes the directories of the benchmark `pid`, which has ended, and its control groups.
pub(super) fn remove_of_benchmark(pid: i32, directories: &[PathBuf]) {
    for path in directories {
        // Waits for another benchmark that removes the directory.
        if let Some(_lock) = lock(path, FlockOperation::LockExclusive) {
            report_failure(path, remove_directory(path));
        }
    }
    remove_groups(|owner| owner == pid);
}

fn report_failure(path: &Path, removed: Result<(), BenchError>) {
    if let Err(error) = removed {
        eprintln!("farfork: a benchmark that has ended left {}, which cannot be removed: {error}", path.display());
    }
}

/// Removes a scratch directory with everything in it.
fn remove_directory(directory: &Path) -> Result<(), BenchError> {
    // Volumes first: no file in them is accessed, because their nodes may not answer.
    detach_mounts(directory, table::Mount::is_volume)?;
    let mounted = directory.join(MOUNT_DIRECTORY);
    for nested in [directory, &mounted].into_iter().flat_map(|parent| marked_entries(parent, |_| true)) {
        remove_directory(&nested)?;
    }
    match LocalCluster::load(&directory.join(CLUSTER_DIRECTORY)) {
        Ok(cluster) => cluster.down()?,
        Err(LocalError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    detach_mounts(directory, |_| true)?;
    fs::remove_dir_all(directory).map_err(file_error(directory))
}

/// Detaches the mounts in a directory that `is_wanted` selects, the last one first.
fn detach_mounts(directory: &Path, is_wanted: impl Fn(&table::Mount) -> bool) -> Result<(), BenchError> {
    let mounts = table::read_own_mounts().map_err(file_error(directory))?;
    let mut inside = mounts.iter().rev().filter(|mount| mount.point.starts_with(directory) && is_wanted(mount));
    inside.try_for_each(|mount| mount::detach(&mount.point).map_err(file_error(&mount.point)))
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> BenchError {
    move |cause| BenchError::File { path: path.to_owned(), cause }
}

/// Removes the control groups of floors of the benchmarks that `is_wanted` selects by their pids, and kills all processes
/// in them. The groups of nodes have the same prefix, but are removed with the nodes.
fn remove_groups(is_wanted: impl Fn(i32) -> bool) {
    let Ok(Some(base)) = baseline::unified_cgroup_base() else { return };
    let is_floor = |group: &PathBuf| {
        let name = group.to_string_lossy();
        baseline::FLOOR_GROUPS.iter().any(|floor| name.ends_with(&format!("-{floor}")))
    };
    for group in marked_entries(&base, is_wanted).into_iter().filter(is_floor) {
        report_failure(&group, remove_group(&group).map_err(file_error(&group)));
    }
}

/// Kills all processes in a control group, and removes it.
pub(crate) fn remove_group(group: &Path) -> io::Result<()> {
    // Linux before 5.14 lacks `cgroup.kill`, so an error is ignored.
    let _ = fs::write(group.join("cgroup.kill"), "1");
    cgroup::subtree(group)?.iter().try_for_each(|group| cgroup::remove(group, GROUP_REMOVE_LIMIT))
}

/// Lists the directories in `parent` whose names have the prefix and the pid of a benchmark that `is_wanted` selects.
fn marked_entries(parent: &Path, is_wanted: impl Fn(i32) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let is_marked = |name: &str| owner_pid(name).is_some_and(&is_wanted);
    let marked = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_marked));
    // The type is a part of the entry, so no file is accessed.
    marked.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Returns the pid of the benchmark in the name of a directory or control group.
fn owner_pid(name: &str) -> Option<i32> {
    let (pid, _) = name.strip_prefix(SCRATCH_PREFIX)?.split_once('-')?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

/// Whether a process has ended. A zombie has ended too: only its parent can reap it.
fn is_ended(pid: i32) -> bool {
    ProcStat::read(pid).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
}

/// Whether only this user can have changed a directory. Another user could name any control group in its files.
fn is_own_directory(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Starts a process, and waits until it has ended. Its pid is not reused until it is reaped.
    fn make_zombie() -> std::process::Child {
        let child = std::process::Command::new("true").spawn().unwrap();
        let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), only_look).unwrap();
        child
    }

    #[test]
    fn the_name_of_a_directory_has_its_benchmark() {
        assert_eq!(owner_pid("farfork-bench-812-a1-b2"), Some(812));
        for name in ["farfork-bench-812", "farfork-bench--a", "farfork-bench-x-a", "farfork-812-a", "farfork-bench-0-a"]
        {
            assert_eq!(owner_pid(name), None, "{name}");
        }
    }

    #[test]
    fn a_zombie_has_ended() {
        assert!(!is_ended(std::process::id().cast_signed()));
        let mut zombie = make_zombie();
        assert!(is_ended(zombie.id().cast_signed()));
        zombie.wait().unwrap();
        // The kernel may have reused the pid of the zombie. No process ever has this one.
        assert!(is_ended(i32::MAX));
    }

    #[test]
    fn only_directories_of_ended_benchmarks_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let mut zombie = make_zombie();
        let ended = zombie.id();
        let make = |pid: u32, mode: u32, name: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = parent.path().join(format!("{SCRATCH_PREFIX}{pid}-{name}"));
            fs::create_dir_all(path.join("programs")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let [running, left, open, locked] =
            [(std::process::id(), 0o700, "a"), (ended, 0o700, "b"), (ended, 0o777, "c"), (ended, 0o700, "d")]
                .map(|(pid, mode, name)| make(pid, mode, name));
        let held = lock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        remove_ended(parent.path());
        assert_eq!([&running, &left, &open, &locked].map(|path| path.exists()), [true, false, true, true]);
        // Unlocks explicitly: a process that another test has just forked may still have the descriptor.
        rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
        remove_ended(parent.path());
        assert!(!locked.exists());
        zombie.wait().unwrap();
    }
}
