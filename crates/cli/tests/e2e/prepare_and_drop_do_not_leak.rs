//! Many rounds of prepare and drop do not increase the memory, descriptors, threads or children of daemon and parent.

use std::fs;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("in_two_hundred_rounds", |cluster| nothing_grows(cluster, &SHORT)).within(|| limit(&SHORT)),
    Test::shared("in_a_thousand_rounds", |cluster| nothing_grows(cluster, &LONG)).long(),
];

/// Numbers of rounds of prepare and drop: before the first measurement, and between two measurements.
struct Campaign {
    warm_up_rounds: usize,
    rounds: usize,
    memory_growth_kb_max: u64,
}

/// The permitted growth is less than a page for each round, so a leak of one page per round is found.
const SHORT: Campaign = Campaign { warm_up_rounds: 100, rounds: 200, memory_growth_kb_max: 400 };

/// The permitted growth is a tenth of a page for each round, less than a leak of one record per round. The warm-up
/// lasts until connections and the allocator have all memory that they keep. Each malloc arena grows to the largest
/// amount that its threads needed at once. There are eight arenas for each CPU. In a run of 3,600 rounds, memory grew
/// in the first 1,600 and then stayed the same.
const LONG: Campaign = Campaign { warm_up_rounds: 500, rounds: 1000, memory_growth_kb_max: 400 };

/// Maximum number of measurements. A leak grows in each of them, but memory that the allocator keeps stops growing. On a
/// busy machine, growth can start again when more threads run at once and use new arenas.
const LOOKS_MAX: usize = 3;
/// Permitted growth of the other counts. The number of connections varies.
const COUNT_SLACK: usize = 4;
/// Time limit of each command on average: ten times its duration on an idle machine.
const COMMAND_LIMIT: Duration = Duration::from_millis(200);
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// The resources of a process that could grow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Usage {
    memory_kb: u64,
    descriptors: usize,
    threads: usize,
    children: usize,
}

fn limit(campaign: &Campaign) -> Duration {
    COMMAND_LIMIT * (2 * (campaign.warm_up_rounds + LOOKS_MAX * campaign.rounds)) as u32
        + SETTLE_LIMIT * LOOKS_MAX as u32
}

fn nothing_grows(cluster: &Cluster, campaign: &Campaign) {
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let pids = [cluster.daemon_pid(0), parent.pid()];
    let Campaign { rounds: count, memory_growth_kb_max, .. } = *campaign;
    rounds(cluster, &parent, campaign.warm_up_rounds);
    let mut told = Vec::new();
    let stand_still = (0..LOOKS_MAX).any(|_| {
        let before = pids.map(usage);
        rounds(cluster, &parent, count);
        let settled = wait::poll_within(SETTLE_LIMIT, || {
            let after = pids.map(usage);
            before
                .iter()
                .zip(&after)
                .all(|(before, after)| has_not_grown(before, after, memory_growth_kb_max))
                .then_some(())
        });
        told.push([before, pids.map(usage)]);
        settled.is_some()
    });
    assert!(stand_still, "daemon or parent grew in each {count} rounds: {told:#?}");
    parent.require_unharmed();
}

fn rounds(cluster: &Cluster, parent: &Parent, count: usize) {
    let pid = parent.pid_text();
    for _ in 0..count {
        let said = cluster.first().json(&["prepare", &pid]);
        cluster.first().json(&["drop", said["seed"].as_str().expect("a seed")]);
    }
}

fn has_not_grown(before: &Usage, after: &Usage, memory_growth_kb_max: u64) -> bool {
    after.memory_kb <= before.memory_kb + memory_growth_kb_max
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
