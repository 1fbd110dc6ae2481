//! Removes everything that killed workers left: processes, clusters, mounts, files, control groups. It removes only
//! objects with the run's name, so that other runs and a user's nodes are not affected.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_cluster::local::LocalCluster;
use farfork_sys::mount::{self, table};

use super::group_set::GroupSet;
use super::identity;
use crate::harness::leftovers;

/// Longest wait until killed processes have ended. The kernel frees their memory first.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for the removal of one cluster whose processes have ended: its namespaces, groups and files.
const DOWN_LIMIT: Duration = Duration::from_secs(60);

/// Depth of state files of clusters below a worker's directory: `SCRATCH/run/cluster.json`.
const CLUSTER_DEPTH_MAX: usize = 3;

/// The state file of a cluster.
const CLUSTER_FILE: &str = "cluster.json";

/// The directory in which `farfork bench` makes its clusters.
const BENCH_PARENT: &str = "/run";

/// Kills and removes everything of a worker or a run. The paths of its control groups contain `mark`. Returns the
/// objects that could not be removed.
pub(super) fn remove_all(groups: &GroupSet, directory: &Path, mark: &str) -> Vec<String> {
    let left = groups.kill(KILL_LIMIT);
    let mut problems: Vec<String> =
        left.iter().map(|pid| format!("process {pid} does not end: {}", leftovers::command_line(*pid))).collect();
    for cluster in clusters(directory, mark) {
        problems.extend(remove_cluster(&cluster).err());
        // A killed benchmark did not remove its run directory. A cluster in a worker's directory is removed with that
        // directory.
        if cluster.starts_with(BENCH_PARENT) {
            let _ = fs::remove_dir_all(&cluster);
        }
    }
    problems.extend(detach_mounts(directory));
    problems.extend(groups.remove().err().map(|error| format!("control group {error}")));
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            problems.push(format!("directory {}: {error}", directory.display()));
        }
        _ => {}
    }
    problems
}

/// Removes everything that runs with dead supervisors left, and prints their names.
pub(super) fn remove_dead_runs(directories: &Path) -> io::Result<()> {
    let mut names: BTreeSet<String> = identity::dead_names_in(directories).into_iter().collect();
    names.extend(GroupSet::bases()?.iter().flat_map(|base| identity::dead_names_in(base)));
    for name in names {
        println!("removing what an earlier run left: {name}");
        for problem in remove_all(&GroupSet::named(&name)?, &directories.join(&name), &name) {
            println!("cannot remove of an earlier run: {problem}");
        }
    }
    Ok(())
}

/// Returns the run directories of the clusters of a worker or a run.
pub(super) fn clusters(directory: &Path, mark: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find_clusters(directory, CLUSTER_DEPTH_MAX, &mut found);
    let elsewhere = fs::read_dir(BENCH_PARENT).into_iter().flatten().flatten().map(|entry| entry.path());
    // The state file of a cluster contains the paths of its control groups, which are below the run's.
    let is_of_run = |cluster: &PathBuf| {
        fs::read_to_string(cluster.join(CLUSTER_FILE)).is_ok_and(|text| text.contains(&format!("/{mark}/")))
    };
    found.extend(elsewhere.filter(is_of_run));
    found
}

fn find_clusters(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if directory.join(CLUSTER_FILE).exists() {
        found.push(directory.to_owned());
    } else if depth > 0 {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.for_each(|entry| find_clusters(&entry.path(), depth - 1, found));
    }
}

/// Calls the code of `farfork down` in a thread: it waits for `ip` and for locks. The thread is abandoned after a time
/// limit.
fn remove_cluster(run_dir: &Path) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let cluster = run_dir.to_owned();
    thread::spawn(move || {
        let outcome = LocalCluster::load(&cluster).and_then(LocalCluster::down);
        // send fails if the receiver has timed out.
        let _ = sender.send(outcome.map_err(|error| error.to_string()));
    });
    let outcome = receiver.recv_timeout(DOWN_LIMIT);
    let outcome = outcome.unwrap_or_else(|_| Err(format!("not removed within {} s", DOWN_LIMIT.as_secs())));
    outcome.map_err(|error| format!("cluster {}: {error}", run_dir.display()))
}

fn detach_mounts(directory: &Path) -> Vec<String> {
    let mounts = table::read_thread_mounts().unwrap_or_default();
    let points = mounts.iter().rev().map(|mount| &mount.point).filter(|point| point.starts_with(directory));
    let failures = points.filter_map(|point| Some((point, mount::detach(point).err()?)));
    failures.map(|(point, error)| format!("mount {}: {error}", point.display())).collect()
}

/// Returns the control groups and directories of the runs of a supervisor.
pub(crate) fn traces_of(supervisor: u32) -> Vec<PathBuf> {
    let parents = GroupSet::bases().unwrap_or_default().into_iter().chain([std::env::temp_dir()]);
    parents.flat_map(|parent| identity::entries_of(supervisor, &parent)).collect()
}
