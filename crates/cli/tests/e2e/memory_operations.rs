//! A child may use memory that is not fetched yet like any other memory: with fork, mremap, munmap, madvise, mprotect,
//! and system calls that read and write it. The head comments of the programs say what they check.

use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("work_in_one_child_after_another", one_by_one),
    Test::shared("work_in_eight_children_at_once", at_once),
    Test::shared("memory_discarded_by_a_child_is_empty_in_processes_it_forks", emptied),
    Test::shared("one_mremap_moves_several_mappings_of_a_settled_child", several),
    Test::shared("a_garbage_collected_heap_grows_and_shrinks", collected_heap),
];

/// Longest wait until a child has made its first system calls, on a busy machine.
const REFUSAL_LIMIT: Duration = Duration::from_secs(60);

fn start() -> Parent {
    Parent::start(Program::Resource("memory_operations"), &[])
}

fn one_by_one(cluster: &Cluster) {
    let parent = start();
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 2, &["--to", cluster.name(2)]);
    seed.fork_and_check(&parent, 3, &[]);
}

fn at_once(cluster: &Cluster) {
    let mut parent = start();
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (1..=8).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", &cluster.names(&[1, 2])]);
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
}

/// Empties memory in each way that the kernel offers, with each paging strategy.
fn emptied(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("emptied_memory"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for (number, strategy) in (1..).zip(["prefetch", "cow", "cache", "prefetch,first", "eager"]) {
        seed.fork_and_check(&parent, number, &["--to", cluster.name(1), "--strategy", strategy]);
    }
    seed.fork_and_check(&parent, 9, &[]);
    parent.require_unharmed();
}

/// Before the child has settled, the kernel refuses mremap(2) of several mappings at once. The child keeps its memory.
fn several(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("mremap_several"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&["5".to_owned()], &["--to", cluster.name(1), "--strategy", "cow"]);
    wait::wait_until("the kernel refuses mremap(2)", REFUSAL_LIMIT, || {
        let said = cluster.first().run(&["logs", &children[0].id]).stdout;
        said.lines().any(|line| line == "refused").then_some(())
    });
    cluster.first().json(&["settle", &children[0].id]);
    seed.check_answers(&parent, &children, &[5]);
    parent.require_unharmed();
}

/// Go's garbage collector marks, sweeps, grows its heap and returns memory. All of this memory is not fetched yet.
fn collected_heap(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Heap, &["32"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for (number, strategy) in [(1, "prefetch,first"), (2, "cow,first"), (3, "cache")] {
        seed.fork_and_check(&parent, number, &["--to", cluster.name(1), "--strategy", strategy]);
    }
    seed.fork_and_check(&parent, 4, &[]);
    parent.require_unharmed();
}
