//! Runs `xtask` with a script in place of cargo. Tests how a run ends and what its last lines say: after a signal, when its
//! output is read late, and next to another run.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Longer than xtask waits for the end of the output of a step.
const READER_DELAY: Duration = Duration::from_secs(8);

/// More than a pipe holds.
const OUTPUT_BYTES: usize = 300_000;

/// Size of a line that does not fit into [`DATA_KIB_MAX`].
const LONG_LINE_BYTES: u64 = 200 << 20;

/// Limit on the memory of xtask: what it keeps for a slow terminal, and more for itself than a usual run needs.
const DATA_KIB_MAX: u64 = 160 << 10;

/// In place of the runner of the end-to-end tests: it notes its start, and needs a second to clean up after a signal.
/// The shell reports to standard error that the signal has ended sleep(1). This would end the shell if the run was killed, because
/// nothing reads its output any more.
const CLEANING_RUNNER: &str = "
    setsid sleep 1000 & echo $! > $D/other_group
    sh -c 'trap \"sleep 1; touch $D/cleaned; exit\" INT TERM HUP; touch $D/started; while :; do sleep 0.1; done' 2> /dev/null";

/// A directory for a test, with a program `cargo`.
struct Scratch(PathBuf);

impl Scratch {
    /// `tests` is the script for the tests; builds do nothing. `$D` is the directory.
    fn new(name: &str, tests: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("farfork-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let cargo = directory.join("cargo");
        let script = format!("#!/bin/sh\nexport D='{}'\n[ \"$1\" = test ] || exit 0\n{tests}\n", directory.display());
        fs::write(&cargo, script).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // These tests may have been started with ignored signals, for example by nohup(1), and `xtask` would ignore them, too.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_xtask")]);
        command.args(arguments).env("CARGO", self.path("cargo")).env("CARGO_TARGET_DIR", self.path("target"));
        command.env_remove("FARFORK_TEST_SET").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts `xtask e2e`, and waits until the script has made the file `started`.
    fn start(&self, command: &mut Command) -> Child {
        let process = command.spawn().unwrap();
        if !self.has_made("started") {
            send("TERM", &process);
            panic!("the tests were not started within {LIMIT:?}");
        }
        process
    }

    /// Waits until the script has made a file. Returns `false` after [`LIMIT`].
    fn has_made(&self, name: &str) -> bool {
        let give_up = Instant::now() + LIMIT;
        while !self.path(name).exists() && Instant::now() < give_up {
            thread::sleep(POLL_INTERVAL);
        }
        self.path(name).exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn send(signal: &str, process: &Child) {
    send_to(signal, &process.id().to_string());
}

fn send_to(signal: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", signal, pid]).status().unwrap().success());
}

/// Returns whether a process runs. A zombie does not count.
fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a process that was killed has ended.
fn wait_ended(pid: &str) {
    let give_up = Instant::now() + LIMIT;
    while is_running(pid) {
        assert!(Instant::now() < give_up, "process {pid} is left");
        thread::sleep(POLL_INTERVAL);
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn last_line(output: &Output) -> String {
    stdout(output).lines().last().unwrap_or_default().to_owned()
}

/// The directory with the logs of a run.
fn logs_of(scratch: &Scratch, run: &str) -> PathBuf {
    scratch.path("target/test-logs").join(run)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_signal_ends_the_running_step_before_the_run() {
    for (signal, status) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let scratch = Scratch::new(&format!("signal-{signal}"), CLEANING_RUNNER);
        let process = scratch.start(&mut scratch.command(&["e2e"]));
        send(signal, &process);
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stdout(&output));
        assert!(scratch.path("cleaned").exists(), "the run has ended before its tests");
        assert!(stdout(&output).contains(&format!("== ended by SIG{signal}")), "{}", stdout(&output));
        wait_ended(&read(&scratch.path("other_group")));
    }
}

#[test]
fn a_second_signal_kills_a_step_that_does_not_end() {
    let runner = "trap '' TERM; echo $$ > $D/pid; touch $D/started; while :; do sleep 0.1; done";
    let scratch = Scratch::new("second-signal", runner);
    let mut process = scratch.start(&mut scratch.command(&["e2e"]));
    send("TERM", &process);
    thread::sleep(Duration::from_secs(2));
    assert!(process.try_wait().unwrap().is_none(), "the run did not wait for its tests");
    // On a slow machine, the run may not have received the first signal for long, and ignores a second one within a second.
    while process.try_wait().unwrap().is_none() {
        send("TERM", &process);
        thread::sleep(POLL_INTERVAL);
    }
    assert_eq!(process.wait_with_output().unwrap().status.code(), Some(143));
    wait_ended(&read(&scratch.path("pid")));
}

#[test]
fn a_stopped_step_gets_the_signal() {
    let runner = "trap 'touch $D/cleaned; exit' TERM; touch $D/started; kill -s STOP 0";
    let scratch = Scratch::new("stopped-step", runner);
    let process = scratch.start(&mut scratch.command(&["e2e"]));
    send("TERM", &process);
    assert_eq!(process.wait_with_output().unwrap().status.code(), Some(143));
    assert!(scratch.path("cleaned").exists(), "the step was killed");
}

/// SIGKILL: the kernel sends it when memory runs out, and continuous integration when time is over.
#[test]
fn a_killed_run_ends_its_step() {
    let scratch = Scratch::new("killed", CLEANING_RUNNER);
    let mut process = scratch.start(&mut scratch.command(&["e2e"]));
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(scratch.has_made("cleaned"), "the step continues");
    send_to("KILL", read(&scratch.path("other_group")).trim());
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let scratch = Scratch::new("ignored-signal", CLEANING_RUNNER);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" e2e", env!("CARGO_BIN_EXE_xtask")]).stdout(Stdio::null());
    command.env("CARGO", scratch.path("cargo")).env("CARGO_TARGET_DIR", scratch.path("target"));
    let mut process = scratch.start(&mut command);
    send("HUP", &process);
    thread::sleep(Duration::from_secs(1));
    assert!(process.try_wait().unwrap().is_none(), "the signal has ended the run");
    send("TERM", &process);
    assert_eq!(process.wait().unwrap().code(), Some(143));
}

#[test]
fn a_signal_ends_a_run_whose_output_is_not_read() {
    let scratch = Scratch::new("unread-signal", &format!("head -c {OUTPUT_BYTES} /dev/zero; {CLEANING_RUNNER}"));
    let mut process = scratch.start(&mut scratch.command(&["e2e"]));
    send("TERM", &process);
    assert_eq!(process.wait().unwrap().code(), Some(143));
    assert!(scratch.path("cleaned").exists());
}

#[test]
fn no_result_is_lost_if_the_output_is_read_late() {
    // The unit tests print more than a pipe holds before their result.
    let tests = format!(
        "case \"$*\" in
            *--no-run*) ;;
            *--lib*) yes | head -c {OUTPUT_BYTES}; echo 'test result: ok. 5 passed; 0 failed' ;;
            *) echo passed=3 failed=0 flaky=0 > \"$FARFORK_COUNTS\" ;;
        esac"
    );
    let scratch = Scratch::new("late-reader", &tests);
    let mut process = scratch.command(&["check"]).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(READER_DELAY);
    let mut text = String::new();
    process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    process.wait().unwrap();
    let end: String = text.lines().rev().take(20).map(|line| format!("{line}\n")).collect();
    assert!(end.starts_with("8 passed"), "{end}");
    assert!(text.matches("y\n").count() > OUTPUT_BYTES / 3, "output is missing");
    let log = read(&logs_of(&scratch, "latest").join("unit-tests.log"));
    assert!(log.len() > OUTPUT_BYTES && log.ends_with("5 passed; 0 failed\n"));
}

/// The limit on memory is less than the output, which has no line end.
#[test]
fn output_without_line_ends_needs_little_memory() {
    let tests = format!("head -c {LONG_LINE_BYTES} /dev/zero; echo passed=1 failed=0 flaky=0 > \"$FARFORK_COUNTS\"");
    let scratch = Scratch::new("long-line", &tests);
    let limited = format!("ulimit -d {DATA_KIB_MAX}; exec \"$0\" e2e");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_xtask")]).stdout(Stdio::null());
    command.env("CARGO", scratch.path("cargo")).env("CARGO_TARGET_DIR", scratch.path("target"));
    assert_eq!(command.env_remove("FARFORK_TEST_SET").status().unwrap().code(), Some(0));
    let log = logs_of(&scratch, "latest").join("end-to-end-tests.log");
    assert_eq!(fs::metadata(log).unwrap().len(), LONG_LINE_BYTES);
}

#[test]
fn filters_that_select_no_test_fail() {
    let scratch = Scratch::new("filters", "echo passed=0 failed=0 flaky=0 > \"$FARFORK_COUNTS\"");
    let output = scratch.run(&["e2e", "kinds::fials", "other"]);
    assert_eq!((output.status.code(), last_line(&output).as_str()), (Some(1), "0 passed, 1 failed"));
    assert!(stdout(&output).contains("no test was selected by `kinds::fials`, `other`"), "{}", stdout(&output));
    let output = scratch.command(&["e2e", "demo_runs"]).env("FARFORK_TEST_SET", "check").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("`demo_runs` from the set FARFORK_TEST_SET=check"), "{}", stdout(&output));
}

#[test]
fn a_list_has_only_the_names() {
    let scratch = Scratch::new("list", "echo 'one: test'");
    let output = scratch.run(&["e2e", "--list"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "one: test\n"));
}

#[test]
fn the_last_line_has_the_counts_of_failed_tests() {
    let tests = "echo 'a::b: wrong (log: x)' > \"$FARFORK_FAILURES\"
        echo passed=2 failed=1 flaky=0 > \"$FARFORK_COUNTS\"; echo 'error: test failed'; exit 101";
    let scratch = Scratch::new("counts", tests);
    let output = scratch.run(&["e2e", "a"]);
    assert_eq!((output.status.code(), last_line(&output).as_str()), (Some(1), "2 passed, 1 failed"));
    assert!(stdout(&output).contains("a::b: wrong (log: x)"));
    assert_eq!(output.stderr, b"");
}

#[test]
fn counts_that_could_not_be_written_are_reported() {
    for (counts, message) in [
        (": > \"$FARFORK_COUNTS\"", "end-to-end-tests.counts is empty, which a full disk may cause"),
        ("printf 'passed=47' > \"$FARFORK_COUNTS\"", "end-to-end-tests.counts is incomplete"),
        (":", "it ended without counts"),
    ] {
        let tests = format!("echo 'a::b: wrong' > \"$FARFORK_FAILURES\"; {counts}; echo 'error: no space'; exit 1");
        let scratch = Scratch::new("lost-counts", &tests);
        let output = scratch.run(&["e2e"]);
        assert_eq!((output.status.code(), last_line(&output).as_str()), (Some(1), "0 passed, 2 failed"));
        let text = stdout(&output);
        assert!(text.contains(message) && text.contains("error: no space") && text.contains("a::b: wrong"), "{text}");
    }
}

#[test]
fn runs_at_the_same_time_do_not_share_files() {
    // The first run writes its files, and ends only after the second one.
    let tests = "
        echo \"test::$3: wrong\" > \"$FARFORK_FAILURES\"
        echo passed=$6 failed=1 flaky=0 > \"$FARFORK_COUNTS\"
        echo \"output of $6\"
        [ $6 = 2 ] || { touch $D/started; until [ -e $D/ended ]; do sleep 0.05; done; }
        exit 101";
    let scratch = Scratch::new("two-runs", tests);
    let first = scratch.start(&mut scratch.command(&["e2e", "1"]));
    let first_logs = logs_of(&scratch, &first.id().to_string());
    let second = scratch.run(&["e2e", "2"]);
    fs::write(scratch.path("ended"), "").unwrap();
    let first = first.wait_with_output().unwrap();
    assert_eq!([last_line(&first), last_line(&second)], ["1 passed, 1 failed", "2 passed, 1 failed"]);
    let logs = [first_logs, logs_of(&scratch, "latest")].map(|logs| read(&logs.join("end-to-end-tests.log")));
    assert_eq!(logs, ["output of 1\n", "output of 2\n"]);
}
