//! Slow nodes and links: children wait for their pages and continue, and none reads a wrong byte.

use std::process::Command;
use std::thread;
use std::time::Duration;

use farfork_sys::pidfd;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("children_run_over_a_slow_link", slow_link),
    Test::alone("children_run_on_after_daemon_and_pager_were_stopped", stopped_processes),
];

/// tc(8) arguments for the owner's node: 16 MiB take four seconds.
const SLOW_LINK: [&str; 7] = ["tbf", "rate", "32mbit", "burst", "64kb", "latency", "200ms"];

/// Time for which a process is stopped, as a live migration or swapping may stop a machine.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Longest wait until a daemon has logged that it was stopped.
const TOLD_LIMIT: Duration = Duration::from_secs(60);

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

fn slow_link() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    shape(&cluster, "add", &SLOW_LINK);
    let paged = seed.fork_detached(&["81 500".to_owned(), "82 500 calls".to_owned()], &["--to", cluster.name(1)]);
    let alone = ["--to", cluster.name(1), "--strategy", "cow", "--paused"];
    let settling = seed.fork_detached(&["83 0".to_owned()], &alone);
    cluster.first().json(&["settle", &settling[0].id]);
    cluster.first().json(&["unpause", &settling[0].id]);
    seed.check_answers(&parent, &[paged, settling].concat(), &[81, 82, 83]);
    shape(&cluster, "delete", &[]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Changes the queueing discipline (tc(8)) of the first node's link.
fn shape(cluster: &Cluster, what: &str, how: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.netns(0), "tc", "qdisc", what, "dev", "eth0", "root"]).args(how);
    let output = command.output().expect("ip and tc are installed: run scripts/setup.sh");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn stopped_processes() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &["256"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let payloads = ["84 3000".to_owned(), "85 3000 calls".to_owned()];
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    thread::sleep(Duration::from_millis(500));
    for pid in [cluster.daemon_pid(0), cluster.pager_pid(1)] {
        let process = pidfd::open(pid).expect("it lives");
        pidfd::send_signal(&process, SIGSTOP).expect("it lives");
        thread::sleep(STANDSTILL);
        pidfd::send_signal(&process, SIGCONT).expect("it lives");
    }
    let has_told = || cluster.standstills(0).iter().any(|line| line.contains("responds again"));
    wait::wait_until("the daemon logs that it was stopped", TOLD_LIMIT, || has_told().then_some(()));
    seed.check_answers(&parent, &children, &[84, 85]);
    cluster.wait_until_all_are_alive();
    let next = seed.fork_detached(&["86 100".to_owned()], &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &next, &[86]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
