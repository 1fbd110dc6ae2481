//! Tests of the runner itself: one hangs, one fails, and so on. `runs_are_contained` starts this test binary again to
//! run them instead of the real tests.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;
use std::{env, fs};

use crate::harness::{Cluster, Parent, Program, wait};
use crate::runner::RunSettings;
use crate::test::Test;

/// Environment variable that selects these tests. Its value is the directory of the test that started this binary.
pub(crate) const DIRECTORY_VARIABLE: &str = "FARFORK_RUNNER_SELF_TEST";

/// Environment variable that limits the time of a run of these tests, in seconds.
pub(crate) const RUN_LIMIT_VARIABLE: &str = "FARFORK_RUNNER_RUN_LIMIT";

/// Environment variable that limits the number of processes of such a run.
pub(crate) const PIDS_VARIABLE: &str = "FARFORK_RUNNER_PIDS";

pub(crate) const SENTENCES: &[(&str, &[Test])] = &[
    (
        "kinds",
        &[
            Test::alone("passes", || ()),
            Test::alone("fails", panic_with_a_wrong_byte),
            Test::alone("times_out_once", time_out_once),
            Test::alone("times_out", time_out),
            Test::alone("leaves_a_process", leave_process),
        ],
    ),
    (
        "hanging",
        &[
            Test::alone("after_a_failure", || drop((Hanging, panic_with_a_wrong_byte()))).within(|| SHORT_LIMIT),
            Test::alone("with_a_parent", hang_with_a_parent).within(|| SHORT_LIMIT),
            Test::shared("with_a_cluster", hang_with_a_cluster).within(|| CLUSTER_LIMIT),
            Test::alone("never", || ()),
        ],
    ),
    (
        "starved",
        &[
            Test::shared("first", |_| ()),
            Test::shared("second", |_| ()),
            Test::shared("third", |_| ()),
            Test::shared("fourth", |_| ()),
            Test::alone("fifth", || ()),
        ],
    ),
    ("multiplying", &[Test::alone("processes", multiply)]),
    ("staying", &[Test::shared("with_a_cluster", stay)]),
    ("overdue", &[Test::alone("first", || thread::sleep(FOREVER)), Test::alone("second", || thread::sleep(FOREVER))]),
];

/// Limit of processes and threads: enough for a cluster, and far fewer than the fork bomb starts.
const PIDS_MAX: u64 = 200;

/// Number of children that the fork bomb starts if nothing stops it.
const BOMB_MAX: usize = 400;

const SHORT_LIMIT: Duration = Duration::from_secs(2);
const CLUSTER_LIMIT: Duration = Duration::from_secs(6);
const VAIN_LIMIT: Duration = Duration::from_millis(200);

/// Sleep time of tests that hang: longer than any of these runs.
const FOREVER: Duration = Duration::from_secs(3600);

/// Returns whether these tests are selected.
pub(crate) fn is_running() -> bool {
    env::var_os(DIRECTORY_VARIABLE).is_some()
}

/// Returns the settings of a run. They differ if these tests are selected.
pub(crate) fn settings() -> RunSettings {
    let usual = RunSettings::default();
    if !is_running() {
        return usual;
    }
    let number = |variable: &str| env::var(variable).ok().and_then(|text| text.parse().ok());
    RunSettings {
        pids_max: number(PIDS_VARIABLE).unwrap_or(PIDS_MAX),
        leak_limit: SHORT_LIMIT,
        run_limit: number(RUN_LIMIT_VARIABLE).map_or(usual.run_limit, Duration::from_secs),
    }
}

/// Sleeps when it is dropped, so that the unwinding of a failed test hangs.
struct Hanging;

impl Drop for Hanging {
    fn drop(&mut self) {
        thread::sleep(FOREVER);
    }
}

fn panic_with_a_wrong_byte() {
    panic!("a wrong byte");
}

fn hang_with_a_parent() {
    let parent = Parent::start(Program::Waits, &["1"]);
    note("parent", &parent.pid_text());
    thread::sleep(FOREVER);
}

fn hang_with_a_cluster(cluster: &Cluster) {
    note("cluster", cluster.group());
    thread::sleep(FOREVER);
}

fn stay(cluster: &Cluster) {
    note("cluster", cluster.group());
    note("parent", &start_sleep().expect("sleep(1) is installed").id().to_string());
    thread::sleep(FOREVER);
}

fn time_out() {
    wait::wait_until("what never happens", VAIN_LIMIT, || None::<()>);
}

fn time_out_once() {
    if !directory().join("timed_out").exists() {
        note("timed_out", "");
        time_out();
    }
}

/// A fork bomb with a limit, so that it does not harm the machine if the control groups do not contain it.
fn multiply() {
    let children: Vec<_> = (0..BOMB_MAX).map_while(|_| start_sleep().ok()).collect();
    note("children", &children.len().to_string());
    // Leaves the children running: the runner must remove them.
    panic!("{} processes were started", children.len());
}

fn leave_process() {
    note("parent", &start_sleep().expect("sleep(1) is installed").id().to_string());
}

fn start_sleep() -> std::io::Result<Child> {
    Command::new("sleep").arg(FOREVER.as_secs().to_string()).spawn()
}

/// Writes a value for the test that started this binary.
fn note(name: &str, text: &str) {
    // Renames the file into place: the other test polls for it, and must not read a part of it.
    let draft = directory().join(format!("{name}.new"));
    fs::write(&draft, text).expect("the directory can be written");
    fs::rename(draft, directory().join(name)).expect("the directory can be written");
}

fn directory() -> PathBuf {
    env::var_os(DIRECTORY_VARIABLE).expect("a test of runs_are_contained sets it").into()
}
