//! Limits of a child: memory, CPU time, processes and run time. A child that exceeds a limit is killed or refused, and
//! its recorded end names the limit. Children without limits are not affected.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use farfork_sys::pidfd;
use farfork_sys::process::ProcStat;
use serde_json::Value;

use crate::harness::{Cluster, Farfork, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("in_memory", in_memory),
    Test::shared("in_processor_time", in_processor_time),
    Test::shared("in_processes", in_processes),
    Test::shared("in_run_time", in_run_time),
    Test::shared("the_end_of_a_child_is_reported_when_its_init_is_killed_too", with_container),
    Test::shared("a_child_that_traces_its_init_is_killed", first_process_traced),
    Test::alone("in_memory_while_no_daemon_runs", without_daemon),
    Test::shared("limits_below_the_minimum_are_refused", below_minimum),
];

/// Memory of the parent, in MiB. A child touches all of it before it answers.
const PARENT_MIB: &str = "128";

const SIGKILL: i32 = 9;
const SIGUSR2: i32 = 12;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Longest wait until a child that exceeds its limit is killed.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A process of a trusted child may trace init, the first process of its container. A stopped init reaps no process and
/// reports no exit.
fn first_process_traced(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("tracing"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = cluster.name(1);
    let has_traced = |child: &StartedChild| cluster.first().run(&["logs", &child.id]).stdout.contains("traced");
    let is_over = |child: &StartedChild| cluster.first().json(&["inspect", &child.id])["state"] == "exited";
    // On a slow machine the time limit may expire before the child traces.
    let start = |options: &[&str]| {
        wait::wait_until("the first process is stopped", END_LIMIT, || {
            let child = seed.fork_detached(&["7 traces".to_owned()], &[&["--to", to], options].concat()).remove(0);
            wait::wait_until("the child traces init, or its time limit has expired", END_LIMIT, || {
                (has_traced(&child) || is_over(&child)).then_some(())
            });
            has_traced(&child).then_some(child)
        })
    };
    let end = |child: &StartedChild| {
        let waited = cluster.first().run(&["wait", "--timeout", WAIT_TIMEOUT, &child.id]);
        format!("{}{}", waited.stdout, waited.stderr)
    };
    let timed = start(&["--timeout", "3s"]);
    let told = end(&timed);
    assert!(told.contains("killed: it had run for its 3s"), "{told}");
    let killed = start(&[]);
    cluster.first().json(&["kill", "--signal", "KILL", &killed.id]);
    let told = end(&killed);
    assert!(told.contains("SIGKILL"), "{told}");
    cluster.first().json(&["drop", seed.id()]);
    parent.require_unharmed();
}

fn in_memory(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &[PARENT_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = cluster.name(1);
    let limited = seed.fork_detached(&["1".to_owned()], &["--to", to, "--memory", "64MiB"]);
    let free = seed.fork_detached(&["2".to_owned()], &["--to", to]);
    let id = limited[0].id.as_str();

    let waited = cluster.first().run(&["wait", id]);
    let told = "killed: it needed more than its 64.0 MiB of memory";
    assert!(waited.stdout.contains(told), "{}{}", waited.stdout, waited.stderr);
    let listed = cluster.node(2).run(&["ps"]).stdout;
    assert!(listed.lines().any(|line| line.contains(id) && line.contains(told)), "{listed}");
    let said = cluster.first().json(&["inspect", id]);
    assert_eq!(said["memory_bytes_max"], 64 << 20, "{said}");
    assert_eq!(said["limit"], told.trim_start_matches("killed: "), "{said}");
    assert!(said["exit_code"] == 137 || said["exit_code"] == 135, "neither SIGKILL nor SIGBUS: {said}");

    let attached = seed.fork_attached("1", &["--to", to, "--memory", "64MiB"]);
    assert!(attached.stderr.contains(told), "{}", attached.stderr);

    seed.check_answers(&parent, &free, &[2]);
    let unlimited = cluster.first().json(&["inspect", &free[0].id]);
    assert!(unlimited["limit"].is_null() && unlimited["memory_bytes_max"].is_null(), "{unlimited}");
    seed.fork_and_check(&parent, 3, &["--to", to, "--memory", "512MiB"]);
    parent.require_unharmed();
}

/// Opens a child's process and init, the first process of its container.
fn process_and_init(child: &StartedChild) -> [OwnedFd; 2] {
    living_process_and_init(child).expect("it lives")
}

/// As `process_and_init`. Returns `None` if one of the processes has ended.
fn living_process_and_init(child: &StartedChild) -> Option<[OwnedFd; 2]> {
    let init = ProcStat::read(child.pid).ok()?.parent;
    Some([pidfd::open(child.pid).ok()?, pidfd::open(init).ok()?])
}

/// Without a daemon, the container of a child that exceeds its limit ends with the child, before the next daemon
/// starts.
fn without_daemon() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("generations"), &[PARENT_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = ["--to", cluster.name(1), "--memory", "64MiB", "--strategy", "cow"];
    let limited = seed.fork_idle(1, &options).remove(0);
    let [child, init] = process_and_init(&limited);
    cluster.kill_daemon(1);
    // SIGUSR2 makes the child check all of its pages.
    pidfd::send_signal(&child, SIGUSR2).expect("the child lives");
    assert!(pidfd::wait_exit(&init, END_LIMIT).expect("poll works"), "the child was not killed");
    cluster.restart_daemon(1);
    let said = cluster.node(1).json(&["inspect", &limited.id]);
    assert_eq!(said["limit"], "it needed more than its 64.0 MiB of memory", "{said}");
    assert!(said["exit_code"] == 137 || said["exit_code"] == 135, "{said}");
    parent.require_unharmed();
}

fn in_processor_time(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let limited = seed.fork_idle(1, &["--cpus", "0.25"]);
    let free = seed.fork_idle(1, &[]);
    assert_eq!(quota_us(limited[0].pid), Some(25_000));
    assert_eq!(quota_us(free[0].pid), None);
    assert_eq!(cluster.first().json(&["inspect", &limited[0].id])["cpus_max"], 0.25);
    kill(cluster.first(), &limited[0].id);
    let said = cluster.first().json(&["inspect", &limited[0].id]);
    assert!(said["signal"] == 9 && said["limit"].is_null(), "killed by a signal, but recorded with a limit: {said}");
    kill(cluster.first(), &free[0].id);
    parent.require_unharmed();
}

/// Runs a child that forks as often as it can. All its descendants do the same. Returns the number of tasks at which the
/// kernel refused all further forks with EAGAIN.
fn multiply(seed: &Seed, options: &[&str]) -> u64 {
    let ended = seed.fork_attached("7 multiply", options);
    assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
    let told = ended.stdout.lines().find_map(|line| line.strip_prefix("refused with EAGAIN at "));
    told.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("fork(2) was not refused: {}", ended.stdout))
}

fn in_processes(cluster: &Cluster) {
    const UNTRUSTED: u64 = 1024;
    let mut parent = Parent::start(Program::Situation("fork_bomb"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = ["--to", cluster.name(1)];
    let beside = &seed.fork_idle(1, &to)[0];
    assert_eq!(multiply(&seed, &[&to[..], &["--processes", "20"]].concat()), 20);
    assert_eq!(multiply(&seed, &[&to[..], &["--untrusted"]].concat()), UNTRUSTED);
    assert_eq!(multiply(&seed, &[&to[..], &["--untrusted", "--processes", "30"]].concat()), 30);
    seed.fork_and_check(&parent, 3, &to);

    let told = |options: &[&str]| {
        let child = &seed.fork_idle(1, &[&to[..], options].concat())[0];
        cluster.first().json(&["inspect", &child.id])["processes_max"].clone()
    };
    assert_eq!((told(&[]), told(&["--processes", "20"])), (Value::Null, 20.into()));
    assert_eq!(told(&["--untrusted"]), UNTRUSTED);
    assert_eq!(cluster.first().json(&["inspect", &beside.id])["state"], "running", "the other child does not run");
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--processes", "1"]);
    refused.require_mentions(&["has 2 processes and threads", "may have 1", "--processes"]);
    parent.require_unharmed();
}

fn in_run_time(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(1, &["--timeout", "200ms"]);
    cluster.first().run(&["wait", &children[0].id]);
    let said: Value = cluster.first().json(&["inspect", &children[0].id]);
    assert_eq!(said["limit"], "it had run for its 200ms", "{said}");
    let attached = cluster.first().run(&["fork", seed.id(), "--timeout", "200ms"]);
    assert_eq!(attached.status.code(), Some(137), "{}", attached.stderr);
    let [only] = attached.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", attached.stderr) };
    assert!(only.starts_with("farfork: child ") && only.ends_with(": killed: it had run for its 200ms"), "{only}");
    parent.require_unharmed();
}

/// The kernel may kill a container's init before init has reported the child's exit. In this test, the test kills init.
fn with_container(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    // On a slow machine, the child's time limit may expire before its container is stopped. Then another child is
    // started.
    let halted = |options: &[&str]| {
        let child = seed.fork_idle(1, options).remove(0);
        let [process, init] = living_process_and_init(&child)?;
        pidfd::send_signal(&init, SIGSTOP).ok()?;
        if pidfd::wait_exit(&process, Duration::ZERO).expect("poll works") {
            // init may have ended too.
            let _ = pidfd::send_signal(&init, SIGCONT);
            return None;
        }
        Some((child, process, init))
    };
    let end = |options: &[&str], deed: &dyn Fn(&str)| {
        let (child, process, init) =
            wait::wait_until("the child's container is stopped", END_LIMIT, || halted(options));
        deed(&child.id);
        assert!(pidfd::wait_exit(&process, END_LIMIT).expect("poll works"), "the child was not killed");
        pidfd::send_signal(&init, SIGKILL).expect("init is stopped");
        cluster.first().run(&["wait", &child.id]);
        cluster.first().json(&["inspect", &child.id])
    };
    let asked = end(&[], &|id| drop(cluster.first().json(&["kill", "--signal", "KILL", id])));
    assert!(asked["signal"] == SIGKILL && asked["limit"].is_null(), "{asked}");
    let overdue = end(&["--timeout", "1s"], &|_| ());
    assert!(overdue["signal"] == SIGKILL && overdue["limit"] == "it had run for its 1s", "{overdue}");
    parent.require_unharmed();
}

fn below_minimum(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let farfork = cluster.first();
    farfork
        .run_failing(&["fork", seed.id(), "--detach", "--memory", "4KiB"])
        .require_mentions(&["memory limit", "1.0 MiB"]);
    farfork
        .run_failing(&["fork", seed.id(), "--detach", "--cpus", "0.001"])
        .require_mentions(&["processor limit", "0.01"]);
    assert_eq!(farfork.run(&["fork", seed.id(), "--cpus", "0"]).status.code(), Some(2));
    parent.require_unharmed();
}

fn kill(farfork: &Farfork, id: &str) {
    farfork.run(&["kill", id, "--signal", "KILL"]);
    farfork.run(&["wait", id]);
}

/// Returns the CPU time that the control group of a process may use in each tenth of a second; `None` if unlimited.
fn quota_us(pid: i32) -> Option<u64> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the child lives");
    let group = |prefix: &str, line: &str| {
        let path =
            line.split_once("::").or_else(|| line.split_once(":cpu:")).or_else(|| line.split_once(":cpu,cpuacct:"));
        path.map(|(_, path)| PathBuf::from(format!("{prefix}{path}")))
    };
    let prefixes = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu"];
    let groups = prefixes.iter().flat_map(|prefix| table.lines().filter_map(|line| group(prefix, line)));
    let files = groups.flat_map(|group| [group.join("cpu.max"), group.join("cpu.cfs_quota_us")]);
    let text = files.filter_map(|file| fs::read_to_string(file).ok()).next().expect("a group that limits CPU time");
    text.split_whitespace().next().and_then(|first| first.parse().ok())
}
