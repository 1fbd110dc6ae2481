//! Threads wait on futexes and timers, and in calls with time limits, when their process is prepared. In the parent and in
//! each child, no wait fails, and none ends early by the clock that it counts with.

use std::fs;
use std::time::Duration;

use farfork_sys::pidfd;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_hundred_random_waits", |cluster| check_random_waits(cluster, 1..3, "50")),
    Test::shared("two_thousand_random_waits", |cluster| check_random_waits(cluster, 100..120, "100")).long(),
    Test::shared("a_sleep_that_was_stopped_before", stopped_sleep),
];

const SIGUSR1: i32 = 10;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Longest wait until a process is stopped.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Each number is a process, or a tree of two, whose threads wait. Children are restored with each strategy, on the owner's
/// node and on another one, and together.
fn check_random_waits(cluster: &Cluster, numbers: std::ops::Range<u64>, threads: &str) {
    for number in numbers {
        let mut parent = Parent::start(Program::Situation("waits_in_flight"), &[&number.to_string(), threads]);
        let seed = Seed::prepare(cluster.first(), &parent);
        let other = cluster.name(1);
        let payloads: Vec<String> = (0..8).map(|index| (50 + index).to_string()).collect();
        let mut children = Vec::new();
        for (payload, strategy) in payloads.iter().zip(["cow", "prefetch", "eager", "cache"]) {
            let options = ["--to", other, "--strategy", strategy];
            children.append(&mut seed.fork_detached(std::slice::from_ref(payload), &options));
        }
        // A zygote forks some of these.
        children.append(&mut seed.fork_detached(&payloads[4..], &["--to", &format!("{},{other}", cluster.name(0))]));
        let answers: Vec<u64> = (50..58).collect();
        seed.check_answers(&parent, &children, &answers);
        // The parent's waits have ended earlier than those of its children.
        parent.require_unharmed();
    }
}

/// A sleep that another process has stopped looks like an earlier sleep at the same place, whose end is known.
fn stopped_sleep(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("stopped_sleep"), &["4000"]);
    let process = pidfd::open(parent.pid()).expect("the parent lives");
    let signal = |number| pidfd::send_signal(&process, number).expect("the parent lives");
    drop(Seed::prepare(cluster.first(), &parent));
    parent.wait_for_ticks(200);
    signal(SIGUSR1);
    parent.wait_for_ticks(20);
    signal(SIGSTOP);
    wait::wait_until("the parent is stopped", STOP_LIMIT, || {
        let status = fs::read_to_string(format!("/proc/{}/status", parent.pid())).expect("the parent lives");
        status.contains("State:\tT").then_some(())
    });
    signal(SIGCONT);
    parent.wait_for_ticks(20);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 61, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}
