//! The directories of benchmarks that a run started. `farfork bench` makes them outside of the temporary directory, and
//! removes them itself, unless it is killed together with its remover.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::cleanup::CLUSTER_FILE;
use super::run_directory;

/// The directories in which `farfork bench` makes its own: `SCRATCH_PARENT`, and the default of `bench volume --disk`.
const PARENTS: [&str; 2] = ["/run", "/var/tmp"];

/// Prefix of the names of directories of benchmarks: `SCRATCH_PREFIX`. The pid of the benchmark follows.
const PREFIX: &str = "farfork-bench-";

/// The path of a cluster in the directory of a benchmark: `CLUSTER_DIRECTORY`.
const CLUSTER_DIRECTORY: &str = "cluster";

/// Returns the directories of a worker or a run: of the benchmarks among the processes `killed`, and of clusters whose
/// control groups have `mark` in their paths. Does not access other files, which may be on mounts of another benchmark.
pub(super) fn of_run(mark: &str, killed: &BTreeSet<i32>) -> Vec<PathBuf> {
    select(|pid, path| killed.contains(&pid) || has_cluster_of(path, mark))
}

/// Returns the directories of one benchmark.
pub(super) fn of_benchmark(benchmark: i32) -> Vec<PathBuf> {
    select(|pid, _| pid == benchmark)
}

/// Returns the directories that `is_wanted` selects by the pid of their benchmark and by their path.
fn select(is_wanted: impl Fn(i32, &Path) -> bool) -> Vec<PathBuf> {
    let entries = PARENTS.into_iter().flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten());
    let marked = entries.filter_map(|entry| Some((owner_pid(entry.file_name().to_str()?)?, entry.path())));
    marked.filter(|(pid, path)| run_directory::is_own(path) && is_wanted(*pid, path)).map(|(_, path)| path).collect()
}

/// Whether the state file of the benchmark's cluster names control groups of the run.
fn has_cluster_of(directory: &Path, mark: &str) -> bool {
    let state = fs::read_to_string(directory.join(CLUSTER_DIRECTORY).join(CLUSTER_FILE));
    state.is_ok_and(|text| text.contains(&format!("/{mark}/")))
}

/// Returns the pid of the benchmark in the name of its directory.
fn owner_pid(name: &str) -> Option<i32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}
