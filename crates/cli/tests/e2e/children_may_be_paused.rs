//! A paused child is stopped with all its threads, is listed as paused, and later continues unharmed. A request for a
//! paused child is executed, or refused with the next step.

use std::fs;
use std::thread;
use std::time::Duration;

use farfork_api::child_freezer::ChildFreezer;
use serde_json::Value;

use crate::harness::{Cluster, Farfork, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_paused_child_makes_no_progress", stand_still),
    Test::shared("while_their_pages_are_fetched", while_paging),
    Test::shared("a_paused_child_settles_and_dumps_its_core", settled_and_looked_at),
    Test::shared("a_paused_child_is_killed", killed),
    Test::shared("by_a_client_with_their_freezers", by_freezer),
    Test::alone("a_paused_child_survives_a_killed_daemon", outlive_daemon),
];

const MEMORY_MIB: &str = "64";
/// How long a child touches memory.
const PAGING_MS: u64 = 1500;
/// Time between two observations: many times the interval between two lines of a child.
const MOMENT: Duration = Duration::from_millis(60);
/// Longest wait for a child's next line or its end, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn state(farfork: &Farfork, child: &StartedChild) -> String {
    farfork.json(&["inspect", &child.id])["state"].as_str().expect("a state").to_owned()
}

/// Returns the CPU times of all threads of a child, and the length of its output. Neither grows while the child is
/// paused.
fn doings(farfork: &Farfork, child: &StartedChild) -> (Vec<String>, usize) {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.pid)).expect("a child that lives");
    let mut times: Vec<String> = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .map(|text| text.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    times.sort();
    (times, farfork.json(&["logs", &child.id])["stdout"].as_str().expect("output").len())
}

/// Requires that a paused child writes nothing, and uses no CPU time once it sleeps. The kernel counts a thread as
/// frozen just before it sleeps. For each signal it wakes a frozen thread and freezes it again (`do_freezer_trap`). On
/// a busy machine, these microseconds may be between two observations. Then another pair of observations is compared.
fn require_still(farfork: &Farfork, child: &StartedChild) {
    let (_, written) = doings(farfork, child);
    wait::wait_until("a paused child uses no CPU time", LIMIT, || {
        let before = doings(farfork, child);
        thread::sleep(MOMENT);
        let after = doings(farfork, child);
        assert_eq!(after.1, written, "{} writes while it is paused", child.id);
        (after.0 == before.0).then_some(())
    });
}

fn require_going_on(farfork: &Farfork, child: &StartedChild) {
    let before = doings(farfork, child).1;
    wait::wait_until("the child continues", LIMIT, || (doings(farfork, child).1 > before).then_some(()));
}

/// Pauses a program with four workers and a main thread. The request is sent to another node than the child's.
fn stand_still(cluster: &Cluster) {
    let parent = Parent::start(Program::Threads, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(2, &["--to", cluster.name(1)]);
    let (farfork, child, other) = (cluster.first(), &children[0], &children[1]);
    require_going_on(farfork, child);
    for _ in 0..2 {
        farfork.json(&["pause", &child.id]);
        assert_eq!((state(farfork, child).as_str(), state(farfork, other).as_str()), ("paused", "running"));
    }
    require_still(farfork, child);
    let listed = farfork.run(&["ps"]).stdout;
    let line = listed.lines().find(|line| line.contains(&child.id)).expect("a line of the child");
    assert!(line.contains("paused"), "{line}");
    for _ in 0..2 {
        farfork.json(&["unpause", &child.id, &other.id]);
        assert_eq!(state(farfork, child), "running");
    }
    require_going_on(farfork, child);
    farfork.json(&["kill", "-s", "KILL", &child.id, &other.id]);
    farfork.json_ignoring_status(&["wait", &child.id]);
    farfork.run_failing(&["pause", &child.id]).require_mentions(&[&child.id, "it has ended"]);
    farfork.run_failing(&["unpause", &child.id]).require_mentions(&[&child.id, "it has ended"]);
}

/// Pauses a child repeatedly: in the middle of faults, in loads and in system calls.
fn while_paging(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let payloads = [format!("71 {PAGING_MS} held"), format!("72 {PAGING_MS} calls held")];
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1), "--strategy", "cow"]);
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    for _ in 0..8 {
        cluster.first().json(&[&["pause"], &ids[..]].concat());
        children.iter().for_each(|child| require_still(cluster.first(), child));
        cluster.first().json(&[&["unpause"], &ids[..]].concat());
        thread::sleep(MOMENT);
    }
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[71, 72]);
    parent.require_unharmed();
}

/// Requests that need no instruction of the child are executed, and the child stays paused.
fn settled_and_looked_at(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child =
        seed.fork_detached(&["73 500 held".to_owned()], &["--to", cluster.name(1), "--strategy", "cow"]).remove(0);
    let there = cluster.node(1);
    there.json(&["pause", &child.id]);
    require_no_seed_of(there, &child);
    let unstarted = seed.fork_detached(&["73 0".to_owned()], &["--to", cluster.name(1), "--paused"]).remove(0);
    require_no_seed_of(there, &unstarted);
    there.json(&["kill", &unstarted.id]);
    there.run_failing(&["rm", &child.id]).require_mentions(&["it has not ended", "farfork kill"]);
    assert_eq!(there.json(&["settle", &child.id])["settled"], true);
    let core = tempfile::NamedTempFile::new().expect("a file");
    there.json(&["core", &child.id, "--output", &core.path().to_string_lossy()]);
    assert!(fs::metadata(core.path()).is_ok_and(|file| file.len() > 0));
    require_still(there, &child);
    assert_eq!(state(there, &child), "paused");
    there.json(&["unpause", &child.id]);
    seed.release_children(std::slice::from_ref(&child));
    seed.check_answers(&parent, &[child], &[73]);
}

/// Requires that `prepare` and `check` refuse a paused child, and name the command that helps.
fn require_no_seed_of(node: &Farfork, child: &StartedChild) {
    let pid = child.pid.to_string();
    node.run_failing(&["prepare", &pid]).require_mentions(&[&child.id, "is paused", "farfork unpause"]);
    let checked = node.run(&["check", &pid]);
    assert!(checked.stdout.contains("farfork unpause"), "{}{}", checked.stdout, checked.stderr);
}

/// `ChildFreezer` pauses a child, and the node reports the child as paused. Requests to the node and calls of the
/// freezer may alternate. A child that has ended or is on another node has no freezer.
fn by_freezer(cluster: &Cluster) {
    let parent = Parent::start(Program::Threads, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(2, &["--to", cluster.name(1)]);
    let (farfork, child, other) = (cluster.node(1), &children[0], &children[1]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let open = |node: &Farfork| {
        runtime.block_on(async {
            let mut client = farfork_api::client::connect(node.socket()).await.expect("a daemon");
            ChildFreezer::open(&mut client, &child.id).await
        })
    };
    let refused = open(cluster.first()).expect_err("a child of another node").to_string();
    assert!(refused.contains(&child.id) && refused.contains("it is on another node"), "{refused}");
    let freezer = open(farfork).expect("a freezer");
    for _ in 0..2 {
        freezer.pause().expect("it stops");
        assert_eq!((state(farfork, child).as_str(), state(farfork, other).as_str()), ("paused", "running"));
        require_still(farfork, child);
        freezer.unpause().expect("it continues");
        assert_eq!(state(farfork, child), "running");
        require_going_on(farfork, child);
    }
    freezer.pause().expect("it stops");
    farfork.json(&["unpause", &child.id]);
    require_going_on(farfork, child);
    farfork.json(&["pause", &child.id]);
    freezer.unpause().expect("it continues");
    require_going_on(farfork, child);
    freezer.pause().expect("it stops");
    farfork.json(&["kill", "-s", "KILL", &child.id, &other.id]);
    farfork.json_ignoring_status(&["wait", &child.id]);
    let refused = freezer.pause().expect_err("the child has ended").to_string();
    assert!(refused.contains(&child.id), "{refused}");
    let refused = open(farfork).expect_err("the child has ended").to_string();
    assert!(refused.contains("it has ended"), "{refused}");
}

fn ended(farfork: &Farfork, child: &StartedChild) -> Value {
    farfork.json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &child.id])["children"][0].clone()
}

/// SIGKILL ends a paused child at once, when it is sent or when the time limit expires. SIGTERM takes effect when the
/// child continues.
fn killed(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let farfork = cluster.first();
    let children = seed.fork_idle(2, &["--to", cluster.name(1)]);
    // On a slow machine, the time limit may expire before the pause. Then another child is started.
    let limited = wait::wait_until("a child with a time limit is paused", LIMIT, || {
        let limited = seed.fork_idle(1, &["--to", cluster.name(1), "--timeout", "2s"]).remove(0);
        let paused = farfork.run(&["pause", &limited.id]);
        assert!(paused.status.success() || paused.stderr.contains("it has ended"), "{}", paused.stderr);
        paused.status.success().then_some(limited)
    });
    for child in &children {
        farfork.json(&["pause", &child.id]);
    }
    farfork.json(&["kill", "-s", "KILL", &children[0].id]);
    assert_eq!(ended(farfork, &children[0])["signal"], 9);
    farfork.json(&["kill", &children[1].id]);
    require_still(farfork, &children[1]);
    farfork.json(&["unpause", &children[1].id]);
    assert_eq!(ended(farfork, &children[1])["signal"], 15);
    assert_eq!(ended(farfork, &limited)["signal"], 9);
}

/// The next daemon lists the child as paused, and can unpause it.
fn outlive_daemon() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("paging"), &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_detached(&["74 500 held".to_owned()], &["--to", cluster.name(1)]).remove(0);
    cluster.node(1).json(&["pause", &child.id]);
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    let farfork = cluster.node(1);
    assert_eq!(state(farfork, &child), "paused");
    require_still(farfork, &child);
    farfork.json(&["unpause", &child.id]);
    wait::wait_until("the node knows the owner again", LIMIT, || {
        farfork.run(&["inspect", seed.id()]).status.success().then_some(())
    });
    seed.release_children(std::slice::from_ref(&child));
    seed.check_answers(&parent, &[child], &[74]);
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
