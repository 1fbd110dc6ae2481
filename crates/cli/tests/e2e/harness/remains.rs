//! What a run has left on the machine: processes, namespaces, network links, mounts, control groups, files. Only what
//! carries the run's own marks counts, so that a user's nodes may run beside the tests.

use std::fs;
use std::path::{Path, PathBuf};

use super::programs;

/// What tells one run's traces from everything else on the machine.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    /// The run's directory.
    pub(crate) run_dir: PathBuf,
    /// What the names of its network namespaces and links begin with.
    pub(crate) network_prefix: String,
    /// Its control groups, as its nodes wrote them down.
    pub(crate) cgroups: Vec<PathBuf>,
}

/// All that is left, each as one line; empty when nothing is.
pub(crate) fn find(marks: &Marks) -> Vec<String> {
    let mut found = processes(marks);
    found.extend(network(marks));
    found.extend(mounts(marks));
    found.extend(
        marks.cgroups.iter().filter(|group| group.exists()).map(|group| format!("control group {}", group.display())),
    );
    if marks.run_dir.exists() {
        found.push(format!("directory {}", marks.run_dir.display()));
    }
    found
}

/// Processes that run the binary under test or a test program, or name the run's directory. This process is none.
fn processes(marks: &Marks) -> Vec<String> {
    let run_dir = marks.run_dir.to_string_lossy();
    let ours = |pid: &i32| {
        let (command, executable) = (command_line(*pid), executable(*pid));
        executable.contains(super::BINARY)
            || command.contains(&*run_dir)
            || programs::owns_command_line(&command)
            || programs::owns_command_line(&executable)
    };
    let own = std::process::id().cast_signed();
    let all = names_in("/proc").into_iter().filter_map(|name| name.parse().ok());
    all.filter(|pid| *pid != own && is_alive(*pid))
        .filter(ours)
        .map(|pid| format!("process {pid}: {}", command_line(pid)))
        .collect()
}

fn network(marks: &Marks) -> Vec<String> {
    let begins = |name: &String| name.starts_with(&marks.network_prefix);
    let links = names_in("/sys/class/net").into_iter().filter(begins).map(|name| format!("network link {name}"));
    let namespaces = names_in("/run/netns").into_iter().filter(begins).map(|name| format!("network namespace {name}"));
    links.chain(namespaces).collect()
}

fn mounts(marks: &Marks) -> Vec<String> {
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

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

fn executable(pid: i32) -> String {
    fs::read_link(format!("/proc/{pid}/exe")).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Neither a zombie nor gone: a zombie is its parent's to reap, and pid 1 takes its time with orphans.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}
