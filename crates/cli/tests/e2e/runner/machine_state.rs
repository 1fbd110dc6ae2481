//! The state of the machine that killed tests have changed, outside of the run's control groups and directories. It includes
//! the number of huge pages, shared memory, and control groups and networks of clusters whose directory was removed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_sys::cgroup::{self, hierarchy};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use super::group_set::GroupSet;
use crate::harness::{cluster, leftovers};

/// The machine's number of huge pages. A program that changes the number holds a lock on this file until it has restored
/// it (`tests/resources/huge_setting.h`).
pub(crate) const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// The number before the change. The program removes this file when it has restored the number.
pub(crate) const HUGE_PAGES_BEFORE: &str = "/run/farfork-tests-nr_hugepages";

/// The directory of POSIX shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Prefixes of the names of tests' shared memory. The pid of the process that removes it follows.
pub(crate) const SHARED_MEMORY_PREFIXES: [&str; 2] = ["farfork-test-", "farfork-private-"];

/// The directory of named network namespaces.
const NETWORKS: &str = "/run/netns";

/// The directory that is locked while network namespaces are made or removed.
const NETWORKS_LOCK: &str = "/run";

/// Time after which a cluster has made its control groups. It makes its network namespaces first.
const NETWORK_AGE_MIN: Duration = Duration::from_secs(60);

/// Longest wait until the last process of a group has left it.
const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// Restores the state that tests have changed whose processes have ended. Returns the problems.
pub(super) fn restore() -> Vec<String> {
    let pages = restore_huge_pages().err().map(|error| format!("{HUGE_PAGES} is not restored: {error}"));
    remove_shared_memory();
    remove_cluster_groups();
    remove_cluster_networks();
    pages.into_iter().collect()
}

/// Restores the number of huge pages, unless the program that has changed it still runs.
fn restore_huge_pages() -> io::Result<()> {
    if !Path::new(HUGE_PAGES_BEFORE).exists() {
        return Ok(());
    }
    let mut setting = File::options().write(true).open(HUGE_PAGES)?;
    if flock(&setting, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let before = match fs::read_to_string(HUGE_PAGES_BEFORE) {
        // The program has restored the number and ended, after this function had found the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        before => before?,
    };
    // The file is empty if the program was killed before it changed the number.
    if !before.trim().is_empty() {
        setting.write_all(before.trim().as_bytes())?;
    }
    fs::remove_file(HUGE_PAGES_BEFORE)
}

fn remove_shared_memory() {
    for entry in fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(owner_pid);
        if pid.is_some_and(|pid| !leftovers::is_alive(pid)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the empty groups of clusters whose worker has ended. A killed `cargo xtask test-fresh` leaves them in hierarchies
/// without a group of the run, because the state files of the clusters vanish with the private `/run`.
fn remove_cluster_groups() {
    for hierarchy in hierarchy::mounted_hierarchies().unwrap_or_default() {
        for entry in fs::read_dir(&hierarchy.top).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let worker = name.to_str().and_then(cluster::worker_of_group);
            let groups = cgroup::subtree(&entry.path()).unwrap_or_default();
            // A worker in another pid namespace looks dead, but its cluster has processes.
            let is_empty = |group: &PathBuf| cgroup::processes(group).is_ok_and(|members| members.is_empty());
            if worker.is_some_and(|pid| !leftovers::is_alive(pid)) && groups.iter().all(is_empty) {
                groups.iter().for_each(|group| _ = cgroup::remove(group, LEAVE_LIMIT));
            }
        }
    }
}

/// Removes the network namespaces of clusters whose worker has ended, and which have no control groups any more. The state file
/// of such a cluster was lost.
fn remove_cluster_networks() {
    let entries = fs::read_dir(NETWORKS).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_of_ended_cluster)) {
        let changed = entry.metadata().and_then(|data| data.modified());
        let is_old = changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > NETWORK_AGE_MIN));
        // Held until the next entry. If another process holds it, a later run removes the namespace.
        let Ok(lock) = File::open(NETWORKS_LOCK) else { return };
        if is_old && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Fails if the namespace is not mounted in this mount namespace.
            let _ = unmount(entry.path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns whether the cluster of a network namespace with this name has ended. A worker in another pid namespace looks dead, but
/// its cluster has control groups.
fn is_of_ended_cluster(network: &str) -> bool {
    let cluster = network.strip_prefix("ff-").and_then(|rest| rest.rsplit_once('-'));
    let Some(group) = cluster.map(|(cluster, _node)| format!("farfork-{cluster}")) else { return false };
    let has_ended = cluster::worker_of_group(&group).is_some_and(|pid| !leftovers::is_alive(pid));
    has_ended && GroupSet::find(&group).is_ok_and(|groups| !groups.exists())
}

fn owner_pid(name: &str) -> Option<i32> {
    SHARED_MEMORY_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?.parse().ok()
}
