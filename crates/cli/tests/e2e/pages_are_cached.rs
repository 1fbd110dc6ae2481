//! A node keeps the pages of a seed for the seed's next child. The recorded working set speeds up the next child on any
//! node. `farfork prewarm` gives a node both before its first child.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, Parent, Program, Seed, StartedChild, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("the_next_child_fetches_no_page_over_the_network", next_child_uses_cache),
    Test::shared("pages_of_a_dropped_seed_leave_the_cache", dropped_seeds_leave),
    Test::shared("a_recorded_working_set_saves_nine_faults_in_ten", |cluster| {
        recorded_sets_save_faults(cluster, child_with_set)
    }),
    Test::shared("a_recorded_working_set_saves_faults_of_a_child_started_at_once", |cluster| {
        recorded_sets_save_faults(cluster, child_at_once)
    })
    .long(),
    Test::shared("a_working_set_recorded_by_default_saves_nine_faults_in_ten", default_sets_save_faults),
    Test::shared("the_next_seed_inherits_the_working_set", |cluster| sets_are_inherited(cluster, child_with_set)),
    Test::shared("an_inherited_working_set_saves_faults_of_a_child_started_at_once", |cluster| {
        sets_are_inherited(cluster, child_at_once)
    })
    .long(),
    Test::shared("a_prewarmed_node_serves_its_first_child_from_the_cache", nodes_are_prewarmed),
    Test::alone("the_cache_keeps_its_limit_when_pager_and_daemon_are_killed", within_a_limit),
];

const MEMORY_MIB: &str = "16";
/// Number of pages that each child touches, one by one in random order.
const PAGES: u64 = 4096;
/// Time in which a child touches `PAGES` pages, in milliseconds.
const PAGING_MS: u64 = 300;
const PAGE_BYTES: u64 = 4096;

/// Longest wait until recorded pages have reached all nodes. Reports are sent every second, and owners are queried
/// every five seconds.
const SOON: Duration = Duration::from_secs(60);

/// Forks a child and requires the right answer to this number. Returns the counters of its pager.
fn child(cluster: &Cluster, parent: &Parent, seed: &Seed, number: u64, options: &[&str]) -> Counted {
    let children = seed.fork_detached(&[format!("{number} {PAGING_MS}")], options);
    seed.check_answers(parent, &children, &[number]);
    Counted::of(cluster, &children[0])
}

/// The counters of a child's pager.
struct Counted(Value);

impl Counted {
    fn of(cluster: &Cluster, child: &StartedChild) -> Self {
        Self(cluster.first().json(&["inspect", &child.id])["pager"].clone())
    }

    fn get(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// Starts a child of a seed with a known working set, and returns the counters of its pager. Arguments: cluster,
/// parent, seed, the child's number, its node, and the number of pages of the set.
type Begin = fn(&Cluster, &Parent, &Seed, u64, usize, u64) -> Counted;

/// Pauses the child until its working set has arrived, however long that takes.
fn child_with_set(cluster: &Cluster, parent: &Parent, seed: &Seed, number: u64, node: usize, set: u64) -> Counted {
    let options = ["--to", cluster.name(node), "--paused"];
    let children = seed.fork_detached(&[format!("{number} {PAGING_MS}")], &options);
    let mut before = 0;
    wait::wait_until("the working set, except pages on trial", SOON, || {
        let had = std::mem::replace(&mut before, Counted::of(cluster, &children[0]).get("pages_fetched"));
        (had == before && before >= set - set / 16).then_some(())
    });
    cluster.first().json(&["unpause", &children[0].id]);
    seed.check_answers(parent, &children, &[number]);
    Counted::of(cluster, &children[0])
}

/// Starts the child without a pause, so the test depends on the speed of the prefetch.
fn child_at_once(cluster: &Cluster, parent: &Parent, seed: &Seed, number: u64, node: usize, _set: u64) -> Counted {
    child(cluster, parent, seed, number, &["--to", cluster.name(node)])
}

/// Returns a counter of a node's page cache.
fn cache(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let told = cluster.first().json(&["inspect", cluster.name(node)]);
    told["cache"][name].as_u64().unwrap_or_else(|| panic!("no cache.{name} in {told}"))
}

/// Waits until a seed's working set has at least this many pages. Returns its size in bytes.
fn wait_for_set(cluster: &Cluster, seed: &Seed, pages: u64) -> u64 {
    wait::wait_until("a working set", SOON, || {
        let told = cluster.first().json(&["inspect", seed.id()]);
        let bytes = told["working_set_bytes"].as_u64().expect("a number");
        (bytes >= pages * PAGE_BYTES).then_some(bytes)
    })
}

fn next_child_uses_cache(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let there = ["--to", cluster.name(1), "--strategy", "cow,cache"];
    let first = child(cluster, &parent, &seed, 61, &there);
    assert!(first.get("pages_fetched") >= PAGES && first.get("pages_cached") == 0, "{}", first.0);
    let next = child(cluster, &parent, &seed, 62, &there);
    assert_eq!((next.get("bytes_fetched"), next.get("round_trips")), (0, 0), "{}", next.0);
    assert!(next.get("pages_cached") >= PAGES && next.get("faults_cached") >= PAGES, "{}", next.0);
    assert!(cache(cluster, 1, "bytes") >= PAGES * PAGE_BYTES && cache(cluster, 1, "hits") >= PAGES);

    let elsewhere = child(cluster, &parent, &seed, 63, &["--to", cluster.name(2), "--strategy", "cow"]);
    assert_eq!(elsewhere.get("pages_cached"), 0, "a child found pages in the cache of another node: {}", elsewhere.0);
}

fn dropped_seeds_leave(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    child(cluster, &parent, &seed, 64, &["--to", cluster.name(1), "--strategy", "cow,cache"]);
    assert!(cache(cluster, 1, "pages") >= PAGES);
    cluster.first().json(&["drop", "--force", seed.id()]);
    wait::wait_until("an empty cache", SOON, || (cache(cluster, 1, "pages") == 0).then_some(()));
    assert_eq!((cache(cluster, 1, "bytes"), cache(cluster, 1, "seeds")), (0, 0));
}

fn recorded_sets_save_faults(cluster: &Cluster, begin: Begin) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let first = child(cluster, &parent, &seed, 65, &["--to", cluster.name(1), "--strategy", "cow"]);
    let faults = first.get("faults_missing");
    assert!(faults >= PAGES, "{}", first.0);
    let set = wait_for_set(cluster, &seed, faults) / PAGE_BYTES;
    let next = begin(cluster, &parent, &seed, 66, 2, set);
    assert!(10 * next.get("faults_missing") <= faults, "{}\n{}", first.0, next.0);
}

fn default_sets_save_faults(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let first = child(cluster, &parent, &seed, 77, &["--to", cluster.name(1)]);
    let set = wait_for_set(cluster, &seed, first.get("pages_fetched")) / PAGE_BYTES;
    let none_in_vain = || (cluster.zygote_count(0, "kept") == 0).then_some(());
    wait::wait_until("zygotes that were made without the working set have ended", SOON, none_in_vain);
    for (number, node) in [(78, 2), (79, 0)] {
        let next = child_with_set(cluster, &parent, &seed, number, node, set);
        assert!(10 * next.get("faults_missing") <= first.get("faults_missing"), "{}\n{}", first.0, next.0);
    }
}

fn sets_are_inherited(cluster: &Cluster, begin: Begin) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let first = child(cluster, &parent, &seed, 69, &["--to", cluster.name(1), "--strategy", "cow"]);
    let faults = first.get("faults_missing");
    let set_bytes = wait_for_set(cluster, &seed, faults);
    drop(seed);

    let seed = Seed::prepare(cluster.first(), &parent);
    let told = cluster.first().json(&["inspect", seed.id()]);
    assert_eq!(told["working_set_bytes"].as_u64(), Some(set_bytes), "{told}");
    let next = begin(cluster, &parent, &seed, 70, 2, set_bytes / PAGE_BYTES);
    assert!(10 * next.get("faults_missing") <= faults, "{}\n{}", first.0, next.0);
    let alone = child(cluster, &parent, &seed, 76, &["--to", cluster.name(2), "--strategy", "cow"]);
    assert!(alone.get("faults_missing") >= PAGES, "{}", alone.0);
}

fn nodes_are_prewarmed(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let first = child(cluster, &parent, &seed, 67, &["--to", cluster.name(1), "--strategy", "cow"]);
    let set_bytes = wait_for_set(cluster, &seed, first.get("faults_missing"));

    let said = cluster.first().json(&["prewarm", seed.id(), "--to", &cluster.names(&[0, 2])]);
    let node = |index: usize, name: &str| said["nodes"][index][name].as_u64().unwrap_or_else(|| panic!("{said}"));
    assert_eq!(
        (node(0, "set_bytes"), node(0, "cached_bytes")),
        (set_bytes, 0),
        "a node must not cache pages of its own seed: {said}"
    );
    assert_eq!((node(1, "set_bytes"), node(1, "cached_bytes")), (set_bytes, set_bytes), "{said}");

    let warm = child(cluster, &parent, &seed, 68, &["--to", cluster.name(2), "--strategy", "cow"]);
    assert_eq!((warm.get("pages_fetched"), warm.get("round_trips")), (0, 0), "{}", warm.0);
    assert!(warm.get("pages_cached") >= PAGES, "{}", warm.0);
    cluster.first().run_failing(&["prewarm", seed.id(), "--to", "nowhere"]).require_mentions(&["nowhere"]);
    cluster
        .first()
        .run_failing(&["prewarm", "no-such-seed", "--to", cluster.name(2)])
        .require_mentions(&["no-such-seed"]);
}

fn within_a_limit() {
    const LIMIT_BYTES: u64 = 1 << 20;
    let cluster = Cluster::start_with(2, &["--cache", "1MiB"]);
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let there = ["--to", cluster.name(1), "--strategy", "cache"];
    for number in [71, 72] {
        child(&cluster, &parent, &seed, number, &there);
        assert_eq!((cache(&cluster, 1, "bytes"), cache(&cluster, 1, "bytes_max")), (LIMIT_BYTES, LIMIT_BYTES));
    }
    assert!(cache(&cluster, 1, "evictions") > 0);

    let children = seed.fork_detached(&["73 1500".to_owned(), "74 1500".to_owned()], &there);
    std::thread::sleep(Duration::from_millis(500));
    cluster.kill_pager(1);
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    cluster.wait_until_all_are_alive();
    seed.check_answers(&parent, &children, &[73, 74]);
    assert_eq!(cache(&cluster, 1, "bytes_max"), LIMIT_BYTES);
    child(&cluster, &parent, &seed, 75, &there);
    drop(seed);
    assert_eq!(cluster.stop(), [""; 0]);
}
