//! Nodes whose machines differ in more than their network: in the clock, in features of the kernel, and in the control group
//! in which the daemon is started. All nodes run on one machine: its answers are changed for one process, or refused by a
//! seccomp filter.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::{self, CgroupVersion, DAEMON_LEAF};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, Cluster, Farfork, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("in_their_clocks", clocks),
    Test::alone("in_restartable_sequences", no_rseq),
    Test::shared("in_the_control_of_the_time_stamp_counter", no_tsc_control),
    Test::alone("in_the_control_group_of_their_daemon", service_group),
];

/// Time by which the clock of one node is ahead.
const AHEAD_SECONDS: u64 = 3600;
/// Longest age of an object that a test has just made.
const AGE_MAX_MS: u64 = 300_000;
/// Longest wait until a daemon is ready, or has ended.
const DAEMON_LIMIT: Duration = Duration::from_secs(60);

/// Ages are the same on each node, and have the order of the starts.
fn clocks() {
    let directory = scratch::directory();
    let library = path_of(Program::Preload("clock_ahead"));
    let script = format!(
        "case \" $* \" in *' --name n2 '*) export CLOCK_AHEAD_SECONDS={AHEAD_SECONDS} LD_PRELOAD={};; esac\n\
         exec {BINARY} \"$@\"",
        library.display()
    );
    let cluster = Cluster::start_wrapped(&write_script(&directory, &script), 2);
    let listed = cluster.first().json(&["nodes"]);
    let ahead_ms = listed["nodes"][1]["clock_difference_ms"].as_i64().unwrap_or(0);
    assert!(ahead_ms.unsigned_abs().abs_diff(AHEAD_SECONDS * 1000) < AGE_MAX_MS, "the clocks are equal: {listed}");

    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let second_seed = Seed::prepare(cluster.node(1), &parent);
    let child = |node: usize| seed.fork_idle(1, &["--to", cluster.name(node), "--paused"]).remove(0).id;
    let children = [child(1), child(0)];
    for farfork in [cluster.first(), cluster.node(1)] {
        let listed = farfork.json(&["ps"]);
        let started: Vec<&str> = ids(&listed["children"], "child");
        assert_eq!(started, [&*children[0], &*children[1]], "the order of the starts: {listed}");
        require_young(&listed["children"], "started_unix_ms");
        let listed = farfork.json(&["seeds"]);
        assert_eq!(ids(&listed["seeds"], "seed"), [seed.id(), second_seed.id()], "{listed}");
        require_young(&listed["seeds"], "created_unix_ms");
    }
    for child in &children {
        cluster.first().json(&["kill", "--signal", "KILL", child]);
    }
    parent.require_unharmed();
    drop((seed, second_seed));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn ids<'a>(objects: &'a Value, key: &str) -> Vec<&'a str> {
    objects.as_array().expect("a list").iter().map(|object| object[key].as_str().expect("an id")).collect()
}

/// Requires that all objects are young, although the timestamps of two of them are an hour apart.
fn require_young(objects: &Value, timestamp: &str) {
    let objects = objects.as_array().expect("a list");
    let times = || objects.iter().filter_map(|object| object[timestamp].as_u64());
    let spread_ms = times().max().unwrap_or(0) - times().min().unwrap_or(0);
    assert!(spread_ms.abs_diff(AHEAD_SECONDS * 1000) < AGE_MAX_MS, "{objects:?}");
    let is_young = |object: &Value| object["age_ms"].as_u64().is_some_and(|age_ms| (1..AGE_MAX_MS).contains(&age_ms));
    assert!(objects.iter().all(is_young), "{objects:?}");
}

/// The kernel of a node has no restartable sequences (CONFIG_RSEQ), so a tracer cannot ask for registrations.
fn no_rseq() {
    let directory = scratch::directory();
    let launcher = path_of(Program::Situation("missing_feature"));
    let script = format!("exec {} rseq {BINARY} \"$@\"", launcher.display());
    let cluster = Cluster::start_wrapped(&write_script(&directory, &script), 2);
    for program in [Program::Waits, Program::Threads] {
        let mut parent = Parent::start(program, &["4"]);
        let seed = Seed::prepare(cluster.first(), &parent);
        seed.fork_and_check(&parent, 5, &["--to", cluster.name(1)]);
        parent.require_unharmed();
    }
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// The kernel cannot say whether a thread may read the time stamp counter: on such a kernel, each thread may.
fn no_tsc_control(cluster: &Cluster) {
    for program in [Program::Waits, Program::Threads] {
        let mut command = Command::new(path_of(Program::Situation("missing_feature")));
        command.arg("tsc").arg(path_of(program)).arg("4");
        let mut parent = Parent::start_command(&mut command);
        let seed = Seed::prepare(cluster.first(), &parent);
        seed.fork_and_check(&parent, 6, &["--to", cluster.name(1)]);
        parent.require_unharmed();
    }
}

/// A service manager has started the daemon in a group of its own: what the daemon starts is below that group.
fn service_group() {
    let directory = scratch::directory();
    let service = ServiceGroup::create();
    let run_dir = directory.path().join("run");
    let mut daemon = service.start_daemon(&run_dir);
    let farfork = Farfork::at(&run_dir.join("node.sock"));
    wait::wait_until("the daemon listens", DAEMON_LIMIT, || UnixStream::connect(farfork.socket()).ok().map(drop));
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(&farfork, &parent);
    let child = seed.fork_idle(1, &["--paused"]).remove(0);
    assert_eq!(service.group_of(daemon.id().cast_signed()), Path::new(DAEMON_LEAF));
    let group = service.group_of(child.pid);
    assert!(group.starts_with("farfork"), "the child is in {}", group.display());
    let kind = fs::read_to_string(service.path.join("cgroup.type")).expect("a group");
    assert_eq!(kind.trim(), "domain");

    farfork.json(&["kill", "--signal", "KILL", &child.id]);
    drop(seed);
    kill_process(Pid::from_child(&daemon), Signal::TERM).expect("it runs");
    assert!(wait::wait_exit(&mut daemon, "the daemon", DAEMON_LIMIT).success());
    parent.require_unharmed();
    // Processes that were killed may still be ending.
    let is_removed = || fs::remove_dir(&service.path).ok();
    wait::wait_until("the daemon has left no group and no process", DAEMON_LIMIT, is_removed);
}

/// A group of the unified hierarchy, as a service has it.
struct ServiceGroup {
    path: PathBuf,
}

impl ServiceGroup {
    fn create() -> Self {
        let hierarchies = hierarchy::mounted_hierarchies().expect("/proc is mounted");
        let unified = hierarchies.into_iter().find(|hierarchy| hierarchy.version == CgroupVersion::V2);
        let path = unified.expect("a unified hierarchy").own.join("farfork-test-service");
        cgroup::create(&path).expect("the group can be made");
        Self { path }
    }

    /// Starts a node's daemon in the group.
    fn start_daemon(&self, run_dir: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.path);
        command.args([BINARY, "node", "--name", "alone", "--listen", "127.0.0.1:0", "--insecure", "--run-dir"]);
        command.arg(run_dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("a shell")
    }

    /// The group of a process in the unified hierarchy, from this group on.
    fn group_of(&self, pid: i32) -> PathBuf {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
        let path = text.lines().find_map(|line| line.strip_prefix("0::")).expect("a unified hierarchy");
        let name = self.path.file_name().expect("a name").to_str().expect("UTF-8");
        let below = path.split_once(&format!("/{name}/")).unwrap_or_else(|| panic!("{pid} is in {path}"));
        PathBuf::from(below.1)
    }
}

fn path_of(program: Program) -> PathBuf {
    program.command().get_program().into()
}

/// Writes an executable shell script.
fn write_script(directory: &TestDirectory, text: &str) -> PathBuf {
    let path = directory.path().join("farfork-wrapper");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a small file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}
