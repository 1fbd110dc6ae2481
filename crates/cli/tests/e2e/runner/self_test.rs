//! Tests of the runner itself: one hangs, one fails, and so on. `runs_are_contained` starts this test binary again to
//! run them instead of the real tests.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::RunSettings;
use super::bench_directories;
use super::hostile_tests;
use super::machine_state::{HUGE_PAGES, HUGE_PAGES_BEFORE, SHARED_MEMORY_PREFIXES};
use crate::harness::scratch::TestDirectory;
use crate::harness::{Cluster, Disk, Farfork, Parent, Program, programs, scratch, wait};
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
            Test::alone("times_out_once", || time_out_once_as("timed_out")),
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
    (
        "unsteady",
        &[
            Test::alone("first", || time_out_once_as("first")),
            Test::alone("second", || time_out_once_as("second")),
            Test::alone("third", || time_out_once_as("third")),
            Test::alone("fourth", || time_out_once_as("fourth")),
        ],
    ),
    ("multiplying", &[Test::alone("processes", multiply)]),
    ("staying", &[Test::shared("with_a_cluster", stay)]),
    ("mounting", &[Test::alone("in_its_directory", stay_with_a_mount)]),
    ("abandoned", &[Test::alone("running_demo", abandon_demo)]),
    ("overfull", &[Test::alone("times_out", time_out_on_a_full_disk)]),
    ("outside", &[Test::alone("of_its_groups_and_directory", hold_outside_objects)]),
    ("overdue", &[Test::alone("first", || thread::sleep(FOREVER)), Test::alone("second", || thread::sleep(FOREVER))]),
    ("hostile", hostile_tests::TESTS),
];

/// Limit of processes and threads: enough for a cluster, and far fewer than the fork bomb starts.
const PIDS_MAX: u64 = 200;

/// Limit of the output of a test: much more than these tests write.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// Time after the time limit of a run in which it must end. The run removes one worker in this time.
const HANG_LIMIT: Duration = Duration::from_secs(20);

/// Number of children that the fork bomb starts if nothing stops it.
const BOMB_MAX: usize = 400;

pub(super) const SHORT_LIMIT: Duration = Duration::from_secs(2);
const CLUSTER_LIMIT: Duration = Duration::from_secs(6);
const START_LIMIT: Duration = Duration::from_secs(100);
const VAIN_LIMIT: Duration = Duration::from_millis(200);

/// Sleep time of tests that hang: longer than any of these runs.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

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
        end_limit: number(RUN_LIMIT_VARIABLE).map_or(usual.end_limit, |_| HANG_LIMIT),
        output_bytes_max: OUTPUT_BYTES_MAX,
    }
}

/// Sleeps when it is dropped, so that the unwinding of a failed test hangs.
struct Hanging;

impl Drop for Hanging {
    fn drop(&mut self) {
        thread::sleep(FOREVER);
    }
}

pub(super) fn panic_with_a_wrong_byte() {
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

fn stay_with_a_mount() {
    let disk = Disk::of_mib(1);
    fs::write(disk.path().join("file"), "").expect("an empty file needs no space");
    note("parent", &start_sleep().expect("sleep(1) is installed").id().to_string());
    thread::sleep(FOREVER);
}

fn time_out() {
    wait::wait_until("what never happens", VAIN_LIMIT, || None::<()>);
}

fn time_out_on_a_full_disk() {
    let mut file = File::create(env::temp_dir().join("ballast")).expect("an empty file needs no space");
    io::copy(&mut io::repeat(0), &mut file).expect_err("a write fails at the end");
    time_out();
}

/// Starts a demo and a benchmark, and changes the state of the machine as tests do that the runner kills.
fn hold_outside_objects() {
    for prefix in SHARED_MEMORY_PREFIXES {
        fs::write(format!("/dev/shm/{prefix}{}", std::process::id()), "").expect("an empty file needs no space");
    }
    note("worker", &std::process::id().to_string());
    let _setting = add_a_huge_page();
    let temporary = scratch::directory();
    let benchmark = start_farfork(&["bench", "fork", "--mib", "1", "--runs", "10000"], &temporary);
    let of_benchmark = || bench_directories::of_benchmark(benchmark.cast_signed()).pop();
    start_demo(&temporary);
    note("benchmark", &format!("bench-{benchmark}-0 {}", wait_for_cluster(of_benchmark).display()));
    note("parent", &start_sleep().expect("sleep(1) is installed").id().to_string());
    thread::sleep(FOREVER);
}

/// Fails while a demo runs, and drops the directory of the demo.
fn abandon_demo() {
    let temporary = scratch::directory();
    start_demo(&temporary);
    panic_with_a_wrong_byte();
}

/// Starts a demo, and waits until its cluster is complete.
fn start_demo(temporary: &TestDirectory) {
    let demo = start_farfork(&["demo", "agent", "--rounds", "100"], temporary);
    let of_demo = || Some(temporary.path().join(format!("farfork-demo-{demo}")));
    note("demo", &format!("demo-{demo} {}", wait_for_cluster(of_demo).display()));
}

fn start_farfork(arguments: &[&str], temporary: &TestDirectory) -> u32 {
    let mut command = Farfork::at(Path::new("/nonexistent")).command(arguments);
    command.env("TMPDIR", temporary.path()).env("FARFORK_PYTHON", programs::python());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary can be started").id()
}

/// Changes the machine's number of huge pages like `tests/resources/huge_setting.h`. Returns the locked setting.
fn add_a_huge_page() -> File {
    let mut setting = File::options().write(true).open(HUGE_PAGES).expect("root may change it");
    flock(&setting, FlockOperation::LockExclusive).expect("the file can be locked");
    let before = fs::read_to_string(HUGE_PAGES).expect("it can be read");
    fs::write(HUGE_PAGES_BEFORE, &before).expect("/run can be written");
    let pages: u64 = before.trim().parse().expect("a number");
    setting.write_all((pages + 1).to_string().as_bytes()).expect("root may change it");
    setting
}

/// Waits until a directory has a complete cluster. Returns the directory.
fn wait_for_cluster(directory: impl Fn() -> Option<PathBuf>) -> PathBuf {
    wait::wait_until("a cluster is complete", START_LIMIT, || {
        let found = directory()?;
        let state = fs::read_to_string(found.join("cluster/cluster.json")).ok()?;
        state.contains("\"complete\": true").then_some(found)
    })
}

/// Times out, unless it has noted `name` before.
fn time_out_once_as(name: &str) {
    if !directory().join(name).exists() {
        note(name, "");
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

pub(super) fn start_sleep() -> std::io::Result<Child> {
    Command::new("sleep").arg(FOREVER.as_secs().to_string()).spawn()
}

/// Writes a value for the test that started this binary.
pub(super) fn note(name: &str, text: &str) {
    // Renames the file into place: the other test polls for it, and must not read a part of it.
    let draft = directory().join(format!("{name}.new"));
    fs::write(&draft, text).expect("the directory can be written");
    fs::rename(draft, directory().join(name)).expect("the directory can be written");
}

pub(super) fn directory() -> PathBuf {
    env::var_os(DIRECTORY_VARIABLE).expect("a test of runs_are_contained sets it").into()
}
