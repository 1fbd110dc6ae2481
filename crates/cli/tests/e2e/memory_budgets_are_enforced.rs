//! Memory budgets of a node: a seed or child that does not fit into the budget is refused before it uses memory. The
//! refusal names the users of the budget. Accepted seeds and children continue.

use std::time::Duration;

use crate::harness::{Cluster, Farfork, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_seed_above_the_budget_is_refused", seed_above_budget),
    Test::alone("a_child_above_the_budget_is_refused", child_above_budget),
];

/// Memory of each parent, in MiB. Two of its seeds fit into `SEEDS_BOUND`, a third one does not.
const PARENT_MIB: &str = "32";
const SEEDS_BOUND: &str = "90MiB";

/// Longest wait until the image of a seed is written.
const SEAL_LIMIT: Duration = Duration::from_secs(120);

fn seed_above_budget() {
    let cluster = Cluster::start_with(1, &["--seed-memory", SEEDS_BOUND]);
    let node = cluster.first();
    let mut parent = Parent::start(Program::Waits, &[PARENT_MIB]);
    let pid = parent.pid_text();
    let first = Seed::prepare_with(node, &parent, &["--name", "first"]);
    let second = Seed::prepare(node, &parent);
    // Pages are counted when a seed is complete; inspect waits until then.
    let bytes = [&first, &second].map(|seed| node.json(&["inspect", seed.id()])["own_bytes_max"].as_u64());
    let bytes = bytes.map(|bytes| bytes.expect("a number"));
    assert!(bytes.iter().all(|bytes| (32 << 20..45 << 20).contains(bytes)), "{bytes:?}");
    let budget = &node.json(&["inspect", cluster.name(0)])["memory"];
    let all = bytes.iter().sum::<u64>();
    assert_eq!((&budget["seeds_bytes"], &budget["seeds_bytes_max"]), (&all.into(), &(90u64 << 20).into()));

    let refused = node.run_failing(&["prepare", &pid]);
    refused.require_mentions(&[
        &pid,
        "may need",
        "90.0 MiB",
        first.id(),
        "(first)",
        second.id(),
        "farfork drop",
        "--sealed",
    ]);
    assert_eq!(node.json(&["seeds"])["seeds"].as_array().map(Vec::len), Some(2), "the refused seed is listed");
    // A frozen parent is its own template, so its seed holds no further memory. Dropping the seed continues the parent.
    let frozen = Seed::prepare_with(node, &parent, &["--freeze"]);
    node.json(&["drop", frozen.id()]);

    node.json(&["drop", first.id()]);
    let sealed = Seed::prepare_with(node, &parent, &["--sealed"]);
    wait::wait_until("the seed is sealed, and holds no memory", SEAL_LIMIT, || {
        (node.json(&["inspect", sealed.id()])["own_bytes_max"] == 0).then_some(())
    });
    let third = Seed::prepare(node, &parent);
    for seed in [&second, &sealed, &third] {
        seed.fork_and_check(&parent, 1, &[]);
    }
    parent.require_unharmed();
    drop((first, second, sealed, third));
    assert!(cluster.stop().is_empty());
}

fn child_above_budget() {
    let cluster = Cluster::start_with(1, &["--child-memory", "256MiB", "--seed-memory-per-user", SEEDS_BOUND]);
    let node = cluster.first();
    let mut parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(node, &parent);
    let children = seed.fork_idle(2, &["--memory", "100MiB"]);
    let budget = node.json(&["inspect", cluster.name(0)])["memory"].clone();
    assert_eq!(
        (&budget["children_bytes"], &budget["children_bytes_max"]),
        (&(200u64 << 20).into(), &(256u64 << 20).into())
    );
    refuses(node, &seed, "57MiB");
    seed.fork_and_check(&parent, 1, &["--memory", "56MiB"]);
    seed.fork_and_check(&parent, 2, &[]);
    node.run(&["kill", "--signal", "KILL", &children[0].id]);
    node.run(&["wait", &children[0].id]);
    seed.fork_and_check(&parent, 3, &["--memory", "156MiB"]);
    refuses(node, &seed, "157MiB");
    node.run(&["kill", "--signal", "KILL", &children[1].id]);

    let large = Parent::start(Program::Waits, &["96"]);
    node.run_failing(&["prepare", &large.pid_text()]).require_mentions(&["user 0", "90.0 MiB"]);
    parent.require_unharmed();
    drop(seed);
    assert!(cluster.stop().is_empty());
}

fn refuses(node: &Farfork, seed: &Seed, memory: &str) {
    let amount = memory.replace("MiB", ".0 MiB");
    let refused = node.run_failing(&["fork", seed.id(), "--detach", "--memory", memory]);
    refused.require_mentions(&[seed.id(), &amount, "256.0 MiB", "--memory", "--to"]);
}
