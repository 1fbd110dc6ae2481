//! Counts a node's resources before and after a long run. A higher count after the run is a leak. `observer` counts on the
//! machine of the node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use farfork_cluster::local::LocalNode;
use farfork_sys::cgroup;
use farfork_sys::process::{SharedResource, read_text, share_resource, thread_count};
use serde::{Deserialize, Serialize};

/// Additional descriptors that a node's processes may have, because connections open and close on their own.
const DESCRIPTORS_SLACK: u64 = 4;

/// Additional threads that a node's processes may have. Threads for blocking work remain for some time after the work.
const THREADS_SLACK: u64 = 8;

/// Memory growth of a node's processes that is not a leak, in KiB: reserves of the allocator, and statistics of ended
/// children.
const MEMORY_SLACK_KIB: u64 = 32 << 10;

/// The kinds of resources, each with the tolerated increase.
const KINDS: [(&str, u64); 8] = [
    ("processes", 0),
    ("namespaces", 0),
    ("control groups", 0),
    ("mounts", 0),
    ("files", 0),
    ("descriptors", DESCRIPTORS_SLACK),
    ("threads", THREADS_SLACK),
    ("KiB of memory", MEMORY_SLACK_KIB),
];

/// The count of one kind of resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ResourceCount {
    /// The name of the node.
    pub(crate) node: String,
    /// The kind of resource.
    pub(crate) of: &'static str,
    /// The count at the start.
    pub(crate) before: u64,
    /// The count at the end.
    pub(crate) after: u64,
    /// The tolerated increase.
    pub(crate) slack: u64,
}

impl ResourceCount {
    /// Whether the increase exceeds the tolerance.
    pub(crate) fn is_leak(&self) -> bool {
        self.after > self.before + self.slack
    }

    /// The text of the failure, if there is a leak.
    pub(crate) fn leak_text(&self) -> Option<String> {
        let Self { node, of, before, after, .. } = self;
        self.is_leak().then(|| format!("{node} has {after} {of}, and had {before} at the start"))
    }
}

/// The counts of one node: a count of each of the [`KINDS`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ResourceCounts([u64; KINDS.len()]);

impl ResourceCounts {
    /// Whether the counts without a tolerance are equal.
    pub(super) fn is_steady(&self, earlier: &Self) -> bool {
        KINDS.iter().zip(self.0.iter().zip(&earlier.0)).all(|((_, slack), (now, before))| *slack > 0 || now == before)
    }

    /// Pairs the counts of each kind. `node` is the name of the node.
    pub(super) fn compare_with(&self, after: &Self, node: &str) -> Vec<ResourceCount> {
        let pairs = KINDS.into_iter().zip(self.0.into_iter().zip(after.0));
        let count = |((of, slack), (before, after))| ResourceCount { node: node.to_owned(), of, before, after, slack };
        pairs.map(count).collect()
    }

    /// Counts the resources of a node of this machine, in the order of [`KINDS`].
    pub(super) fn of_node(node: &LocalNode) -> Self {
        let servers: Vec<i32> = node.pid().into_iter().chain(node.pager_pids()).collect();
        let sum = |of: fn(i32) -> u64, servers: &[i32]| servers.iter().map(|pid| of(*pid)).sum();
        let (tables, memories) =
            (distinct_processes(&servers, SharedResource::Files), distinct_processes(&servers, SharedResource::Memory));
        let groups: Vec<_> = node.cgroups.iter().flat_map(|group| cgroup::subtree(group).unwrap_or_default()).collect();
        let pids: BTreeSet<i32> =
            groups.iter().flat_map(|group| cgroup::processes(group).unwrap_or_default()).collect();
        let spaces: BTreeSet<String> = pids.iter().flat_map(|pid| namespace_links(*pid)).collect();
        Self([
            pids.len() as u64,
            spaces.len() as u64,
            groups.len() as u64,
            count_mounts(node),
            count_files_below(&node.run_dir),
            sum(count_descriptors, &tables),
            sum(|pid| thread_count(pid).unwrap_or_default() as u64, &servers),
            sum(memory_kib, &memories),
        ])
    }
}

/// Returns one process of each group that shares `table`, so that nothing is counted twice. Tracers share the daemon's
/// memory and files, the keeper its pager's files.
fn distinct_processes(pids: &[i32], table: SharedResource) -> Vec<i32> {
    let mut distinct: Vec<i32> = Vec::new();
    for pid in pids {
        if !distinct.iter().any(|known| share_resource(*known, *pid, table).unwrap_or(false)) {
            distinct.push(*pid);
        }
    }
    distinct
}

fn count_descriptors(pid: i32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// Counts the mounts in the daemon's mount namespace that its node has created. Other mounts of the machine may change.
fn count_mounts(node: &LocalNode) -> u64 {
    let table =
        node.pid().and_then(|pid| fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()).unwrap_or_default();
    let (run_dir, netns) = (node.run_dir.to_string_lossy(), format!("/{} ", node.netns));
    table.lines().filter(|line| line.contains(&*run_dir) || line.contains(&netns)).count() as u64
}

/// Identifiers of a process's namespaces.
fn namespace_links(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/ns")).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned())).collect()
}

/// Returns the resident memory of a process that is not backed by a file on disk.
fn memory_kib(pid: i32) -> u64 {
    let status = read_text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        ["RssAnon", "RssShmem"].contains(&name).then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok())?
    };
    status.lines().filter_map(of).sum::<u64>()
}

/// Counts files and directories, except logs, which grow, and the list of members, which appears with the first peer.
fn count_files_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_excluded =
        |path: &Path| path.extension().is_some_and(|extension| extension == "log") || path.ends_with("members.json");
    let kept = entries.filter(|path| !is_excluded(path));
    kept.map(|path| 1 + if path.is_dir() && !path.is_symlink() { count_files_below(&path) } else { 0 }).sum()
}

#[cfg(test)]
mod tests {
    use super::{ResourceCounts, SharedResource};

    #[test]
    fn a_higher_count_is_a_leak() {
        let is_leak = |descriptors: [u64; 2]| {
            let [before, after] = descriptors.map(|count| ResourceCounts([3, 0, 0, 0, 0, count, 0, 0]));
            let counts = before.compare_with(&after, "n1");
            assert!(counts.iter().all(|count| count.of == "descriptors" || !count.is_leak()));
            counts[5].is_leak()
        };
        assert_eq!([is_leak([3, 2]), is_leak([3, 7]), is_leak([3, 8])], [false, false, true]);
    }

    #[test]
    fn sharing_processes_are_counted_once() {
        let own = std::process::id().cast_signed();
        let parent = std::os::unix::process::parent_id().cast_signed();
        assert_eq!(super::distinct_processes(&[own, parent, own], SharedResource::Memory), [own, parent]);
        let living = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(super::distinct_processes(&[own, parent, living], SharedResource::Files), [own, parent]);
    }

    #[test]
    fn this_process_has_memory_descriptors_and_namespaces() {
        let pid = std::process::id().cast_signed();
        assert!(
            super::memory_kib(pid) > 0 && super::count_descriptors(pid) > 2 && super::namespace_links(pid).len() > 5
        );
    }
}
