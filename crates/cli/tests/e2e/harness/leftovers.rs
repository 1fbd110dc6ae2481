//! Finds what a run has left on the machine: processes, namespaces, mounts, control groups, files. It counts only
//! objects with the markers of the run, so that a user's nodes can run next to the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Names that only objects of one run have.
#[derive(Debug, Clone)]
pub(crate) struct RunMarkers {
    /// The run directory.
    pub(crate) run_dir: PathBuf,
    /// Prefix of the names of the run's network namespaces.
    pub(crate) network_prefix: String,
    /// Name of the run's control group in each hierarchy.
    pub(crate) group: String,
    /// The control groups of the run's nodes.
    pub(crate) cgroups: Vec<PathBuf>,
}

/// Maximum depth below `/sys/fs/cgroup` at which a cluster's control group is found.
const GROUP_DEPTH_MAX: usize = 6;

impl RunMarkers {
    /// Makes the markers of a cluster that a command started for itself.
    pub(crate) fn of_local_cluster(name: &str, run_dir: PathBuf) -> Self {
        let group = format!("farfork-{name}");
        let mut cgroups = Vec::new();
        find_groups(Path::new("/sys/fs/cgroup"), &group, GROUP_DEPTH_MAX, &mut cgroups);
        Self { run_dir, network_prefix: format!("ff-{name}-"), group, cgroups }
    }
}

/// Finds the control groups with this name below a directory, at most `depth` levels below it.
pub(crate) fn find_groups(directory: &Path, name: &str, depth: usize, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name() == *name {
            found.push(entry.path());
        } else if depth > 1 {
            find_groups(&entry.path(), name, depth - 1, found);
        }
    }
}

/// Finds everything that is left, one line per object.
pub(crate) fn find_leftovers(marks: &RunMarkers) -> Vec<String> {
    let mut found: Vec<String> =
        marked_processes(marks).map(|(pid, command)| format!("process {pid}: {command}")).collect();
    found.extend(marked_namespaces(marks));
    found.extend(marked_mounts(marks));
    found.extend(
        marks.cgroups.iter().filter(|group| group.exists()).map(|group| format!("control group {}", group.display())),
    );
    if marks.run_dir.exists() {
        found.push(format!("directory {}", marks.run_dir.display()));
    }
    found
}

/// Finds processes whose command line contains the run directory, or that are in the run's control groups: daemons,
/// pagers, containers, templates. Returns each with its command line.
pub(crate) fn marked_processes(marks: &RunMarkers) -> impl Iterator<Item = (i32, String)> {
    let (run_dir, group) = (marks.run_dir.to_string_lossy().into_owned(), format!("/{}/", marks.group));
    let all = names_in("/proc").into_iter().filter_map(|name| name.parse::<i32>().ok());
    let ours =
        move |pid: &i32| command_line(*pid).contains(&run_dir) || read_proc_file(*pid, "cgroup").contains(&group);
    all.filter(|pid| is_alive(*pid)).filter(ours).map(|pid| (pid, command_line(pid)))
}

fn marked_namespaces(marks: &RunMarkers) -> Vec<String> {
    let namespaces = names_in("/run/netns").into_iter().filter(|name| name.starts_with(&marks.network_prefix));
    namespaces.map(|name| format!("network namespace {name}")).collect()
}

fn marked_mounts(marks: &RunMarkers) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let run_dir = marks.run_dir.to_string_lossy().into_owned();
    let netns = format!("/run/netns/{}", marks.network_prefix);
    table
        .lines()
        .filter(|line| line.contains(&run_dir) || line.contains(&netns))
        .map(|line| format!("mount {line}"))
        .collect()
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(directory)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the command lines of processes that contain this text.
pub(crate) fn processes_with(text: &str) -> Vec<String> {
    let pids = names_in("/proc").into_iter().filter_map(|name| name.parse::<i32>().ok()).filter(|pid| is_alive(*pid));
    pids.map(command_line).filter(|command| command.contains(text)).collect()
}

/// Returns the command line of a process; empty if the process has ended.
pub(crate) fn command_line(pid: i32) -> String {
    read_proc_file(pid, "cmdline").replace('\0', " ").trim_end().to_owned()
}

/// As [`command_line`]. If that takes longer than `limit`, returns only the name of the program.
pub(crate) fn command_line_within(pid: i32, limit: Duration) -> String {
    let (sender, receiver) = mpsc::channel();
    // send fails if the receiver has timed out.
    let _ = thread::Builder::new().spawn(move || sender.send(command_line(pid)));
    receiver.recv_timeout(limit).unwrap_or_else(|_| read_proc_file(pid, "comm").trim_end().to_owned())
}

/// Returns a file of `/proc/PID`; empty if the process has ended.
fn read_proc_file(pid: i32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether a process runs. Zombies do not count: only their parents can reap them, and pid 1 may be slow to
/// reap orphans.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = read_proc_file(pid, "stat");
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}
