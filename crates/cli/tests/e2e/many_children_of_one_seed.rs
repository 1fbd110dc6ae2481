//! Many children of one seed: each is its own, each right, and none costs the daemon more than two descriptors.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, deadline};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("two_hundred_over_two_nodes_twenty_at_once", two_hundred),
    Test::shared("at_most_two_descriptors_each", descriptors),
    Test::alone("from_a_pool_of_one", small_pool),
];

const ROUNDS: u64 = 10;
const AT_ONCE: u64 = 20;
const DESCRIPTORS_EACH_MAX: usize = 2;

/// For a daemon to let go of what belonged to children that have ended.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Connections to other nodes and the like that come and go by themselves.
const DESCRIPTORS_SLACK: usize = 8;

fn two_hundred(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::of(cluster.first(), &parent);
    let to = cluster.names(&[1, 2]);
    let mut ids = BTreeSet::new();
    for round in 0..ROUNDS {
        let numbers: Vec<u64> = (round * AT_ONCE..(round + 1) * AT_ONCE).collect();
        let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let children = seed.fork_detached(&payloads, &["--to", &to]);
        let on_second = children.iter().filter(|child| child.node == cluster.name(1)).count() as u64;
        assert_eq!(on_second, AT_ONCE / 2, "children are spread over both nodes");
        seed.check_answers(&parent, &children, &numbers);
        ids.extend(children.into_iter().map(|child| child.id));
    }
    assert_eq!(ids.len() as u64, ROUNDS * AT_ONCE, "every child has an id of its own");
    parent.require_unharmed();
}

fn descriptors(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::of(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    let before = cluster.descriptors(1);

    let children = seed.fork_idle(AT_ONCE as usize, &["--to", cluster.name(1)]);
    // A container that is being built is a copy of the daemon for some microseconds.
    deadline::until("no process of the node has more descriptors than its children need", SETTLE_LIMIT, || {
        let is_allowed = |(process, count): (String, usize)| {
            let had = before.get(&process).copied().unwrap_or(0);
            count <= had + children.len() * DESCRIPTORS_EACH_MAX + DESCRIPTORS_SLACK
        };
        cluster.descriptors(1).into_iter().all(is_allowed).then_some(())
    });

    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
    deadline::until("descriptors of ended children are closed", SETTLE_LIMIT, || {
        let after = cluster.descriptors(1);
        let is_back = |(process, count): (&String, &usize)| {
            after.get(process).is_none_or(|now| *now <= count + DESCRIPTORS_SLACK)
        };
        before.iter().all(is_back).then_some(())
    });
    parent.require_unharmed();
}

/// More children at once than containers that wait: they wait their turn.
fn small_pool() {
    let cluster = Cluster::start_with(2, &["--pool", "1"]);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::of(cluster.first(), &parent);
    let numbers: Vec<u64> = (0..AT_ONCE).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
