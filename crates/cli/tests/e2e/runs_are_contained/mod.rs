//! Tests of the runner: whatever a test does and however a run ends, the machine is as before, and the report of the
//! run describes what happened.

mod endings;
mod environments;
mod groups;
mod outputs;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farfork_sys::process_identity::ProcessIdentity;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::check_set;
use crate::harness::leftovers::{self, RunMarkers};
use crate::harness::scratch::TestDirectory;
use crate::harness::wait::{self, CommandOutput};
use crate::harness::{Disk, scratch};
use crate::runner::{self, self_test};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("each_failure_is_reported_with_its_name_and_kind", kinds_of_failure),
    Test::alone("more_than_three_flaky_tests_fail_the_run", outputs::flaky_tests),
    Test::alone("when_a_test_hangs", hanging_tests),
    Test::alone("when_a_test_is_a_fork_bomb", fork_bomb),
    Test::alone("when_no_cluster_starts", starved_run),
    Test::alone("when_the_time_limit_is_over", overdue_run),
    Test::alone("when_the_runner_is_terminated", terminated_run),
    Test::alone("when_the_runner_is_terminated_after_its_output_was_closed", terminated_run_with_closed_output),
    Test::alone("when_the_runner_is_terminated_and_a_full_pipe_is_not_read", terminated_run_with_full_pipe),
    Test::alone("when_tests_hold_objects_outside_of_their_groups", run_with_outside_objects),
    Test::alone("when_a_test_fails_while_a_demo_runs", abandoned_demo),
    Test::alone("when_the_runner_is_killed", killed_run),
    Test::alone("when_the_runner_and_its_janitor_are_killed", run_killed_with_its_janitor),
    Test::alone("when_a_killed_run_was_in_another_control_group", groups::other_control_group),
    Test::alone("when_the_disk_is_full", full_disk),
    Test::alone("when_a_directory_cannot_be_made", unusable_directories),
    Test::alone("when_the_path_of_a_directory_is_too_long", long_directory),
    Test::alone("when_the_report_cannot_be_written", unwritable_report),
    Test::alone("when_there_are_no_control_groups", environments::no_control_groups),
    Test::alone("when_the_temporary_directory_is_a_relative_link", environments::linked_temporary_directory),
    Test::alone("when_other_users_make_directories_with_names_of_runs", environments::directories_of_other_users),
    Test::alone("when_a_mount_of_an_earlier_run_cannot_be_detached", environments::locked_mount),
    Test::alone("when_another_run_is_in_a_container", environments::contained_run),
    Test::alone("when_the_state_of_a_cluster_is_unreadable", environments::unreadable_cluster),
    Test::alone("logs_outlive_their_run", environments::kept_logs),
    Test::alone("when_a_test_writes_without_end", outputs::endless_output),
    Test::alone("when_a_test_finds_a_wrong_byte_and_times_out", outputs::wrong_and_late),
    Test::alone("when_a_message_is_long", outputs::long_message),
    Test::alone("when_a_test_truncates_its_output", outputs::truncated_output),
    Test::alone("when_the_logs_are_removed", outputs::removed_logs),
    Test::alone("when_a_thread_of_a_test_fails", outputs::failed_thread),
    Test::alone("when_the_report_is_not_read", endings::unread_report),
    Test::alone("when_the_output_is_not_read_until_the_time_limit", endings::unread_output),
    Test::alone("when_hangups_are_ignored", endings::ignored_hangup),
    Test::alone("when_a_test_makes_ipc_objects", endings::ipc_objects),
    Test::alone("when_a_test_cannot_remove_its_cluster", endings::unremoved_cluster),
    Test::alone("when_the_state_of_a_cluster_is_lost", endings::lost_cluster),
    Test::alone("when_a_test_starts_a_further_run", endings::further_run),
    Test::alone("when_a_test_waits_for_its_own_file_system", endings::own_file_system),
    Test::alone("when_a_mount_hides_another_one", endings::hidden_mount),
    Test::alone("when_a_test_freezes_its_group", groups::frozen_group),
    Test::alone("when_a_process_is_in_another_group", groups::process_in_another_group),
    Test::alone("when_a_control_group_of_an_earlier_run_cannot_be_removed", groups::busy_group),
    Test::alone("when_there_are_few_descriptors", groups::few_descriptors),
    Test::alone("when_the_janitor_is_moved_to_another_control_group", groups::moved_janitor),
    Test::alone("when_the_control_group_of_the_runner_has_limits", groups::limited_group),
    Test::alone("when_the_janitor_cannot_be_started", groups::full_group),
    Test::alone("each_filter_selects_tests", several_filters),
];

const RUN_LIMIT: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(60);

/// A process that runs the runner's own tests.
struct InnerRun {
    process: Child,
    supervisor: ProcessIdentity,
    directory: TestDirectory,
}

impl InnerRun {
    fn start(filters: &[&str]) -> Self {
        Self::start_with(filters, |_| [])
    }

    /// As [`Self::start`], with environment variables. `variables` gets the directory for the run's notes.
    fn start_with<const COUNT: usize>(
        filters: &[&str],
        variables: impl FnOnce(&Path) -> [(&'static str, OsString); COUNT],
    ) -> Self {
        let directory = scratch::directory();
        let mut command = Self::command(&directory, filters);
        command.envs(variables(directory.path()));
        Self::spawn(command, directory)
    }

    /// Starts a run with a command of [`Self::command`].
    fn spawn(mut command: Command, directory: TestDirectory) -> Self {
        let process = command.spawn().expect("this binary can be started");
        let supervisor = ProcessIdentity::of(process.id().cast_signed()).expect("our own child");
        Self { process, supervisor, directory }
    }

    /// Waits until the test has noted its process, the last step before it hangs.
    fn wait_until_staying(&self) {
        wait::wait_until("the test runs", RUN_LIMIT, || note_in(self.directory.path(), "parent"));
    }

    fn command(directory: &TestDirectory, filters: &[&str]) -> Command {
        Self::command_in(&["env"], directory, filters)
    }

    /// As [`Self::command`]. The program `launcher` starts this binary in the same process.
    fn command_in(launcher: &[&str], directory: &TestDirectory, filters: &[&str]) -> Command {
        let mut command = Command::new(launcher[0]);
        command.args(&launcher[1..]).arg(std::env::current_exe().expect("a running program"));
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
    fn end(self) -> (CommandOutput, TestDirectory) {
        let ended = wait::wait_with_output(self.process, "a run of the runner's own tests", RUN_LIMIT);
        require_no_traces(&self.supervisor, self.directory.path());
        (ended, self.directory)
    }

    /// Waits until a run has ended that is refused, and until the janitor has removed what was made before the refusal.
    fn end_refused(self) -> (CommandOutput, TestDirectory) {
        let ended = wait::wait_with_output(self.process, "a run of the runner's own tests", RUN_LIMIT);
        require(&ended, ended.status.code() == Some(1), "the exit status");
        require_removal(&self.supervisor);
        (ended, self.directory)
    }
}

/// Requires that nothing of the run is left, and that each process that its tests noted has ended.
fn require_no_traces(supervisor: &ProcessIdentity, directory: &Path) {
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

fn is_of(netns: &OsStr, cluster: &str) -> bool {
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
    let (ended, _directory) = InnerRun::start_with(&["starved::"], |_| [(self_test::PIDS_VARIABLE, "20".into())]).end();
    require(&ended, last_line(&ended) == "1 passed, 4 failed", "the last line");
    require(&ended, ended.stdout.contains("starved::fourth: not run: the shared cluster does not start"), "the fourth");
    require(&ended, !ended.stdout.contains("starved::third: not run"), "the third");
}

/// The time limit of the run expires: the running test is ended, and further tests do not run.
fn overdue_run() {
    let (ended, _directory) =
        InnerRun::start_with(&["overdue::"], |_| [(self_test::RUN_LIMIT_VARIABLE, "2".into())]).end();
    require(&ended, last_line(&ended) == "0 passed, 2 failed", "the last line");
    for line in ["first: the time of the whole run is over: not done", "second: not run"] {
        require(&ended, ended.stdout.contains(&format!("overdue::{line}")), line);
    }
}

/// Starts a test that does not end. Returns when the test has a cluster and a process.
fn start_staying() -> InnerRun {
    let inner = InnerRun::start(&["staying::"]);
    inner.wait_until_staying();
    inner
}

/// Sends SIGTERM to a run, and requires that it ends and leaves nothing. Returns the directory of its notes.
fn terminate(inner: InnerRun) -> TestDirectory {
    kill_process(Pid::from_child(&inner.process), Signal::TERM).expect("our own child");
    require_terminated(inner)
}

/// Requires that a run ends after SIGTERM and leaves nothing. Returns the directory of its notes.
fn require_terminated(inner: InnerRun) -> TestDirectory {
    let (ended, directory) = inner.end();
    require(&ended, ended.status.code() == Some(128 + Signal::TERM.as_raw()), "the exit status");
    directory
}

fn terminated_run() {
    terminate(start_staying());
}

/// The signal of a closed terminal, or of Ctrl-C at a pipe: the readers have ended, even before the first test.
fn terminated_run_with_closed_output() {
    let mut inner = InnerRun::start(&["kinds::passes", "staying::"]);
    drop((inner.process.stdout.take(), inner.process.stderr.take()));
    inner.wait_until_staying();
    terminate(inner);
}

/// Ctrl-C while a pager shows the output: the pager does not read further, and every write to the pipe blocks.
fn terminated_run_with_full_pipe() {
    let (reader, writer) = full_pipe();
    let directory = scratch::directory();
    let mut command = InnerRun::command(&directory, &["staying::"]);
    command.stderr(writer);
    let inner = InnerRun::spawn(command, directory);
    inner.wait_until_staying();
    kill_process(Pid::from_child(&inner.process), Signal::TERM).expect("our own child");
    require_removal(&inner.supervisor);
    drop(reader);
    require_terminated(inner);
}

/// Returns a pipe to which each write blocks.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("an open pipe");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("an open pipe");
    while writer.write(&[0; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).expect("an open pipe");
    (reader, writer)
}

/// A demo and a benchmark have groups and files of their own, and other tests change the state of the machine.
fn run_with_outside_objects() {
    let pages = || fs::read_to_string(runner::HUGE_PAGES).expect("it can be read");
    let pages_before = pages();
    // Each node has dozens of threads, and the path of its socket must be short.
    let inner = InnerRun::start_with(&["outside::"], |_| {
        [(self_test::PIDS_VARIABLE, "4000".into()), ("TMPDIR", "/tmp".into())]
    });
    inner.wait_until_staying();
    let clusters =
        ["demo", "benchmark"].map(|note| note_in(inner.directory.path(), note).expect("the test notes its clusters"));
    let find = || clusters.iter().map(|note| find_cluster(note)).collect::<Vec<_>>();
    assert!(find().iter().all(|found| !found.is_empty()), "the markers find both clusters");
    let directory = terminate(inner);
    assert!(find().iter().all(Vec::is_empty), "{:#?}", find());
    assert_eq!(pages(), pages_before);
    assert!(!Path::new(runner::HUGE_PAGES_BEFORE).exists());
    let worker = note_in(directory.path(), "worker").expect("the test notes its process");
    for prefix in runner::SHARED_MEMORY_PREFIXES {
        assert!(!Path::new("/dev/shm").join(format!("{prefix}{worker}")).exists(), "{prefix}");
    }
}

/// Finds the parts of a cluster that the test has noted.
fn find_cluster(note: &str) -> Vec<String> {
    let (name, directory) = note.split_once(' ').expect("a name and a directory");
    leftovers::find_leftovers(&RunMarkers::of_local_cluster(name, directory.into()))
}

/// A test does not remove its directories when it fails: the runner needs the state file of the demo's cluster.
fn abandoned_demo() {
    let inner = InnerRun::start_with(&["abandoned::"], |_| {
        [(self_test::PIDS_VARIABLE, "4000".into()), ("TMPDIR", "/tmp".into())]
    });
    let (ended, directory) = inner.end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    require(&ended, ended.stdout.contains("a wrong byte"), "the reason");
    let demo = note_in(directory.path(), "demo").expect("the test notes its cluster");
    assert!(find_cluster(&demo).is_empty(), "{:#?}", find_cluster(&demo));
}

/// Kills the runner with SIGKILL, as the kernel does if memory runs out. The janitor removes everything.
fn killed_run() {
    require_removal_after_kill(start_staying());
}

/// Kills a run with SIGKILL, and requires that its janitor removes everything.
fn require_removal_after_kill(inner: InnerRun) {
    let InnerRun { mut process, supervisor, directory } = inner;
    process.kill().expect("our own child");
    wait::wait_exit(&mut process, "the killed runner", SOON);
    require_removal(&supervisor);
    require_no_traces(&supervisor, directory.path());
}

/// Waits until another process has removed the rest of a run that has ended.
fn require_removal(supervisor: &ProcessIdentity) {
    let traces = || runner::traces_of(supervisor);
    wait::wait_until("nothing is left", SOON, || traces().is_empty().then_some(()));
}

/// Kills the runner and its janitor. The next run removes everything, even if its temporary directory is another one. If
/// two runs are the next, one of them waits.
fn run_killed_with_its_janitor() {
    let killed = kill_with_janitor(start_staying());
    let supervisor = killed.supervisor;
    assert!(!runner::traces_of(&supervisor).is_empty(), "the run left nothing, although its janitor was killed");
    let next = [(); 2].map(|()| InnerRun::start_with(&["kinds::passes"], |notes| [("TMPDIR", notes.into())]));
    for (ended, _directory) in next.map(InnerRun::end) {
        require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line of the next run");
        require(&ended, !ended.stdout.contains("cannot remove"), "the next runs disturb each other");
    }
    require_no_traces(&supervisor, killed.directory.path());
}

/// Kills a run and its janitor with SIGKILL, and waits for the run.
fn kill_with_janitor(mut inner: InnerRun) -> InnerRun {
    kill_process(janitor_of(&inner), Signal::KILL).expect("the runner has not reaped it");
    inner.process.kill().expect("our own child");
    wait::wait_exit(&mut inner.process, "the killed runner", SOON);
    inner
}

fn janitor_of(inner: &InnerRun) -> Pid {
    let pid = inner.process.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    let is_janitor =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "test-janitor\n");
    let janitor = children.split_whitespace().find(is_janitor).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    janitor.expect("the runner has a janitor")
}

/// The output of the tests is a file on this disk, too.
fn full_disk() {
    let disk = Disk::of_mib(16);
    let (ended, directory) = InnerRun::start_with(&["overfull::"], |_| [("TMPDIR", disk.path().into())]).end();
    require(&ended, last_line(&ended) == "0 passed, 1 failed", "the last line");
    let failures = note_in(directory.path(), "failures").expect("failures are written");
    assert!(failures.starts_with("overfull::times_out: what never happens"), "{failures}");
    assert_eq!(fs::read_dir(disk.path()).expect("it is mounted").count(), 0);
}

/// Returns a path that cannot be made, because its parent is a file.
fn impossible_path(directory: &Path) -> PathBuf {
    let file = directory.join("file");
    fs::write(&file, "").expect("an empty file needs no space");
    file.join("below")
}

/// Paths of sockets must be short.
fn long_directory() {
    let long = |notes: &Path| notes.join("x".repeat(100));
    let inner = InnerRun::start_with(&["kinds::passes"], |notes| {
        fs::create_dir(long(notes)).expect("our own directory");
        [("TMPDIR", long(notes).into())]
    });
    let (ended, directory) = inner.end_refused();
    let names_both =
        ended.stderr.contains(&*long(directory.path()).to_string_lossy()) && ended.stderr.contains("TMPDIR");
    require(&ended, names_both, "the message names the directory and the variable");
}

fn unusable_directories() {
    for variable in ["TMPDIR", "FARFORK_TEST_LOGS"] {
        let inner = InnerRun::start_with(&["kinds::passes"], |_| [(variable, "".into())]);
        let (ended, _directory) = inner.end_refused();
        require(&ended, ended.stderr.contains(variable), "the message names the variable");
        let inner = InnerRun::start_with(&["kinds::passes"], |notes| [(variable, impossible_path(notes).into())]);
        let (ended, directory) = inner.end_refused();
        let path = impossible_path(directory.path());
        let names_both = ended.stderr.contains(&*path.to_string_lossy()) && ended.stderr.contains(variable);
        require(&ended, names_both, "the message names the directory and the variable");
    }
    // Two entries would have the name of the run.
    let (ended, _directory) = InnerRun::start_with(&["kinds::passes"], |_| [("TMPDIR", "/run".into())]).end_refused();
    require(&ended, ended.stderr.contains("directory /run: ") && ended.stderr.contains("TMPDIR"), "the message");
}

fn unwritable_report() {
    for variable in ["FARFORK_FAILURES", "FARFORK_COUNTS"] {
        let (ended, directory) =
            InnerRun::start_with(&["kinds::passes"], |notes| [(variable, impossible_path(notes).into())]).end();
        require(&ended, ended.status.code() == Some(1), "the exit status");
        require(&ended, last_line(&ended) == "1 passed, 0 failed", "the last line");
        let path = impossible_path(directory.path());
        let names_both = ended.stderr.contains(&*path.to_string_lossy()) && ended.stderr.contains(variable);
        require(&ended, names_both, "the message names the file and the variable");
    }
}

/// A filter without a match is reported, and does not fail the run: it may match unit tests.
fn several_filters() {
    let (ended, _directory) = InnerRun::start(&["kinds::passes", "kinds::fails", "--skip", "times_out"]).end();
    require(&ended, last_line(&ended) == "1 passed, 1 failed", "the last line");
    let (ended, _directory) = InnerRun::start(&["nowhere::", "kinds::passes"]).end();
    require(&ended, last_line(&ended) == "1 passed, 0 failed" && ended.status.success(), "the last line");
    require(&ended, ended.stderr.contains("no test matches nowhere::"), "the message");
    let (ended, _directory) =
        InnerRun::start_with(&["kinds::passes"], |_| [(check_set::SET_VARIABLE, "check".into())]).end();
    require(&ended, last_line(&ended) == "0 passed, 0 failed", "the last line");
    require(&ended, ended.stderr.contains("no test of the set matches kinds::passes"), "the message");
}
