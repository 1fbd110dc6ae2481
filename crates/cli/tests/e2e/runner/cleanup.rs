//! Removes everything that killed workers left: processes, clusters, mounts, files, control groups, and changed settings of
//! the machine. It removes only objects with the run's name, or whose processes have ended, so that other runs and a
//! user's nodes are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_cluster::local::LocalCluster;
use farfork_sys::mount::table;
use farfork_sys::process_identity::ProcessIdentity;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use super::group_set::{GroupSet, KilledProcesses};
use super::{bench_directories, identity, machine_state, run_directory};
use crate::harness::{leftovers, print_line, wait};

/// Longest wait until killed processes have ended, before FUSE file systems are aborted.
const FIRST_KILL_LIMIT: Duration = Duration::from_secs(10);

/// Longest wait until killed processes have ended. The kernel frees their memory first.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for the command line of a process that does not end.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for the removal of one cluster whose processes have ended: its namespaces, groups and files.
const DOWN_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until another process has removed the remains of dead runs: as long as it may need for two clusters.
const REMOVAL_LOCK_LIMIT: Duration = Duration::from_secs(180);

/// The directory that is locked while the remains of dead runs are removed. Nothing else locks it, unlike `/run`.
const REMOVAL_LOCK: &str = "/sys/fs/cgroup";

/// Depth of state files of clusters below the directory of a run, if a test of the runner has started the runner again:
/// `WORKER/RUN/WORKER/SCRATCH/farfork-demo-PID/cluster/cluster.json`.
const CLUSTER_DEPTH_MAX: usize = 6;

/// The state file of a cluster.
pub(super) const CLUSTER_FILE: &str = "cluster.json";

/// Kills and removes everything of a worker or a run. The paths of its control groups contain `mark`. Returns the
/// objects that could not be removed.
pub(super) fn remove_all(groups: &GroupSet, directory: &Path, mark: &str) -> Vec<String> {
    let mut killed = groups.kill(FIRST_KILL_LIMIT);
    if !killed.left.is_empty() {
        abort_fuse_mounts(directory);
        let KilledProcesses { all, left } = groups.kill(KILL_LIMIT);
        killed.all.extend(all);
        killed.left = left;
    }
    let describe =
        |pid: &i32| format!("process {pid} does not end: {}", leftovers::command_line_within(*pid, DESCRIBE_LIMIT));
    let mut problems: Vec<String> = killed.left.iter().map(describe).collect();
    problems.extend(machine_state::restore());
    for benchmark in bench_directories::of_run(mark, &killed.all) {
        // The next benchmark locks the directory while it removes it.
        match lock_within(&benchmark, DOWN_LIMIT) {
            Some(_lock) => problems.extend(remove_directory(&benchmark)),
            None if benchmark.exists() => problems.push(format!("directory {}: it is locked", benchmark.display())),
            None => {}
        }
    }
    for further in further_runs(&killed.all) {
        problems.extend(remove_directory(&further));
        if !further.exists() {
            run_directory::remove_links_into(&further);
        }
    }
    problems.extend(remove_directory(directory));
    problems.extend(groups.remove().err().map(|error| format!("control group {error}")));
    // Without the link, a later run would not find groups that are left below the group of another login session.
    if !directory.exists() && !groups.exists() {
        run_directory::remove_links_into(directory);
    }
    problems
}

/// Returns the directories of runs whose supervisors were among the processes `killed`: a test of the runner starts runs with
/// other temporary directories. Their janitors were killed, too.
fn further_runs(killed: &BTreeSet<i32>) -> Vec<PathBuf> {
    let was_killed = |name: &String| identity::supervisor_of(name).is_some_and(|run| killed.contains(&run.pid));
    let temporary = env::temp_dir();
    run_directory::dead_names(&temporary)
        .filter(was_killed)
        .map(|name| run_directory::of_run(&name, &temporary))
        .collect()
}

/// Aborts the FUSE file systems in a directory. A process that waits for a file system that it serves itself cannot be killed.
fn abort_fuse_mounts(directory: &Path) {
    let mounts = table::read_thread_mounts().unwrap_or_default();
    for mount in mounts.iter().filter(|mount| mount.point.starts_with(directory) && is_fuse(mount)) {
        // Fails while the file system is in use, after it has been aborted.
        let _ = unmount(&mount.point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

fn is_fuse(mount: &table::Mount) -> bool {
    mount.filesystem.starts_with("fuse")
}

/// Removes everything that runs with dead supervisors left, and prints their names. `temporary` is the temporary directory.
pub(super) fn remove_dead_runs(temporary: &Path) -> io::Result<()> {
    if !dead_names(temporary)?.is_empty() {
        let waiting = || {
            print_line("another process removes what an earlier run left: waiting for it");
            lock_removal()
        };
        let Some(_lock) = lock_within(Path::new(REMOVAL_LOCK), Duration::ZERO).or_else(waiting) else {
            let seconds = REMOVAL_LOCK_LIMIT.as_secs();
            print_line(format_args!("it has not ended within {seconds} s: this run leaves the rest to it"));
            return Ok(());
        };
        // The process that held the lock may have removed all of them.
        for name in dead_names(temporary)? {
            print_line(format_args!("removing what an earlier run left: {name}"));
            let directory = run_directory::of_run(&name, temporary);
            for problem in remove_all(&GroupSet::find(&name)?, &directory, &name) {
                print_line(format_args!("cannot remove of an earlier run: {problem}"));
            }
        }
    }
    machine_state::restore().iter().for_each(print_line);
    Ok(())
}

fn dead_names(temporary: &Path) -> io::Result<BTreeSet<String>> {
    let of_groups = GroupSet::bases()?.into_iter().flat_map(|base| identity::dead_names_in(&base));
    Ok(of_groups.chain(run_directory::dead_names(temporary)).collect())
}

/// Takes the lock that must be held while the remains of a dead run are removed: its janitor and several later runs may
/// remove them. Returns `None` if another process holds the lock for long.
pub(super) fn lock_removal() -> Option<File> {
    lock_within(Path::new(REMOVAL_LOCK), REMOVAL_LOCK_LIMIT)
}

fn lock_within(directory: &Path, limit: Duration) -> Option<File> {
    let file = File::open(directory).ok()?;
    wait::poll_within(limit, || flock(&file, FlockOperation::NonBlockingLockExclusive).ok())?;
    Some(file)
}

/// Returns the run directories of the clusters of a worker or a run.
pub(super) fn clusters(directory: &Path, mark: &str) -> Vec<PathBuf> {
    let benchmarks = bench_directories::of_run(mark, &BTreeSet::new());
    benchmarks.iter().map(PathBuf::as_path).chain([directory]).flat_map(clusters_in).collect()
}

fn clusters_in(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find_clusters(directory, CLUSTER_DEPTH_MAX, &mut found);
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

/// Removes a directory with the clusters and mounts in it. All processes that use it have ended. Returns the problems, after
/// which the rest of the directory stays.
fn remove_directory(directory: &Path) -> Vec<String> {
    match directory.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        _ if run_directory::is_own(directory) => {}
        _ => return vec![format!("directory {}: another user can change it", directory.display())],
    }
    let outcome = remove_parts(directory).and_then(|()| match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(vec![format!("directory {}: {error}", directory.display())])
        }
        _ => Ok(()),
    });
    outcome.err().unwrap_or_default()
}

/// Removes the mounts and clusters in a directory, so that it has only files of its own file system.
fn remove_parts(directory: &Path) -> Result<(), Vec<String>> {
    // No file of a FUSE file system is accessed, because its server may not answer.
    detach_mounts(directory, is_fuse)?;
    let remove = |cluster: &PathBuf| {
        // The removal of a cluster deletes the directories of its nodes. A mount may contain the whole cluster.
        detach_mounts(cluster, |mount| mount.point != *cluster)?;
        match remove_cluster(cluster) {
            // The state file may be incomplete after a crash of the machine. Only files outlive that.
            Err(problem) if !is_of_earlier_boot(&cluster.join(CLUSTER_FILE)) => Err(vec![problem]),
            _ => Ok(()),
        }
    };
    let problems: Vec<String> =
        clusters_in(directory).iter().filter_map(|cluster| remove(cluster).err()).flatten().collect();
    if !problems.is_empty() {
        // The state files of the clusters stay: without them, nothing could remove the clusters later.
        return Err(problems);
    }
    detach_mounts(directory, |_| true)
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

/// Returns whether a file is older than the start of the machine.
fn is_of_earlier_boot(file: &Path) -> bool {
    let uptime = Duration::from_secs(rustix::system::sysinfo().uptime.unsigned_abs());
    let changed = file.metadata().and_then(|data| data.modified());
    changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > uptime))
}

/// Detaches the mounts in a directory that `is_wanted` selects, the last one first. Repeats that while mounts disappear: a
/// mount that was moved may hide a later one. Fails if one of them remains: then nothing in the directory may be deleted,
/// because files of the mounted file system would be deleted too.
fn detach_mounts(directory: &Path, is_wanted: impl Fn(&table::Mount) -> bool) -> Result<(), Vec<String>> {
    let is_inside = |mount: &table::Mount| mount.point.starts_with(directory) && is_wanted(mount);
    let detach_all = || loop {
        let mounts = table::read_thread_mounts()?;
        // A link in a mount could lead out of the directory, to the place of a mount that the first one hides.
        let unmount = |point: &Path| unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let detach = |mount: &table::Mount| Some((mount.point.clone(), unmount(&mount.point).err()?.into()));
        let failures: BTreeMap<PathBuf, io::Error> =
            mounts.iter().rev().filter(|mount| is_inside(mount)).filter_map(detach).collect();
        let remaining = table::read_thread_mounts()?;
        let count = |mounts: &[table::Mount]| mounts.iter().filter(|mount| is_inside(mount)).count();
        if failures.is_empty() || count(&remaining) >= count(&mounts) {
            return Ok((remaining, failures));
        }
    };
    let describe = |error: io::Error| vec![format!("mounts in {}: {error}", directory.display())];
    let (mounts, failures) = detach_all().map_err(describe)?;
    let remaining = mounts.iter().filter(|mount| is_inside(mount)).map(|mount| &mount.point);
    let problems: Vec<String> = remaining
        .map(|point| {
            let cause = failures.get(point).map_or_else(|| "still mounted".to_owned(), ToString::to_string);
            format!("mount {}: {cause}", point.display())
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns the control groups, directory and link of the run of a supervisor.
pub(crate) fn traces_of(supervisor: &ProcessIdentity) -> Vec<PathBuf> {
    let parents = GroupSet::bases().unwrap_or_default().into_iter().chain(run_directory::parents(&env::temp_dir()));
    let name = identity::name_of(supervisor);
    parents.map(|parent| parent.join(&name)).filter(|path| path.symlink_metadata().is_ok()).collect()
}
