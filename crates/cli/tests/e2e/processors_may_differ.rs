//! A node refuses the children of a seed if its CPU saves more or less register state than the CPU of the seed's node.
//! The error names the difference, and `--to any` does not choose the node. All nodes run on one machine: `farfork node
//! --xcr0` sets a node's mask.

use farfork_sys::cpu;

use crate::harness::{Cluster, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_processor_with_more_state_is_refused_and_not_chosen", || {
        other_processor(|mask| mask | UNNAMED, &["XCR0 bit 40", "no space"])
    }),
    Test::alone("a_processor_with_less_state_is_refused_and_not_chosen", || {
        other_processor(|mask| mask & !AVX, &["state that this node lacks (AVX"])
    }),
];

/// State components, as bits of XCR0.
const AVX: u64 = 1 << 2;
const UNNAMED: u64 = 1 << 40;

/// Number of children: more than the nodes, so that each permitted node is chosen.
const CHILDREN: usize = 4;

fn other_processor(other: impl Fn(u64) -> u64, words: &[&str]) {
    let mask = other(cpu::extended_state().expect("the machine has XSAVE").xcr0);
    // The node names are the same in each cluster.
    let cluster = Cluster::start_with(3, &["--xcr0", &format!("n2={mask:#x}")]);
    assert_eq!(cluster.name(1), "n2");
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(1)]).require_mentions(words);
    let asked_elsewhere = cluster.node(1).run_failing(&["fork", seed.id()]);
    asked_elsewhere.require_mentions(words);
    for asked in [0, 2] {
        let payloads = vec!["1".to_owned(); CHILDREN];
        let farfork = cluster.node(asked);
        let count = CHILDREN.to_string();
        let started = farfork.json(&["fork", seed.id(), "--to", "any", "--detach", "-n", &count]);
        let nodes: Vec<&str> =
            started["children"].as_array().expect("a list").iter().filter_map(|child| child["node"].as_str()).collect();
        assert_eq!(nodes.len(), payloads.len(), "{started}");
        assert!(
            !nodes.contains(&cluster.name(1)) && nodes.contains(&cluster.name(0)) && nodes.contains(&cluster.name(2)),
            "{nodes:?}"
        );
    }
    parent.require_unharmed();
}
