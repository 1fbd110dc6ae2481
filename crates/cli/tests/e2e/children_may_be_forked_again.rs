//! A child is prepared and forked like any other process, on any node, and so are its own children. Each page is
//! fetched from the node that owns it. A lost page affects only the processes that need it.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, Farfork, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, memory, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_grandchild_has_the_pages_that_the_child_changed", changed_pages),
    Test::shared("c_cpp_go_and_python_programs_are_forked_again", four_languages),
    Test::shared("sixteen_generations_are_forked", sixteen_times),
    Test::shared("files_that_only_the_child_has_are_restored", own_files),
    Test::shared("a_process_that_a_child_forked_is_prepared", forked_process),
    Test::shared("a_child_is_prepared_while_its_descendants_fork", descendants_fork),
    Test::shared("pages_that_the_child_never_touched_come_from_their_owner", not_through_middle),
    Test::shared("a_settled_child_is_forked_after_its_seed_was_dropped", settled),
    Test::shared("a_sealed_seed_of_a_child_needs_no_ancestor", sealed),
    Test::shared("a_lost_page_is_reported_with_the_seed_that_owned_it", lost),
    Test::shared("a_seed_of_a_child_ends_with_the_child", seeds_end),
    Test::shared("a_child_is_prepared_by_its_id_on_its_node", by_id),
    Test::shared("freezing_a_child_is_refused", freeze_refused),
    Test::alone("a_child_is_forked_again_while_pagers_are_killed", pagers_die),
    Test::alone("a_grandchild_survives_a_killed_daemon_of_the_child", middle_dies),
];

const MEMORY_MIB: &str = "16";
const MEMORY_PAGES: u64 = 4096;

/// Longest wait until a child has handled a signal.
const TOLD_LIMIT: Duration = Duration::from_secs(60);

/// With this strategy, each page is fetched by a fault of its own, so the source of each page is known.
const COW: [&str; 2] = ["--strategy", "cow"];

/// A child that is forked again, and the command connected to its node.
struct Middle {
    farfork: Farfork,
    child: StartedChild,
}

impl Middle {
    /// Starts a child that continues like its parent.
    fn of(cluster: &Cluster, seed: &Seed, index: usize, options: &[&str]) -> Self {
        let child = seed.fork_idle(1, &[&["--to", cluster.name(index)], options].concat()).remove(0);
        Self { farfork: cluster.node(index).clone(), child }
    }

    /// Sends a signal to the child. Returns the number that the child prints with `word` in reply.
    fn tell(&self, signal: i32, word: &str) -> u64 {
        let before = self.said(word).len();
        signal_to(self.child.pid, signal);
        wait::wait_until(&format!("the child says `{word}`"), TOLD_LIMIT, || {
            let said = self.said(word);
            (said.len() > before).then(|| said.last().copied().unwrap_or_default())
        })
    }

    /// The numbers that the child printed with this word.
    fn said(&self, word: &str) -> Vec<u64> {
        let output = self.farfork.run(&["logs", &self.child.id]).stdout;
        let lines = output.lines().filter(|line| line.split(' ').next() == Some(word));
        lines.map(|line| line.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default()).collect()
    }

    fn live(&self) -> u64 {
        self.tell(libc_signal::USR1, "lived")
    }

    /// Makes a seed of the child.
    fn prepare(&self) -> Seed {
        self.prepare_process(self.child.pid, &[])
    }

    fn prepare_process(&self, pid: i32, options: &[&str]) -> Seed {
        let ended = self.farfork.run(&[&["prepare", &pid.to_string(), "--json"], options].concat());
        ended.require_success();
        Seed::from_json(&self.farfork, &ended.stdout)
    }
}

/// Kills the child. Processes that it forked end with it.
impl Drop for Middle {
    fn drop(&mut self) {
        self.farfork.run(&["kill", "--signal", "KILL", &self.child.id]);
    }
}

/// Signal numbers, as arguments of kill(2).
mod libc_signal {
    pub(super) const HUP: i32 = 1;
    pub(super) const USR1: i32 = 10;
    pub(super) const USR2: i32 = 12;
    pub(super) const ALRM: i32 = 14;
    pub(super) const CONT: i32 = 18;
    pub(super) const STOP: i32 = 19;
}

fn signal_to(pid: i32, signal: i32) {
    let process = farfork_sys::pidfd::open(pid).expect("the child lives");
    farfork_sys::pidfd::send_signal(&process, signal).expect("the child lives");
}

fn generations() -> Parent {
    Parent::start(Program::Situation("generations"), &[MEMORY_MIB])
}

/// Requires that a grandchild finds the right memory after this many generations.
fn check(seed: &Seed, number: u64, generation: u64, options: &[&str]) {
    let ended = seed.fork_attached(&number.to_string(), options);
    let expected = format!("result {number} {}", number + generation);
    let is_right = ended.status.code() == Some(42) && ended.stdout.lines().any(|line| line == expected);
    assert!(is_right, "no `{expected}`, {}: {}", ended.status, ended.stderr);
}

fn counted(farfork: &Farfork, child: &str, what: &str) -> u64 {
    let said = farfork.json(&["inspect", child]);
    said["pager"][what].as_u64().unwrap_or_else(|| panic!("no {what} in {said}"))
}

/// Compares every page, byte by byte, with a child that is stopped during the comparison.
fn changed_pages(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    assert_eq!(middle.live(), 1);
    signal_to(middle.child.pid, libc_signal::STOP);
    let second = middle.prepare();
    for index in [2, 1, 0] {
        let grandchild = Middle::of(cluster, &second, index, &["--paused"]);
        let compared = memory::compare_memory(middle.child.pid, grandchild.child.pid);
        assert!(compared.pages as u64 > MEMORY_PAGES, "{compared:?}");
    }
    signal_to(middle.child.pid, libc_signal::CONT);
    for index in [2, 1, 0] {
        check(&second, 7, 1, &["--to", cluster.name(index)]);
    }
    assert_eq!(middle.live(), 2, "the middle child does not continue");
    check(&second, 8, 1, &["--to", cluster.name(2)]);
}

/// Real programs with threads, in four languages.
fn four_languages(cluster: &Cluster) {
    for (program, arguments) in [
        (Program::Arrays, &[][..]),
        (Program::Threads, &["16"][..]),
        (Program::Waits, &["16", "spin"][..]),
        (Program::Goroutines, &["16"][..]),
    ] {
        let mut parent = Parent::start(program, arguments);
        let seed = Seed::prepare(cluster.first(), &parent);
        let middle = Middle::of(cluster, &seed, 1, &[]);
        let second = middle.prepare();
        second.fork_and_check(&parent, 5, &["--to", cluster.name(2)]);
        second.fork_and_check(&parent, 6, &["--to", cluster.name(1)]);
        second.fork_and_check(&parent, 7, &["--to", cluster.name(0), "--strategy", "cow"]);
        parent.require_unharmed();
    }
}

fn sixteen_times(cluster: &Cluster) {
    let parent = generations();
    let mut seeds = vec![Seed::prepare(cluster.first(), &parent)];
    let mut middles: Vec<Middle> = Vec::new();
    for depth in 1..=16 {
        let middle = Middle::of(cluster, seeds.last().expect("a seed"), depth % 3, &[]);
        assert_eq!(middle.live(), depth as u64);
        seeds.push(middle.prepare());
        middles.push(middle);
    }
    let last = seeds.last().expect("a seed");
    for index in 0..3 {
        check(last, 100, 16, &["--to", cluster.name(index)]);
    }
    check(last, 101, 16, &["--to", cluster.name(0), "--strategy", "cow"]);
}

/// Files in a child's overlay exist on no other node, and its payload in no other container.
fn own_files(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().join("file");
    fs::write(&path, "nodes, and more\n").expect("a small file");
    let mut parent = Parent::start(Program::Situation("own_files"), &[&path.to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_detached(&["31".to_owned()], &["--to", cluster.name(1)]).remove(0);
    let middle = Middle { farfork: cluster.node(1).clone(), child };
    wait::wait_until("the child has its files", TOLD_LIMIT, || {
        let output = middle.farfork.run(&["logs", &middle.child.id]).stdout;
        output.lines().any(|line| line == "waiting").then_some(())
    });
    let second = middle.prepare();
    for index in [0, 1, 2] {
        // The second child is a copy of a zygote.
        for number in [47, 48] {
            second.fork_and_check(&parent, number, &["--to", cluster.name(index)]);
        }
        let without = cluster.first().run(&["fork", second.id(), "--to", cluster.name(index)]);
        assert!(without.stdout.lines().any(|line| line == "result 0 0"), "{}", without.stderr);
    }
    assert_eq!(fs::read_to_string(&path).expect("the node's file"), "nodes, and more\n");
    parent.require_unharmed();
}

/// A process that a child forked can be prepared like any other process.
fn forked_process(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    middle.tell(libc_signal::HUP, "forked");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", middle.child.pid)).expect("it lives");
    let pid = children.trim().parse().expect("one process");
    signal_to(pid, libc_signal::USR1);
    wait::wait_until("it lives, too", TOLD_LIMIT, || (middle.said("lived").last() == Some(&2)).then_some(()));
    let second = middle.prepare_process(pid, &[]);
    check(&second, 9, 2, &["--to", cluster.name(2)]);
    check(&middle.prepare(), 9, 1, &["--to", cluster.name(2)]);
}

/// prepare finds the template among processes that other processes fork at the same time. The search harms none of
/// them.
fn descendants_fork(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    middle.tell(libc_signal::ALRM, "storming");
    for number in 20..26 {
        let second = middle.prepare();
        check(&second, number, 1, &["--to", cluster.name(number as usize % 3)]);
    }
    let errors = middle.farfork.run(&["logs", "--stderr", &middle.child.id]);
    assert!(!(errors.stdout + &errors.stderr).contains("wrong"), "a process found a wrong page");
}

/// Pages that the middle child never touched are fetched from the node that owns them. Only these pages are.
fn not_through_middle(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    let second = middle.prepare();
    let apart = Middle::of(cluster, &second, 2, &COW);
    let untouched = apart.tell(libc_signal::USR2, "untouched");
    assert!((MEMORY_PAGES * 9 / 10..MEMORY_PAGES).contains(&untouched), "{untouched}");
    let (all, inherited) = (
        counted(&apart.farfork, &apart.child.id, "pages_fetched"),
        counted(&apart.farfork, &apart.child.id, "pages_inherited"),
    );
    assert!(inherited >= untouched && all - inherited < MEMORY_PAGES / 10, "{all}, {inherited} of them inherited");
    // On the middle child's node, the middle child's own pages cross no network. All others do.
    let beside = Middle::of(cluster, &second, 1, &COW);
    beside.tell(libc_signal::USR2, "untouched");
    let count = |what| counted(&beside.farfork, &beside.child.id, what);
    assert_eq!(count("pages_fetched") - count("pages_inherited"), count("pages_same_host"));
    // On the first seed's node, only the inherited pages cross no network.
    let before = Middle::of(cluster, &second, 0, &COW);
    before.tell(libc_signal::USR2, "untouched");
    let count = |what| counted(&before.farfork, &before.child.id, what);
    assert_eq!(count("pages_inherited"), count("pages_same_host"));
}

/// A middle child that has all of its pages inherits no page from its seed.
fn settled(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &[]);
    middle.live();
    middle.farfork.json(&["settle", &middle.child.id]);
    let second = middle.prepare();
    drop(seed);
    check(&second, 10, 1, &["--to", cluster.name(2)]);
}

/// The image of a seed includes inherited pages. Children of the sealed seed need neither the middle child, nor the
/// first seed, nor its parent. A node that used the seed before it was sealed does not fetch from the former owner
/// again.
fn sealed(cluster: &Cluster) {
    let mut parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    let second = middle.prepare_process(middle.child.pid, &["--sealed"]);
    check(&second, 12, 1, &["--to", cluster.name(2)]);
    let said = wait::wait_until("the seed is sealed", TOLD_LIMIT, || {
        Some(middle.farfork.json(&["inspect", second.id()])).filter(|said| said["seal"]["state"] != "sealing")
    });
    assert_eq!(said["seal"]["state"], "sealed", "{said}");
    let middle_id = middle.child.id.clone();
    drop(middle);
    cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &middle_id]);
    cluster.first().json(&["drop", seed.id()]);
    parent.kill();
    for index in [2, 1, 0] {
        check(&second, 13, 1, &["--to", cluster.name(index)]);
    }
    let grandchild = Middle::of(cluster, &second, 2, &[]);
    assert_eq!(grandchild.live(), 2, "the grandchild is not of the second generation");
}

/// The first seed is dropped. A process that touches a missing page ends, and the error names the seed. A process that
/// touches none continues.
fn lost(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let name = seed.id().to_owned();
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    let second = middle.prepare();
    let grandchild = Middle::of(cluster, &second, 2, &COW);
    wait::wait_until("it runs", TOLD_LIMIT, || (!grandchild.said("tick").is_empty()).then_some(()));
    drop(seed);
    let ticks = grandchild.said("tick").len();
    wait::wait_until("it continues", TOLD_LIMIT, || (grandchild.said("tick").len() > ticks + 5).then_some(()));
    signal_to(grandchild.child.pid, libc_signal::USR2);
    let ended = grandchild.farfork.json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &grandchild.child.id]);
    let end = &ended["children"][0];
    assert_eq!(end["signal"], 7, "{ended}");
    assert!(end["memory_lost"].as_str().is_some_and(|text| text.contains(&name)), "{ended}");
}

/// The template of a child is in the child's pid namespace, so it ends with the child. After that, a fork is refused with
/// the reason. A process that touches a missing page of the template ends, and its record names the seed.
fn seeds_end(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &COW);
    middle.live();
    let second = middle.prepare();
    let grandchild = Middle::of(cluster, &second, 2, &[&COW[..], &["--paused"]].concat());
    let (id, middle_id) = (second.id().to_owned(), middle.child.id.clone());
    drop(middle);
    let ended = cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &middle_id]);
    assert_eq!(
        ended["children"][0]["signal"], 9,
        "the child's exit is not reported while its template exists: {ended}"
    );
    wait::wait_until("its seed cannot be forked", TOLD_LIMIT, || {
        let ended = cluster.first().run(&["fork", &id, "--detach", "--to", cluster.name(2)]);
        (!ended.status.success()).then_some(())
    });
    cluster.first().run_failing(&["fork", &id, "--detach", "--to", cluster.name(2)]).require_mentions(&[
        &id,
        "has ended",
        "drop",
    ]);
    let listed = cluster.first().run(&["seeds"]).stdout;
    assert!(listed.lines().any(|line| line.starts_with(&id) && line.contains("template ended")), "{listed}");
    grandchild.farfork.json(&["unpause", &grandchild.child.id]);
    let ended = grandchild.farfork.json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &grandchild.child.id]);
    let end = &ended["children"][0];
    assert!(end["memory_lost"].as_str().is_some_and(|text| text.contains(&id)), "{ended}");
}

/// On other nodes of the same machine, the error names the child's node, whether the child is given by id or by pid.
fn by_id(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &[]);
    let (id, pid, owner) = (&middle.child.id, middle.child.pid.to_string(), cluster.name(1));
    let second = Seed::prepare_process(&middle.farfork, id, &[]);
    assert_eq!(second.prepare_output["parent_pid"], middle.child.pid, "{}", second.prepare_output);
    assert_eq!(middle.farfork.json(&["check", id])["can_be_prepared"], true);

    for command in ["prepare", "check"] {
        cluster.first().run_failing(&[command, id]).require_mentions(&[id, &format!("node {owner}"), "--socket"]);
    }
    let refused = cluster.first().run_failing(&["prepare", &pid]);
    refused.require_mentions(&[&pid, &format!("node {owner}"), "--socket"]);
    assert!(!refused.message.contains("--namespaces"), "{}", refused.message);
    let checked = cluster.first().run(&["check", &pid]).stdout;
    assert!(checked.contains(&format!("node {owner}")) && !checked.contains("--namespaces"), "{checked}");
    cluster.first().run_failing(&["prepare", seed.id()]).require_mentions(&[
        seed.id(),
        "the id of a seed",
        "farfork fork",
    ]);
}

/// A child cannot be its own template: capture would read its missing pages.
fn freeze_refused(cluster: &Cluster) {
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(cluster, &seed, 1, &[]);
    let pid = middle.child.pid.to_string();
    middle.farfork.run_failing(&["prepare", &pid, "--freeze"]).require_mentions(&[&pid, "child of a seed", "--freeze"]);
    let report = middle.farfork.json(&["check", &pid]);
    assert_eq!(report["refusals"], Value::Array(Vec::new()), "{report}");
    assert_eq!(middle.live(), 1, "the middle child does not continue");
}

/// A new pager continues with everything that the previous pager knew of the middle child.
fn pagers_die() {
    let cluster = Cluster::start(3);
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(&cluster, &seed, 1, &COW);
    middle.live();
    cluster.kill_pager(1);
    let second = middle.prepare();
    middle.live();
    let children =
        second.fork_detached(&["11".to_owned(), "12".to_owned()], &["--to", cluster.name(2), "--strategy", "cow"]);
    cluster.kill_pager(2);
    cluster.kill_pager(1);
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let said =
        cluster.first().json_ignoring_status(&[&["wait", "--results", "--timeout", WAIT_TIMEOUT], &ids[..]].concat());
    for end in said["children"].as_array().expect("ends") {
        assert_eq!(end["exit_code"], 42, "{end}");
    }
    drop((second, middle, seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// The middle child's daemon is killed, and with it the template that holds the child's own pages. Pages of the first
/// seed are still fetched.
fn middle_dies() {
    let cluster = Cluster::start(3);
    let parent = generations();
    let seed = Seed::prepare(cluster.first(), &parent);
    let middle = Middle::of(&cluster, &seed, 1, &COW);
    middle.live();
    let second = middle.prepare();
    let grandchild = Middle::of(&cluster, &second, 2, &COW);
    assert_eq!(grandchild.live(), 2, "the grandchild does not have the pages that it needs to answer");
    let before = counted(&grandchild.farfork, &grandchild.child.id, "pages_inherited");
    cluster.kill_daemon(1);
    let untouched = grandchild.tell(libc_signal::USR2, "untouched");
    let after = counted(&grandchild.farfork, &grandchild.child.id, "pages_inherited");
    assert!(after - before >= untouched * 9 / 10, "{before}, {after}, {untouched}");
    drop(grandchild);
    cluster.restart_daemon(1);
    cluster.wait_until_all_are_alive();
    drop((second, middle, seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
