//! Benchmarks that are killed: their nodes end with them, or are removed by the next benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{REMAINS_LIMIT, RUN_LIMIT, marks, run_benchmark};
use crate::harness::leftovers::{self, RunMarkers};
use crate::harness::{Farfork, programs, scratch, wait};

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
    let find = || find_child(suite.id(), " bench tree");
    let benchmark = wait::wait_until("the suite has started a benchmark", RUN_LIMIT, find);
    let marks = wait::wait_until("the benchmark has files", RUN_LIMIT, || {
        let marks = marks(benchmark);
        marks.run_dir.exists().then_some(marks)
    });
    end(suite, Signal::KILL);
    require_nothing_left(&marks);
    let program = PathBuf::from(format!("/proc/{benchmark}"));
    wait::wait_until("the benchmark has ended", REMAINS_LIMIT, || (!program.exists()).then_some(()));
}

/// A daemon ends while clients fork. The stress test says so in its document.
pub(super) fn stress_reports_a_daemon() {
    // Much longer than the time until the daemon is killed. The clients end with the daemon.
    let arguments = ["--json", "stress", "fork", "--nodes", "1", "--clients", "1", "--seconds", "120"];
    let test = Farfork::at(Path::new("/nonexistent")).spawn(&arguments);
    wait::wait_until("a client runs", RUN_LIMIT, || find_child(test.id(), " bench process forker"));
    let marks = marks(test.id());
    let is_daemon = |(_, command): &(i32, String)| command.contains(" node --name n1 ");
    let (daemon, _) = leftovers::marked_processes(&marks).find(is_daemon).expect("the daemon runs");
    kill_process(Pid::from_raw(daemon).expect("a pid"), Signal::KILL).expect("it runs");
    let ended = wait::wait_with_output(test, "farfork stress fork", RUN_LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stderr, ended.stdout);
    let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let faults = document["outcome"]["faults"].to_string();
    assert!(faults.contains("a client: ") && faults.contains("after the clients: "), "{document}");
    assert_eq!(document["passed"], false, "{document}");
    require_nothing_left(&marks);
}

/// The second call in a child takes long, and shows itself by the name of its process.
const SLOW: &str = "\
import os, time
calls = 0

def handler(payload):
    global calls
    calls += 1
    if os.path.exists('/run/farfork/payload') and calls > 3:
        with open('/proc/self/comm', 'w') as name:
            name.write('slow-call')
        time.sleep(600)
";

/// An interrupt ends a benchmark that waits for a long call of a child.
pub(super) fn interrupt_ends_a_call() {
    let own = scratch::directory();
    let file = own.path().join("slow.py");
    fs::write(&file, SLOW).expect("a small file");
    let (file, python) = (file.display().to_string(), programs::python().display().to_string());
    let arguments = ["bench", "warm-start", &file, "--python", &python, "--timeout", "1h"];
    let benchmark = Farfork::at(Path::new("/nonexistent")).spawn(&arguments);
    let is_slow =
        |path: PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == "slow-call");
    let find = || fs::read_dir("/proc").ok()?.flatten().any(|entry| is_slow(entry.path())).then_some(());
    wait::wait_until("a child is in its second call", RUN_LIMIT, find);
    let marks = marks(benchmark.id());
    kill_process(Pid::from_child(&benchmark), Signal::INT).expect("the benchmark runs");
    let ended = wait::wait_with_output(benchmark, "farfork bench warm-start", RUN_LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stderr, ended.stdout);
    assert!(ended.stderr.contains("it was interrupted"), "{}", ended.stderr);
    require_nothing_left(&marks);
}

/// Returns a child of a process, whose command line contains `command`.
fn find_child(parent: u32, command: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    let child = pids.find(|pid| leftovers::command_line(*pid).contains(command))?;
    Some(child.cast_unsigned())
}
