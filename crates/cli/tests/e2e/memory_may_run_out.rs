//! A node runs out of memory: the child that needs more is killed, its end names the reason, and no other process is
//! affected.

use crate::harness::{Cluster, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("in_the_nodes_control_group", in_the_group),
    Test::alone("children_are_killed_before_templates", children_first),
];

/// Memory of the parent in MiB. The control group of the child's node may grow by `ROOM_KB`: a child of this parent does
/// not fit, but a child of a small parent does.
const PARENT_MIB: &str = "128";
const ROOM_KB: u64 = 48 << 10;

/// How much the control group of a parent's node may grow. A child that uses all of it holds less memory than the
/// template, and the difference is less than half of the group's limit.
const ROOM_BESIDE_TEMPLATE_KB: u64 = 104 << 10;

/// Signals that end a child without memory: SIGKILL by the kernel's OOM killer, or SIGBUS for a page that could not be
/// installed.
const SIGKILL: i64 = 9;
const SIGBUS: i64 = 7;

fn in_the_group() {
    let cluster = Cluster::start(2);
    let mut large = Parent::start(Program::Waits, &[PARENT_MIB]);
    let mut small = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &large);
    let small_seed = Seed::prepare(cluster.first(), &small);
    small_seed.fork_and_check(&small, 1, &["--to", cluster.name(1)]);

    cluster.limit_memory(1, Some(ROOM_KB));
    let children = seed.fork_detached(&["2".to_owned()], &["--to", cluster.name(1)]);
    let id = children[0].id.as_str();
    cluster.first().run(&["wait", id]);
    let said = cluster.first().json(&["inspect", id]);
    assert_eq!(said["state"], "exited", "{said}");
    assert!([SIGKILL, SIGBUS].map(Some).contains(&said["signal"].as_i64()), "{said}");

    // The node still forks children with the same limit: daemon and pager were not killed.
    small_seed.fork_and_check(&small, 3, &["--to", cluster.name(1)]);
    cluster.limit_memory(1, None);
    seed.fork_and_check(&large, 4, &["--to", cluster.name(1)]);
    large.require_unharmed();
    small.require_unharmed();
    drop((seed, small_seed));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn children_first() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Situation("memory_hog"), &[PARENT_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let template = seed.template_pid();
    let idle = seed.fork_idle(1, &[]);
    assert_eq!([parent.pid(), template, idle[0].pid].map(oom_score_adj), [0, 450, 900]);
    cluster.first().run(&["kill", "--signal", "KILL", &idle[0].id]);
    cluster.first().run(&["wait", &idle[0].id]);

    cluster.limit_memory(0, Some(ROOM_BESIDE_TEMPLATE_KB));
    let children = seed.fork_detached(&["more".to_owned()], &[]);
    let waited = cluster.first().run(&["wait", &children[0].id]);
    assert!(waited.stdout.contains("killed: its node had no memory left"), "{}{}", waited.stdout, waited.stderr);
    assert_eq!(seed.template_pid(), template, "the template was killed, although it holds more memory");

    cluster.limit_memory(0, None);
    seed.fork_and_check(&parent, 2, &[]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Returns the oom_score_adj of a process.
fn oom_score_adj(pid: i32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("the process lives");
    text.trim().parse().expect("a number")
}
