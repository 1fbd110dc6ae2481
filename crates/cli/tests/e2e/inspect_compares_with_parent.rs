//! `farfork inspect CHILD --against PID`: equal fields are counted as equal, and each difference is listed with both
//! values. An impossible comparison is refused with the reason.

use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, require_same_as_parent};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("an_unchanged_child_has_no_differences", same),
    Test::shared("a_changed_field_is_reported", change),
    Test::shared("an_impossible_comparison_is_refused", refused),
];

/// Minimum number of compared fields of the smallest program. Each signal, socket option and file of /proc is a field.
const FIELDS_MIN: u64 = 300;

/// Sends the request to a node that has neither the child nor the parent.
fn same(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Threads, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    require_same_as_parent(cluster.node(2), &child, parent.pid());
    let ended = cluster.first().run(&["inspect", &child.id, "--against", &parent.pid_text()]);
    assert!(ended.status.success() && ended.stdout.contains(" 0 differ and should not"), "{}", ended.stdout);
    let said = cluster.first().json(&["inspect", &child.id, "--against", &parent.pid_text()]);
    assert!(said["fields"].as_u64().is_some_and(|fields| fields > FIELDS_MIN), "{said}");
    let tolerated = said["tolerated"].as_array().expect("a list");
    assert!(tolerated.iter().all(|row| row["reason"].as_str().is_some_and(|reason| !reason.is_empty())), "{said}");
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    // A comparison stops both processes briefly, and changes neither.
    parent.wait_for_ticks(1);
    parent.require_unharmed();
}

/// Changes a limit of the parent after the prepare. The comparison reports this difference, and fails.
fn change(cluster: &Cluster) {
    let parent = Parent::start(Program::Threads, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    require_same_as_parent(cluster.first(), &child, parent.pid());
    let changed = std::process::Command::new("prlimit").args(["--pid", &parent.pid_text(), "--nofile=777"]).status();
    assert!(changed.expect("prlimit(1)").success());
    let said = cluster.first().json_ignoring_status(&["inspect", &child.id, "--against", &parent.pid_text()]);
    assert_eq!(said["differences_count"], 1, "{said}");
    let difference = &said["differences"][0];
    assert_eq!(difference["field"], format!("{}/limits/Max open files", parent.pid()));
    assert_eq!(difference["parent"], "777 777 files");
    let ended = cluster.first().run(&["inspect", &child.id, "--against", &parent.pid_text()]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stdout.contains("limits/Max open files"), "{}", ended.stdout);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
}

/// Refused comparisons: the parent does not exist, or the child is paused or has ended.
fn refused(cluster: &Cluster) {
    const NOBODY: &str = "4194303";
    let parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    cluster.first().run_failing(&["inspect", &child.id, "--against", NOBODY]).require_mentions(&[NOBODY]);
    let on_another_node = cluster.first().run_failing(&["inspect", &child.id, "--against", &child.id]);
    on_another_node.require_mentions(&[&child.id, "only its own node can read it"]);
    let unknown_name = cluster.first().run_failing(&["inspect", &child.id, "--against", "no-such-name"]);
    unknown_name.require_mentions(&["no-such-name"]);
    cluster.first().json(&["pause", &child.id]);
    cluster.first().run_failing(&["inspect", &child.id, "--against", &parent.pid_text()]).require_mentions(&[
        &child.id,
        "paused",
        "farfork unpause",
    ]);
    cluster.first().json(&["unpause", &child.id]);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    let ended = || cluster.first().json(&["inspect", &child.id])["state"] != "running";
    crate::harness::wait::wait_until("the child ends", Duration::from_secs(60), || ended().then_some(()));
    cluster
        .first()
        .run_failing(&["inspect", &child.id, "--against", &parent.pid_text()])
        .require_mentions(&["it has ended"]);
}
