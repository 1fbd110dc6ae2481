//! A cut link: children wait for pages while their node cannot reach the owner, and then continue.

use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, FailedCommand, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("while_children_fetch_pages", while_paging),
    Test::alone("while_a_fork_is_requested", while_forking),
    Test::alone("while_a_fork_waits_for_its_child", while_attached),
];

const PAGING_MS: u64 = 3000;
/// Time for which the link is cut: shorter than the fabric takes to give up on a page, longer than any single request.
const CUT: Duration = Duration::from_millis(1500);
/// Longest wait until a child runs, or until a fork reports that a node is lost.
const LOST_LIMIT: Duration = Duration::from_secs(60);

fn while_paging() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &["256"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers = [31, 32];
    let payloads: Vec<String> = numbers.iter().map(|number| format!("{number} {PAGING_MS}")).collect();
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    thread::sleep(Duration::from_millis(500));
    cluster.cut_link(1);
    thread::sleep(CUT);
    cluster.restore_link(1);
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// The error of a fork to an unreachable node names the node, within a time limit. When the link is restored, the node
/// serves again.
fn while_forking() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    cluster.cut_link(1);
    cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(1)]).require_mentions(&[cluster.name(1)]);
    cluster.restore_link(1);
    cluster.wait_until_all_are_alive();
    seed.fork_and_check(&parent, 33, &["--to", cluster.name(1)]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// A fork that waits for a child on a node that is lost names the node and a next step.
fn while_attached() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let attached = cluster.first().spawn(&["fork", seed.id(), "--to", cluster.name(1)]);
    wait::wait_until("the child runs", LOST_LIMIT, || {
        let listed = cluster.first().json(&["ps"]);
        listed["children"].as_array()?.iter().any(|child| child["state"] == "running").then_some(())
    });
    cluster.cut_link(1);
    let failed = FailedCommand::of(wait::wait_with_output(attached, "the attached fork", LOST_LIMIT));
    failed.require_mentions(&["node `n2` has been silent for", "it may still run: see `farfork ps`"]);
    cluster.restore_link(1);
    cluster.wait_until_all_are_alive();
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
