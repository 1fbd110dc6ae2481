//! A settled child has fetched all of its memory, whatever it did to its memory while it settled. It needs neither its
//! seed nor the node of its parent.

use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, WAIT_TIMEOUT, memory, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_settled_child_survives_a_killed_owner", outlive_owner),
    Test::alone("settling_continues_after_the_link_was_cut", while_cut),
    Test::alone("settling_continues_while_the_pager_is_killed", while_pager_dies),
    Test::shared("while_they_change_their_memory", while_changing),
    Test::shared("a_settled_child_has_every_page_of_its_seed", have_all),
    Test::shared("settling_continues_in_the_background_after_a_timeout", in_background),
    Test::shared("a_child_without_its_seed_cannot_settle", not_without_seed),
];

const MEMORY_MIB: &str = "256";
/// How long a child touches memory, in milliseconds. It then runs until it is signalled.
const PAGING_MS: u64 = 4000;
/// Longest wait until all memory is fetched, on a busy machine.
const SETTLED_LIMIT: Duration = Duration::from_secs(100);

/// The daemon of the parent is killed after the children have settled. The children continue and answer. One reads
/// memory by loads, the other by system calls.
fn outlive_owner() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers = [51, 52];
    let payloads = ["51 500".to_owned(), "52 500 calls".to_owned()];
    // The children are paused before their first instruction, so they have almost no pages.
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1), "--paused"]);
    for child in &children {
        let said = cluster.first().json(&["settle", &child.id]);
        assert_eq!((&said["settled"], &said["child"]), (&true.into(), &child.id.as_str().into()), "{said}");
        assert!(said["memory_bytes"].as_u64() >= Some(256 << 20), "{said}");
        assert!(said["fetched_bytes"].as_u64() >= Some(250 << 20), "the child had almost no pages: {said}");
    }
    cluster.kill_daemon(0);
    for child in &children {
        let said = cluster.node(1).json(&["inspect", &child.id]);
        assert_eq!((&said["settled"], &said["memory"]["remote_bytes"]), (&true.into(), &0.into()), "{said}");
    }
    let listed = cluster.node(1).run(&["ps", "--here"]).stdout;
    assert_eq!(listed.matches("paused, settled").count(), children.len(), "{listed}");
    for child in &children {
        cluster.node(1).json(&["unpause", &child.id]);
    }
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let said =
        cluster.node(1).json_ignoring_status(&[&["wait", "--results", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    for (end, number) in said["children"].as_array().expect("ends").iter().zip(numbers) {
        let expected = format!("result {number} {}", parent.expected_answer(number));
        assert!(end["stdout"].as_str().is_some_and(|text| text.contains(&expected)), "no `{expected}` in {end}");
        assert!(end["memory_lost"].is_null(), "{end}");
    }
    drop((seed, parent));
    cluster.restart_daemon(0);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn while_cut() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&[format!("53 {PAGING_MS} held")], &["--to", cluster.name(1)]);
    let settling = cluster.node(1).spawn(&["settle", &children[0].id, "--json"]);
    thread::sleep(Duration::from_millis(30));
    cluster.cut_link(1);
    thread::sleep(Duration::from_millis(1500));
    cluster.restore_link(1);
    let ended = wait::wait_with_output(settling, "settle", SETTLED_LIMIT);
    ended.require_success();
    cluster.wait_until_all_are_alive();
    cluster.first().json(&["drop", seed.id()]);
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[53]);
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn while_pager_dies() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&[format!("54 {PAGING_MS} held")], &["--to", cluster.name(1)]);
    let settling = cluster.node(1).spawn(&["settle", &children[0].id, "--json"]);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(30));
        cluster.kill_pager(1);
    }
    let ended = wait::wait_with_output(settling, "settle", SETTLED_LIMIT);
    ended.require_success();
    cluster.first().json(&["drop", seed.id()]);
    cluster.kill_pager(1);
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[54]);
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Children are settled while they fork, and while they move, unmap and discard memory.
fn while_changing(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Resource("memory_operations"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (1..=8).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", &cluster.names(&[1, 2])]);
    for child in &children {
        // The child may already have ended.
        cluster.first().run(&["settle", &child.id]);
    }
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
}

/// Every page has the right bytes. No mapping is registered with userfaultfd any longer, so no access waits for a
/// pager.
fn have_all(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["32"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let template = seed.template_pid();
    let children = seed.fork_idle(1, &["--to", cluster.name(1), "--paused"]);
    cluster.first().json(&["settle", &children[0].id]);
    let compared = memory::compare_memory(template, children[0].pid);
    assert!(compared.pages > (32 << 20) / 4096, "{compared:?}");
    cluster.first().json(&["unpause", &children[0].id]);
    cluster.first().json(&["kill", "--signal", "KILL", &children[0].id]);
}

/// If the command stops waiting, the node continues to settle the child, which touches its memory meanwhile.
fn in_background(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    // A paused child touches no page, and `cow` fetches only touched pages. So all pages are missing at the request,
    // however late a slow machine sends it.
    let options = ["--to", cluster.name(1), "--strategy", "cow", "--paused"];
    let children = seed.fork_detached(&[format!("55 {PAGING_MS} held")], &options);
    let id = children[0].id.as_str();
    cluster.first().run_failing(&["settle", id, "--timeout", "1ms"]).require_mentions(&[
        id,
        "in time",
        "continues to fetch its pages",
    ]);
    cluster.first().json(&["unpause", id]);
    wait::wait_until("the child has settled", SETTLED_LIMIT, || {
        (cluster.first().json(&["inspect", id])["settled"] == true).then_some(())
    });
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &[55]);
    cluster.first().run_failing(&["settle", id]).require_mentions(&[id, "ended"]);
}

/// A child whose seed was dropped cannot settle. The error has the reason, and the child continues until it touches a
/// missing page.
fn not_without_seed(cluster: &Cluster) {
    let parent = Parent::start(Program::Situation("paging"), &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(1, &["--to", cluster.name(1), "--paused"]);
    let id = children[0].id.as_str();
    cluster.first().json(&["drop", "--force", seed.id()]);
    cluster.first().run_failing(&["settle", id]).require_mentions(&[id, "cannot settle"]);
    let said = cluster.first().json(&["inspect", id]);
    assert_eq!((&said["settled"], &said["memory_lost"]), (&false.into(), &serde_json::Value::Null), "{said}");
    cluster.first().json(&["kill", "--signal", "KILL", id]);
}
