//! `farfork demo` and `farfork demo agent` end, report what they measured, and leave nothing. The values are not
//! tested.

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::leftovers::{self, RunMarkers};
use crate::harness::scratch::TestDirectory;
use crate::harness::{Farfork, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("every_query_is_answered_on_other_nodes", index),
    Test::alone("an_agent_is_branched_and_the_best_branch_kept", agent),
    Test::alone("progress_is_a_line_for_each_step_in_a_log", progress_in_log),
    Test::alone("an_interrupted_demo_leaves_nothing", interrupted),
    Test::alone("the_end_of_the_parent_is_reported", parent_killed),
];

/// Longest run of a demo with a small index or with few branches, on a busy machine.
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// Longest wait until killed processes disappear from `/proc`.
const REMAINS_LIMIT: Duration = Duration::from_secs(60);

/// The arguments of a demo with a small index.
const SMALL_INDEX: [&str; 3] = ["demo", "--documents", "1000"];

/// A running demo, with temporary files in a directory of its own.
struct RunningDemo {
    process: Child,
    temporary: TestDirectory,
}

impl RunningDemo {
    fn start(arguments: &[&str]) -> Self {
        let temporary = scratch::directory();
        let mut command = Farfork::at(Path::new("/nonexistent")).command(arguments);
        command.env("TMPDIR", temporary.path()).env("FARFORK_PYTHON", programs::python());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { process: command.spawn().expect("the binary"), temporary }
    }

    /// Waits until the demo has ended and nothing is left of it.
    fn wait(self) -> wait::CommandOutput {
        let Self { process, temporary } = self;
        let pid = process.id();
        let ended = wait::wait_with_output(process, "farfork demo", RUN_LIMIT);
        let marks = marks(pid, &temporary);
        let is_clean = || leftovers::find_leftovers(&marks).is_empty().then_some(());
        wait::wait_until("nothing is left of the demo", REMAINS_LIMIT, is_clean);
        ended
    }
}

/// The markers by which leftovers of a demo's nodes are found.
fn marks(pid: u32, temporary: &TestDirectory) -> RunMarkers {
    let name = format!("demo-{pid}");
    let run_dir = temporary.path().join(format!("farfork-{name}"));
    RunMarkers::of_local_cluster(&name, run_dir)
}

fn run(arguments: &[&str]) -> Value {
    let ended = RunningDemo::start(&[arguments, &["--json"]].concat()).wait();
    ended.require_success();
    serde_json::from_str(&ended.stdout).expect("JSON")
}

fn index() {
    let document = run(&SMALL_INDEX);
    let children = document["farfork"]["children"].as_array().expect("a list");
    assert_eq!(children.len(), 16, "{document}");
    for node in ["n2", "n3"] {
        assert_eq!(children.iter().filter(|child| child["node"] == node).count(), 8, "{document}");
    }
    for pointer in ["/farfork/first_fork", "/farfork/second_fork", "/pickle", "/local_fork"] {
        let times = document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}: {document}"));
        let (first, last) = (times["first_us"].as_u64(), times["last_us"].as_u64());
        assert!(first > Some(0) && first <= last, "{pointer}: {document}");
    }
    assert!(document["cold_us"].as_u64() > Some(0) && document["pickle"]["pickled_bytes"].as_u64() > Some(0));
    assert_eq!(document["parent"]["documents"], 1000);
}

fn agent() {
    let document = run(&["demo", "agent", "--rounds", "3", "--branches", "3", "--steps", "2000"]);
    let rounds = document["rounds"].as_array().expect("a list");
    let best: Vec<&Value> = rounds.iter().map(|round| &round["best_branch"]).collect();
    let decisions: Vec<&Value> = document["branches"].as_array().expect("a list").iter().collect();
    assert_eq!((best.len(), &decisions), (3, &best), "{document}");
    assert_eq!(document["kept"]["node"], rounds[2]["best_node"], "{document}");
}

fn progress_in_log() {
    let ended = RunningDemo::start(&SMALL_INDEX).wait();
    ended.require_success();
    for step in ["building an index", "os.fork()", "pickling", "preparing", "removing everything"] {
        assert_eq!(ended.stderr.lines().filter(|line| line.contains(step)).count(), 1, "{step}: {}", ended.stderr);
    }
    for text in ["ANSWERS FROM", "cold start", "When not to use farfork"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

fn interrupted() {
    for (arguments, step) in
        [(["demo", "--documents", "100000"].as_slice(), "building"), (&["demo", "agent", "--rounds", "100"], "round 1")]
    {
        let mut demo = RunningDemo::start(arguments);
        let log = demo.process.stderr.take().expect("a pipe");
        wait_for_line(log, step);
        kill_process(Pid::from_child(&demo.process), Signal::INT).expect("the demo runs");
        let ended = demo.wait();
        assert_eq!(ended.status.code(), Some(1), "{step}: {}", ended.stdout);
        assert!(ended.stdout.is_empty(), "{step}: {}", ended.stdout);
    }
}

fn parent_killed() {
    let mut demo = RunningDemo::start(&["demo", "--documents", "20000", "--json"]);
    let log = demo.process.stderr.take().expect("a pipe");
    wait_for_line(log, "building");
    let marks = marks(demo.process.id(), &demo.temporary);
    let find_parent = || leftovers::marked_processes(&marks).find(|(_, command)| command.contains("index.py parent"));
    let (parent, _) = wait::wait_until("the parent runs", RUN_LIMIT, find_parent);
    kill_process(Pid::from_raw(parent).expect("a process id"), Signal::KILL).expect("the parent runs");
    let ended = demo.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stdout);
    let failure: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(failure.to_string().contains("ended early"), "{failure}");
}

/// Reads a log until a line contains a text. A thread discards the rest.
fn wait_for_line(log: impl Read + Send + 'static, text: &'static str) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            if line.contains(text) {
                let _ = sender.send(());
            }
        }
    });
    receiver.recv_timeout(RUN_LIMIT).unwrap_or_else(|error| panic!("no line with `{text}`: {error}"));
}
