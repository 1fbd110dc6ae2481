//! A child may do to memory that has not arrived yet whatever a process may do: fork, mremap, munmap, madvise, mprotect,
//! and let the kernel read and write it. The program that does it says what it checks.

use crate::harness::{Cluster, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] =
    &[Test::shared("one_child_after_another", one_by_one), Test::shared("eight_children_at_once", at_once)];

fn start() -> Parent {
    Parent::start(Program::Resource("memory_operations"), &[])
}

fn one_by_one(cluster: &Cluster) {
    let parent = start();
    let seed = Seed::of(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    seed.fork_and_check(&parent, 2, &["--to", cluster.name(2)]);
    seed.fork_and_check(&parent, 3, &[]);
}

fn at_once(cluster: &Cluster) {
    let mut parent = start();
    let seed = Seed::of(cluster.first(), &parent);
    let numbers: Vec<u64> = (1..=8).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", &cluster.names(&[1, 2])]);
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
}
