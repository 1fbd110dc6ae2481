//! Benchmarks that are killed: their nodes end with them, or are removed by the next benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use super::{REMAINS_LIMIT, RUN_LIMIT, marks, run_benchmark};
use crate::harness::leftovers::{self, RunMarkers};
use crate::harness::{Farfork, scratch, wait};

/// A benchmark that runs until it is killed.
const ENDLESS: [&str; 6] = ["bench", "fork", "--mib", "1", "--runs", "10000"];

/// Starts a benchmark, and waits until its first node answers. Returns it with its markers.
fn start() -> (Child, RunMarkers) {
    let benchmark = Farfork::at(Path::new("/nonexistent")).spawn(&ENDLESS);
    let marks = wait::wait_until("the nodes of the benchmark run", RUN_LIMIT, || {
        let marks = marks(benchmark.id());
        let state = fs::read_to_string(marks.run_dir.join("cluster/cluster.json")).ok()?;
        (state.contains("\"complete\": true") && !marks.cgroups.is_empty()).then_some(marks)
    });
    (benchmark, marks)
}

fn end(mut benchmark: Child, signal: Signal) -> ExitStatus {
    kill_process(Pid::from_child(&benchmark), signal).expect("the benchmark runs");
    benchmark.wait().expect("it has ended")
}

fn require_nothing_left(marks: &RunMarkers) {
    let find = || leftovers::find_leftovers(marks);
    let is_clean = wait::poll_within(REMAINS_LIMIT, || find().is_empty().then_some(())).is_some();
    assert!(is_clean, "{:#?}", find());
}

/// Returns the process that removes the nodes of a benchmark.
fn find_remover(benchmark: u32) -> Option<i32> {
    let command = format!(" bench remover {benchmark}");
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid| leftovers::command_line(*pid).ends_with(&command))
}

pub(super) fn leaves_nothing() {
    for signal in [Signal::KILL, Signal::QUIT] {
        let (benchmark, marks) = start();
        assert!(!leftovers::find_leftovers(&marks).is_empty(), "the markers find the running benchmark");
        end(benchmark, signal);
        require_nothing_left(&marks);
    }
}

/// Writers wait for the volume of a benchmark when its nodes end, and the volume is mounted in another file system.
pub(super) fn leaves_no_volume() {
    let benchmark = Farfork::at(Path::new("/nonexistent")).spawn(&["bench", "volume", "latency"]);
    let directory = format!("/farfork-bench-{}-", benchmark.id());
    let processes = || leftovers::processes_with(&directory);
    wait::wait_until("the benchmark writes to its volume", RUN_LIMIT, || {
        processes().iter().any(|command| command.contains("file-writer")).then_some(())
    });
    end(benchmark, Signal::KILL);
    let find = || {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("a list of mounts");
        let mounts = mounts.lines().filter(|line| line.contains(&directory)).map(str::to_owned);
        processes().into_iter().chain(mounts).collect::<Vec<_>>()
    };
    let is_clean = wait::poll_within(REMAINS_LIMIT, || find().is_empty().then_some(())).is_some();
    assert!(is_clean, "{:#?}", find());
}

/// The process that removes the nodes is killed too, so only the next benchmark can remove them.
pub(super) fn next_removes_leftovers() {
    let (benchmark, marks) = start();
    let remover = find_remover(benchmark.id()).expect("it has started with the nodes");
    kill_process(Pid::from_raw(remover).expect("a pid"), Signal::KILL).expect("it runs");
    end(benchmark, Signal::KILL);
    assert!(marks.run_dir.exists() && !leftovers::find_leftovers(&marks).is_empty());
    run_benchmark("connect", &["--clients", "1", "--threads", "1", "--seconds", "0.1", "--runs", "1"]);
    require_nothing_left(&marks);
}

/// A suite runs each benchmark as a process, which ends with the suite.
pub(super) fn suite_ends_its_benchmark() {
    let directory = scratch::directory();
    let out = directory.path().join("results");
    let suite = Farfork::at(Path::new("/nonexistent")).spawn(&[
        "bench",
        "all",
        "--only",
        "tree",
        "--out",
        &out.to_string_lossy(),
    ]);
    let benchmark = wait::wait_until("the suite has started a benchmark", RUN_LIMIT, || find_child(suite.id()));
    let marks = wait::wait_until("the benchmark has files", RUN_LIMIT, || {
        let marks = marks(benchmark);
        marks.run_dir.exists().then_some(marks)
    });
    end(suite, Signal::KILL);
    require_nothing_left(&marks);
    let program = PathBuf::from(format!("/proc/{benchmark}"));
    wait::wait_until("the benchmark has ended", REMAINS_LIMIT, || (!program.exists()).then_some(()));
}

/// Returns a child of a process that runs a benchmark.
fn find_child(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    let child = pids.find(|pid| leftovers::command_line(*pid).contains(" bench tree"))?;
    Some(child.cast_unsigned())
}
