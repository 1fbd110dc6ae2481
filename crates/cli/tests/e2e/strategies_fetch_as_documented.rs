//! Each paging strategy fetches pages as documented. The counters of `farfork inspect` show this.

use crate::harness::{Cluster, Parent, Program, Seed, StartedChild};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("eager_children_have_all_pages_before_they_run", eager),
    Test::shared("cow_fetches_page_by_page", cow),
    Test::shared("contradicting_strategies_are_refused", others),
];

const MEMORY_MIB: &str = "16";
/// How long a child touches memory, in milliseconds.
const PAGING_MS: u64 = 300;

/// A child with `eager` runs on another node without a fault, even after its seed was dropped.
fn eager(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = ["--to", cluster.name(1), "--strategy", "eager", "--paused"];
    let children = seed.fork_detached(&[format!("56 {PAGING_MS}")], &options);
    let id = children[0].id.as_str();
    let standing = cluster.first().json(&["inspect", id]);
    assert_eq!((&standing["settled"], &standing["memory"]["remote_bytes"]), (&true.into(), &0.into()), "{standing}");
    assert!(standing["pager"]["bytes_fetched"].as_u64() > Some(16 << 20), "{standing}");
    cluster.first().json(&["drop", "--force", seed.id()]);
    cluster.first().json(&["unpause", id]);
    seed.check_answers(&parent, &children, &[56]);
    let ended = pager_of(cluster, &children[0]);
    assert_eq!(ended["faults"], standing["pager"]["faults"], "the child had faults after its start: {ended}");
}

/// With `cow`, each page is fetched alone, for the fault that needs it.
fn cow(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&[format!("57 {PAGING_MS}")], &["--to", cluster.name(1), "--strategy", "cow"]);
    seed.check_answers(&parent, &children, &[57]);
    let pager = pager_of(cluster, &children[0]);
    let count = |name: &str| pager[name].as_u64().unwrap_or_else(|| panic!("no {name} in {pager}"));
    assert!(count("pages_fetched") > 0, "{pager}");
    assert_eq!(count("bytes_fetched"), count("pages_fetched") * 4096, "{pager}");
    assert_eq!(count("faults_missing"), count("round_trips"), "not every round trip was for a fault: {pager}");
    assert_eq!(count("round_trips"), count("pages_fetched"), "not every round trip fetched one page: {pager}");
}

fn others(cluster: &Cluster) {
    let ended = cluster.first().run(&["fork", "any", "--strategy", "cow,eager"]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("exclude each other"), "{}", ended.stderr);
}

fn pager_of(cluster: &Cluster, child: &StartedChild) -> serde_json::Value {
    cluster.first().json(&["inspect", &child.id])["pager"].clone()
}
