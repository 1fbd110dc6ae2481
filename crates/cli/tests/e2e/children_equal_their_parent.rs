//! A child has the memory of its parent. The child is on another node and is stopped before its first instruction. Each
//! page that the template can read is the same in the child. Then the child runs and must answer correctly.

use crate::harness::{Cluster, Parent, Program, Seed, memory};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_static_c_program", |cluster| check(cluster, Program::Waits, &["32", "spin"])),
    Test::shared("a_threaded_cpp_program", |cluster| check(cluster, Program::Threads, &["32"])),
    Test::shared("a_go_program", |cluster| check(cluster, Program::Goroutines, &["32"])),
    Test::shared("python_with_numpy", |cluster| check(cluster, Program::Arrays, &["64"])),
    Test::shared("on_the_parents_own_node", on_own_node),
    Test::shared("when_the_parent_has_run_on", later_children),
    Test::shared("when_the_parent_is_frozen", frozen),
];

/// Minimum number of compared pages of a program: ten times the pages of libc alone.
const PAGES_MIN: usize = 5000;

fn check(cluster: &Cluster, program: Program, arguments: &[&str]) {
    let mut parent = Parent::start(program, arguments);
    let seed = Seed::prepare(cluster.first(), &parent);
    // The second child is a copy of a zygote.
    for _ in 0..2 {
        check_memory(cluster, &parent, &seed, &["--to", cluster.name(1)]);
    }
    parent.require_unharmed();
}

fn check_memory(cluster: &Cluster, parent: &Parent, seed: &Seed, options: &[&str]) {
    let children = seed.fork_detached(&["1001".to_owned()], &[options, &["--paused"]].concat());
    let inspected = cluster.first().json(&["inspect", &children[0].id]);
    assert_eq!(inspected["state"], "paused", "{inspected}");
    let compared = memory::compare_memory(seed.template_pid(), children[0].pid);
    assert!(compared.pages >= PAGES_MIN, "only {compared:?}");
    cluster.first().json(&["unpause", &children[0].id]);
    seed.check_answers(parent, &children, &[1001]);
}

fn on_own_node(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["32"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    check_memory(cluster, &parent, &seed, &[]);
    parent.require_unharmed();
}

/// A seed has the parent's state at prepare, even if the parent changes its memory before a child is made.
fn later_children(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Threads, &["32"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    parent.wait_for_ticks(200);
    check_memory(cluster, &parent, &seed, &["--to", cluster.name(2)]);
    check_memory(cluster, &parent, &seed, &["--to", cluster.name(1)]);
}

/// With `--freeze`, the parent itself is the template. It stops, and continues when the seed is dropped.
fn frozen(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["32"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--freeze"]);
    let ticks = parent.ticks_count();
    check_memory(cluster, &parent, &seed, &["--to", cluster.name(1)]);
    assert!(parent.ticks_count() <= ticks + 1, "the frozen parent did not stop");
    drop(seed);
    parent.require_unharmed();
}
