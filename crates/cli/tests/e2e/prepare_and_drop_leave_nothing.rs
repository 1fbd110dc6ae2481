//! Prepare and drop leave nothing: after a thousand rounds daemon and parent have no more memory, descriptors, threads or
//! children than after the first few.

use std::fs;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, deadline};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[Test::shared("a_thousand_rounds", a_thousand_rounds).within(limit)];

const ROUNDS: usize = 1000;
/// Until connections and the allocator have what they keep: each of its arenas grows to what its threads once needed at a time,
/// and there are eight for each processor. Of 3,600 rounds, memory grew in the first 1,600 and stood still from there.
const WARM_UP_ROUNDS: usize = 500;
/// How often so many rounds are looked at: what is forgotten in each grows every time, and what is only kept stands still once. A
/// busy machine has other threads run at a time, which use arenas that were not used before.
const LOOKS_MAX: usize = 3;
/// A tenth of a page for each round: less than one record that is forgotten each time.
const MEMORY_GROWTH_KB_MAX: u64 = 400;
/// Connections that come and go by themselves.
const COUNT_SLACK: usize = 4;
/// For a command, ten times what one takes on a machine that does nothing else: thousands are run.
const COMMAND_LIMIT: Duration = Duration::from_millis(200);
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// What could grow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Usage {
    memory_kb: u64,
    descriptors: usize,
    threads: usize,
    children: usize,
}

fn limit() -> Duration {
    COMMAND_LIMIT * (2 * (WARM_UP_ROUNDS + LOOKS_MAX * ROUNDS)) as u32 + SETTLE_LIMIT * LOOKS_MAX as u32
}

fn a_thousand_rounds(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let pids = [cluster.daemon_pid(0), parent.pid()];
    rounds(cluster, &parent, WARM_UP_ROUNDS);
    let mut told = Vec::new();
    let stand_still = (0..LOOKS_MAX).any(|_| {
        let before = pids.map(usage);
        rounds(cluster, &parent, ROUNDS);
        let settled = deadline::within(SETTLE_LIMIT, || {
            let after = pids.map(usage);
            before.iter().zip(&after).all(|(before, after)| has_not_grown(before, after)).then_some(())
        });
        told.push([before, pids.map(usage)]);
        settled.is_some()
    });
    assert!(stand_still, "daemon and parent grew with each {ROUNDS} rounds: {told:#?}");
    parent.require_unharmed();
}

fn rounds(cluster: &Cluster, parent: &Parent, count: usize) {
    let pid = parent.pid_text();
    for _ in 0..count {
        let said = cluster.first().json(&["prepare", &pid]);
        cluster.first().json(&["drop", said["seed"].as_str().expect("a seed")]);
    }
}

fn has_not_grown(before: &Usage, after: &Usage) -> bool {
    after.memory_kb <= before.memory_kb + MEMORY_GROWTH_KB_MAX
        && after.descriptors <= before.descriptors + COUNT_SLACK
        && after.threads <= before.threads + COUNT_SLACK
        && after.children <= before.children + COUNT_SLACK
}

fn usage(pid: i32) -> Usage {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_else(|| panic!("{key} of {pid}"))
    };
    let count = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).expect("the process lives").count();
    let children = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let children = children.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    Usage {
        memory_kb: number("RssAnon:"),
        descriptors: count("fd"),
        threads: count("task"),
        children: children.map(|line| line.split_whitespace().count()).sum(),
    }
}
