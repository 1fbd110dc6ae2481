//! Programs that fork themselves with the C library and with the Python package. The package's own tests run here too.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::harness::{BINARY, Cluster, WAIT_TIMEOUT, programs, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("the_python_package_passes_its_tests_without_a_daemon", python_alone),
    Test::shared("a_python_checkpoint_returns_twice", |cluster| run_cluster_tests(cluster, "checkpoint")),
    Test::shared("a_python_executor_calls_functions_in_children", |cluster| run_cluster_tests(cluster, "executor")),
    Test::shared("python_workers_run_many_calls", |cluster| run_cluster_tests(cluster, "workers")),
    Test::shared("faulty_python_calls_end", |cluster| run_cluster_tests(cluster, "faulty_calls")),
    Test::shared("copied_python_threads_disturb_no_worker", |cluster| run_cluster_tests(cluster, "copied_threads")),
    Test::shared("signals_of_a_python_program_stay_there", |cluster| run_cluster_tests(cluster, "signals")),
    Test::shared("joblib_calls_run_in_children", |cluster| run_cluster_tests(cluster, "joblib")),
    Test::shared("dask_tasks_run_in_children", |cluster| run_cluster_tests(cluster, "dask")),
    Test::shared("pytest_tests_run_in_children", |cluster| run_cluster_tests(cluster, "pytest")),
    Test::shared("pytest_runs_report_faults", |cluster| run_cluster_tests(cluster, "pytest_faults")),
    Test::shared("notebooks_call_and_branch", |cluster| run_cluster_tests(cluster, "notebook")),
    Test::shared("no_two_children_share_python_random_numbers", |cluster| run_cluster_tests(cluster, "random_numbers")),
    Test::shared("children_end_with_their_program", program_killed),
    Test::shared("children_being_started_end_with_their_program", program_killed_early),
    Test::alone("a_program_is_notified_when_its_daemon_dies", daemon_killed),
    Test::alone("children_that_were_just_started_end_with_the_daemon_of_their_program", daemon_killed_early),
    Test::shared("a_c_checkpoint_returns_twice", c_calls),
    Test::shared("the_c_examples_give_the_documented_results", examples),
];

/// Time limit for the Python tests of one module. It is less than the time limit of the end-to-end test that runs them.
const MODULE_LIMIT: Duration = Duration::from_secs(280);

/// Longest wait for two small builds.
const MAKE_LIMIT: Duration = Duration::from_secs(120);

/// Longest wait for a line of a program.
const LINE_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until the seeds and children of an ended program have ended.
const END_LIMIT: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a Python command that finds the package, and connects to the cluster's first node.
fn python(cluster: Option<&Cluster>) -> Command {
    let mut command = Command::new(programs::python());
    command.current_dir(root().join("python")).env("PYTHONPATH", root().join("python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("FARFORK_BIN", BINARY);
    if let Some(cluster) = cluster {
        command.env("FARFORK_SOCKET", cluster.first().socket());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run_module(cluster: Option<&Cluster>, arguments: &[&str]) {
    let mut command = python(cluster);
    command.args(["-m", "unittest"]).args(arguments);
    let ended = wait::wait_with_output(command.spawn().expect("Python"), &arguments.join(" "), MODULE_LIMIT);
    ended.require_success();
}

/// Runs the tests of `tests/cluster/test_NAME.py`.
fn run_cluster_tests(cluster: &Cluster, name: &str) {
    run_module(Some(cluster), &[&format!("tests.cluster.test_{name}")]);
}

fn python_alone() {
    run_module(None, &["discover", "-t", ".", "-s", "tests/alone"]);
}

/// A program whose output is read line by line. Dropping it kills it.
struct RunningProgram {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl RunningProgram {
    fn start(command: &mut Command) -> Self {
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Self { process, lines }
    }

    /// Returns the next line of the program.
    fn line(&mut self) -> String {
        let line = self.lines.next().expect("the program prints another line").expect("a line");
        assert!(!line.is_empty());
        line
    }

    fn kill(&mut self) {
        // kill(2) fails if the program has already ended.
        let _ = self.process.kill();
        wait::wait_exit(&mut self.process, "a killed program", LINE_LIMIT);
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a Python program with four sleeping children on two nodes.
fn sleepers(cluster: &Cluster) -> RunningProgram {
    executor(cluster, "sleepers", "running")
}

/// Starts a Python program with an executor on two nodes, and waits until it has printed this line.
fn executor(cluster: &Cluster, name: &str, line: &str) -> RunningProgram {
    let mut command = python(Some(cluster));
    command.arg(programs::sources().join(format!("cooperative/{name}.py"))).args([cluster.name(0), cluster.name(1)]);
    let mut running = RunningProgram::start(&mut command);
    assert_eq!(running.line(), line);
    running
}

/// Returns the number of running children of a process's seeds, and the number of these seeds.
fn belongings(cluster: &Cluster, pid: u32) -> (usize, usize) {
    let (seeds, children) = (cluster.first().json(&["seeds"]), cluster.first().json(&["ps", "--running"]));
    let list = |said: &Value, key: &str| said[key].as_array().cloned().unwrap_or_default();
    let mine = |seed: &&Value| seed["parent_pid"] == pid;
    let seeds: Vec<Value> = list(&seeds, "seeds").iter().filter(mine).cloned().collect();
    let is_of_mine = |child: &&Value| seeds.iter().any(|seed| seed["seed"] == child["seed"]);
    (list(&children, "children").iter().filter(is_of_mine).count(), seeds.len())
}

/// However the program ends, its children are ended: no process would read their results.
fn program_killed(cluster: &Cluster) {
    let mut program = sleepers(cluster);
    let pid = program.process.id();
    assert_eq!(belongings(cluster, pid), (4, 1));
    let before = running(cluster);
    program.kill();
    wait::wait_until("its children and seeds end", END_LIMIT, || {
        (belongings(cluster, pid) == (0, 0) && running(cluster).len() + 4 <= before.len()).then_some(())
    });
}

fn program_killed_early(cluster: &Cluster) {
    let before = running(cluster);
    for _ in 0..3 {
        let mut program = executor(cluster, "many_children", "asked");
        let pid = program.process.id();
        program.kill();
        wait::wait_until("its seeds end", END_LIMIT, || (belongings(cluster, pid).1 == 0).then_some(()));
        wait::wait_until("its children end", END_LIMIT, || running(cluster).is_subset(&before).then_some(()));
    }
}

/// Returns the ids of the running children.
fn running(cluster: &Cluster) -> BTreeSet<String> {
    let listed = cluster.first().json(&["ps", "--running"]);
    let children = listed["children"].as_array().expect("children").iter();
    children.map(|child| child["child"].as_str().expect("an id").to_owned()).collect()
}

fn daemon_killed() {
    let cluster = Cluster::start(2);
    let mut program = sleepers(&cluster);
    cluster.kill_daemon(0);
    for _ in 0..4 {
        assert_eq!(program.line(), "lost ConnectionLost");
    }
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();
    // Children on the other node have lost the daemon that waited for their results.
    wait::wait_until("all children end", END_LIMIT, || (running_on(&cluster, 1) == 0).then_some(()));
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Kills the daemon while it starts children on the other node. It may not yet have requested the results of the last
/// children.
fn daemon_killed_early() {
    let cluster = Cluster::start(2);
    let children = cluster.run_dir(1).join("children");
    let count = || fs::read_dir(&children).map_or(0, Iterator::count);
    let before = count();
    let mut program = executor(&cluster, "many_children", "asked");
    wait::wait_until("a child starts", END_LIMIT, || (count() > before).then_some(()));
    cluster.kill_daemon(0);
    program.kill();
    cluster.restart_daemon(0);
    cluster.wait_until_all_are_alive();
    wait::wait_until("all children end", END_LIMIT, || (running_on(&cluster, 1) == 0).then_some(()));
    assert_eq!(cluster.stop(), [""; 0]);
}

fn running_on(cluster: &Cluster, index: usize) -> usize {
    let said = cluster.first().json(&["ps", "--running"]);
    let is_there = |child: &&Value| child["node"] == cluster.name(index);
    said["children"].as_array().map_or(0, |children| children.iter().filter(is_there).count())
}

/// Builds the C library and its examples, and installs them as a user does. Returns the prefix. Each test has its own
/// prefix, because tests run in parallel and `install` replaces files.
fn install_library(test: &str) -> PathBuf {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library").join(test);
    let build = format!("BUILD={}", prefix.join("build").display());
    let mut make = Command::new("make");
    make.arg("--directory").arg(root().join("crates/program")).args(["install", "examples", &build]);
    make.arg(format!("PREFIX={}", prefix.display()));
    let spawned = make.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let ended = wait::wait_with_output(spawned.expect("make"), "the C library", MAKE_LIMIT);
    ended.require_success();
    prefix
}

/// Starts a program that connects to the first node.
fn start(cluster: &Cluster, program: &Path, input: Stdio) -> RunningProgram {
    RunningProgram::start(Command::new(program).env("FARFORK_SOCKET", cluster.first().socket()).stdin(input))
}

fn c_calls(cluster: &Cluster) {
    let library = install_library("checkpoint");
    let binary = library.join("calls");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&binary);
    compiler.arg(programs::sources().join("cooperative/calls.c"));
    compiler.arg("-I").arg(library.join("include")).arg("-L").arg(library.join("lib"));
    compiler.arg(format!("-Wl,-rpath,{}", library.join("lib").display())).arg("-lfarfork");
    assert!(compiler.status().expect("gcc").success());
    wait_for_clock_to_pass(&binary);

    let mut program = start(cluster, &binary, Stdio::null());
    for number in 1..=2 {
        let line = program.line();
        let seed = line.strip_prefix("seed ").unwrap_or_else(|| panic!("{line}"));
        for (payload, result) in results(cluster, seed, &["10", "11", "12"]) {
            let expected = format!("result {number} {payload} ");
            assert!(result.starts_with(&expected), "{}", &result[..expected.len().min(result.len())]);
            assert_eq!(result.len(), expected.len() + (1 << 20));
        }
    }
}

/// Waits until the coarse clock is later than the last change of a file. The kernel stamps files up to a tick ahead of
/// that clock (Linux 6.13 and later). A prepare within this tick must assume that the file was changed after it.
fn wait_for_clock_to_pass(path: &Path) {
    let changed = fs::metadata(path).expect("the file exists");
    let changed = (changed.mtime(), changed.mtime_nsec());
    wait::wait_until("the coarse clock is later than the file's change", LINE_LIMIT, || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        ((now.tv_sec, now.tv_nsec) > changed).then_some(())
    });
}

fn examples(cluster: &Cluster) {
    let library = install_library("examples");
    let mut squares = start(cluster, &library.join("build/squares"), Stdio::null());
    let seed = squares.line();
    for (payload, result) in results(cluster, &seed, &["7", "999999"]) {
        let number: u64 = payload.parse().expect("a number");
        assert_eq!(result, format!("{number} squared is {}\n", number * number));
    }
    // A single attached child has its streams connected, and its result follows.
    let payload = scratch::file("12");
    let attached =
        cluster.first().run(&["fork", &seed, "--to", cluster.name(1), "--payload", &payload.path().to_string_lossy()]);
    assert_eq!(attached.stdout, "12 squared is 144\n", "{}", attached.stderr);
    let text = scratch::file("the fox and the hound\n");
    let mut words = start(cluster, &library.join("build/words"), text.reopen().expect("a file").into());
    for (payload, result) in results(cluster, &words.line(), &["the", "hound", "hare"]) {
        let count = ["hare", "hound", "the"].iter().position(|word| *word == payload).expect("one of them");
        assert_eq!(result, format!("{payload}: {count}\n"));
    }
}

/// Forks children of a seed on two nodes. Returns their results for these payloads.
fn results(cluster: &Cluster, seed: &str, payloads: &[&str]) -> Vec<(String, String)> {
    let file = scratch::file(&payloads.join("\n"));
    let path = file.path().to_string_lossy();
    let nodes = cluster.names(&[0, 1]);
    let said = cluster.first().json(&["fork", seed, "--to", &nodes, "--payloads", &path, "--detach"]);
    let ids: Vec<&str> =
        said["children"].as_array().expect("children").iter().filter_map(|child| child["child"].as_str()).collect();
    let said =
        cluster.first().json_ignoring_status(&[&["wait", "--results", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    let ends = said["children"].as_array().unwrap_or_else(|| panic!("{said}"));
    assert_eq!(ends.len(), payloads.len(), "{said}");
    let result = |end: &Value| end["result"].as_str().unwrap_or_else(|| panic!("no result: {end}")).to_owned();
    payloads.iter().map(|payload| (*payload).to_owned()).zip(ends.iter().map(result)).collect()
}
