//! One program for each kernel resource creates it, is forked to another node, and finds it unchanged in the child. The
//! head comment of each program says what it checks. The test also compares the state that the kernel shows of parent
//! and child.

use crate::harness::{Cluster, Parent, Program, Seed, require_forked_child_same};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("registers", |cluster| check(cluster, "registers")),
    Test::shared("tasks", |cluster| check(cluster, "tasks")),
    Test::shared("rseq", |cluster| check(cluster, "rseq")),
    Test::shared("signals", |cluster| check(cluster, "signals")),
    Test::shared("identity", |cluster| check(cluster, "identity")),
    Test::shared("clocks", |cluster| check(cluster, "clocks")),
    Test::shared("files", |cluster| check(cluster, "files")),
    Test::shared("pipes", |cluster| check(cluster, "pipes")),
    Test::shared("events", |cluster| check(cluster, "events")),
    Test::shared("memory_kinds", |cluster| check(cluster, "memory_kinds")),
    Test::shared("shared_memory", |cluster| check(cluster, "shared_memory")),
    Test::shared("fork_advice", |cluster| check(cluster, "fork_advice")),
];

fn check(cluster: &Cluster, resource: &'static str) {
    let mut parent = Parent::start(Program::Resource(resource), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    require_forked_child_same(cluster.first(), &seed, cluster.name(1), parent.pid());
    seed.fork_and_check(&parent, 71, &["--to", cluster.name(1)]);
    // A second child finds the same state: the first has not changed anything that they share.
    seed.fork_and_check(&parent, 72, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}
