//! Tests of the runner: whatever a test does and however a run ends, the machine is as before, and the report of the
//! run describes what happened.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::scratch;
use crate::harness::wait::{self, CommandOutput};
use crate::runner::{self, self_test};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("each_failure_is_reported_with_its_name_and_kind", kinds_of_failure),
    Test::alone("when_a_test_hangs", hanging_tests),
    Test::alone("when_a_test_is_a_fork_bomb", fork_bomb),
    Test::alone("when_no_cluster_starts", starved_run),
    Test::alone("when_the_time_limit_is_over", overdue_run),
    Test::alone("when_the_runner_is_terminated", terminated_run),
    Test::alone("when_the_runner_is_killed", killed_run),
    Test::alone("when_the_runner_and_its_janitor_are_killed", run_killed_with_its_janitor),
];

const RUN_LIMIT: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(60);

/// A process that runs the runner's own tests.
struct InnerRun {
    process: Child,
    directory: TempDir,
}

impl InnerRun {
    fn start(filters: &[&str]) -> Self {
        Self::start_in(scratch::directory(), filters)
    }

    fn start_in(directory: TempDir, filters: &[&str]) -> Self {
        Self { process: Self::command(&directory, filters).spawn().expect("this binary can be started"), directory }
    }

    fn command(directory: &TempDir, filters: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a running program"));
        command.args(filters).env(self_test::DIRECTORY_VARIABLE, directory.path());
        for (variable, file) in
            [("FARFORK_FAILURES", "failures"), ("FARFORK_COUNTS", "counts"), ("FARFORK_TEST_LOGS", "logs")]
        {
            command.env(variable, directory.path().join(file));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Waits until the run has ended. Requires that nothing of it is left on the machine. Returns its output and
    /// directory.
    fn end(self) -> (CommandOutput, TempDir) {
        let pid = self.process.id();
        let ended = wait::wait_with_output(self.process, "a run of the runner's own tests", RUN_LIMIT);
        require_no_traces(pid, self.directory.path());
        (ended, self.directory)
    }
}

/// Requires that nothing of the run is left, and that each process that its tests noted has ended.
fn require_no_traces(supervisor: u32, directory: &Path) {
    let traces = runner::traces_of(supervisor);
    assert!(traces.is_empty(), "left of the run: {traces:?}");
    if let Some(parent) = note_in(directory, "parent") {
        assert!(!is_running(&parent), "process {parent} of a test still runs");
    }
    if let Some(group) = note_in(directory, "cluster") {
        let name = group.strip_prefix("farfork-").expect("names of clusters' groups have this prefix");
        let namespaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let left: Vec<_> = namespaces.map(|entry| entry.file_name()).filter(|file| is_of(file, name)).collect();
        assert!(left.is_empty(), "network namespaces: {left:?}");
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let left: Vec<_> = hierarchies.map(|entry| entry.path().join(&group)).filter(|path| path.exists()).collect();
        assert!(left.is_empty(), "control groups: {left:?}");
    }
}

fn is_of(netns: &std::ffi::OsStr, cluster: &str) -> bool {
    netns.to_string_lossy().starts_with(&format!("ff-{cluster}-"))
}

/// Returns whether a process runs. A zombie does not count.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

fn note_in(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok()
}

fn last_line(ended: &CommandOutput) -> &str {
    ended.stdout.lines().last().unwrap_or_default()
}

fn require(ended: &CommandOutput, condition: bool, what: &str) {
    assert!(condition, "{what}: {}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
}

/// One test passes, one fails and does not run again, one times out and then passes, one times out twice, one leaks a
/// process.
fn kinds_of_failure() {
    let (ended, directory) = InnerRun::start(&["kinds::"]).end();
    require(&ended, last_line(&ended) == "2 passed, 3 failed", "the last line");
    require(&ended, ended.status.code() == Some(101), "the exit status");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    let reasons = ["kinds::fails: a wrong byte", "kinds::leaves_a_process: ", "kinds::times_out: "];
    for reason in reasons {
        let line = failures.lines().find(|line| line.starts_with(reason));
        let line = line.unwrap_or_else(|| panic!("no `{reason}` in:\n{failures}"));
        let log = line.rsplit_once("(log: ").and_then(|(_, rest)| rest.strip_suffix(')')).expect("the log is named");
        assert!(Path::new(log).exists(), "{log} is missing");
    }
    let counts = note_in(directory.path(), "counts").expect("counts are written");
    assert_eq!(counts.trim(), "passed=2 failed=3 flaky=1");
    let runs_of = |test: &str| ended.stdout.lines().filter(|l| l.starts_with(&format!("test kinds::{test} "))).count();
    let runs = ["passes", "fails", "leaves_a_process", "times_out_once", "times_out"].map(runs_of);
    require(&ended, runs == [1, 1, 1, 2, 2], "the number of runs of each test");
    let log = fs::read_to_string(directory.path().join("logs/kinds.times_out_once.log"));
    assert!(log.is_ok_and(|log| log.contains("comm test-worker")), "the log of the first run lists no threads");
}

/// Each hanging test costs its own time limit and affects no other test. A test that had failed before it hung does not
/// run again.
fn hanging_tests() {
    let (ended, directory) = InnerRun::start(&["hanging::"]).end();
    require(&ended, last_line(&ended) == "1 passed, 3 failed", "the last line");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    for reason in
        ["after_a_failure: a wrong byte", "with_a_parent: not done after 2 s", "with_a_cluster: not done after"]
    {
        assert!(failures.contains(&format!("hanging::{reason}")), "no `{reason}` in:\n{failures}");
    }
    let log = fs::read_to_string(directory.path().join("logs/hanging.with_a_cluster.log")).unwrap_or_default();
    assert!(log.contains("node.log") && log.contains("farfork"), "the log does not show the daemons: {log}");
}

/// The fork bomb gets no more processes than the run may have, so other processes of the machine can still fork.
fn fork_bomb() {
    let (ended, directory) = InnerRun::start(&["multiplying::"]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let count: usize = note_in(directory.path(), "children")
        .expect("the test notes its number of children")
        .parse()
        .expect("a number");
    assert!((1..200).contains(&count), "{count} processes");
}

/// With few processes, the shared cluster cannot start. Three tests fail, and the fourth does not run. A test that
/// needs no cluster passes.
fn starved_run() {
    let mut command = InnerRun::command(&scratch::directory(), &["starved::"]);
    command.env(self_test::PIDS_VARIABLE, "20");
    let ended =
        wait::wait_with_output(command.spawn().expect("this binary can be started"), "a starved run", RUN_LIMIT);
    require(&ended, last_line(&ended) == "1 passed, 4 failed", "the last line");
    require(&ended, ended.stdout.contains("starved::fourth: not run: the shared cluster does not start"), "the fourth");
    require(&ended, !ended.stdout.contains("starved::third: not run"), "the third");
}

/// The time limit of the run expires: the running test is ended, and further tests do not run.
fn overdue_run() {
    let mut command = InnerRun::command(&scratch::directory(), &["overdue::"]);
    command.env(self_test::RUN_LIMIT_VARIABLE, "2");
    let ended =
        wait::wait_with_output(command.spawn().expect("this binary can be started"), "an overdue run", RUN_LIMIT);
    require(&ended, last_line(&ended) == "0 passed, 2 failed", "the last line");
    for line in ["first: the time of the whole run is over: not done", "second: not run"] {
        require(&ended, ended.stdout.contains(&format!("overdue::{line}")), line);
    }
}

/// Starts a test that does not end. Returns when the test has a cluster and a process.
fn start_staying() -> InnerRun {
    let inner = InnerRun::start(&["staying::"]);
    wait::wait_until("the test runs", SOON, || note_in(inner.directory.path(), "parent"));
    inner
}

fn terminated_run() {
    let inner = start_staying();
    kill_process(Pid::from_child(&inner.process), Signal::TERM).expect("our own child");
    let (ended, _directory) = inner.end();
    require(&ended, ended.status.code() == Some(128 + Signal::TERM.as_raw()), "the exit status");
}

/// Kills the runner with SIGKILL, as the kernel does if memory runs out. The janitor removes everything.
fn killed_run() {
    let InnerRun { mut process, directory } = start_staying();
    process.kill().expect("our own child");
    let pid = process.id();
    wait::wait_exit(&mut process, "the killed runner", SOON);
    wait::wait_until("the janitor removes the rest", SOON, || runner::traces_of(pid).is_empty().then_some(()));
    require_no_traces(pid, directory.path());
}

/// Kills the runner and its janitor. The next run removes everything.
fn run_killed_with_its_janitor() {
    let InnerRun { mut process, directory } = start_staying();
    let pid = process.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    let is_janitor =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "test-janitor\n");
    let janitor = children.split_whitespace().find(is_janitor).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    kill_process(janitor.expect("the runner has a janitor"), Signal::KILL).expect("the runner has not reaped it");
    process.kill().expect("our own child");
    wait::wait_exit(&mut process, "the killed runner", SOON);
    assert!(!runner::traces_of(pid).is_empty(), "the run left nothing, although its janitor was killed");
    let (ended, directory) = InnerRun::start_in(directory, &["kinds::passes"]).end();
    require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line of the next run");
    require_no_traces(pid, directory.path());
}
