//! Further children of a seed on a node are copies of a zygote. Each copy answers correctly and is independent, even after
//! pager or daemon were killed. Nothing of the zygote remains in it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::memory::huge_kb;
use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("copies_answer_correctly_when_pager_and_daemon_are_killed", processes_killed),
    Test::alone("only_within_their_limit_and_for_matching_forks", limits_and_matching_forks),
    Test::alone("while_their_memory_becomes_huge_pages", in_huge_pages),
];

/// Longest wait until a zygote is ready, has ended, or has its memory in huge pages.
const SOON: Duration = Duration::from_secs(60);
/// An unused zygote ends after 20 s. A count of copies is valid only if it took less time than `KEPT_FOR`.
const KEPT_FOR: Duration = Duration::from_secs(18);
const ATTEMPTS_MAX: usize = 10;
/// How long each child touches memory, in milliseconds. `MOMENT` is shorter.
const PAGING_MS: u64 = 1500;
const MOMENT: Duration = Duration::from_millis(400);
const AT_ONCE: u64 = 6;

/// Runs `attempt`, which uses zygotes, and returns its result. Repeats an attempt that took at least `KEPT_FOR`, because
/// its unused zygote may have ended.
pub(crate) fn timely<T>(mut attempt: impl FnMut() -> T) -> T {
    for _ in 0..ATTEMPTS_MAX {
        let begun = Instant::now();
        let outcome = attempt();
        if begun.elapsed() < KEPT_FOR {
            return outcome;
        }
    }
    panic!("{ATTEMPTS_MAX} attempts took longer than {KEPT_FOR:?} each");
}

fn wait_for_zygote(cluster: &Cluster, node: usize) {
    wait::wait_until("a zygote", SOON, || (cluster.zygote_count(node, "kept") == 1).then_some(()));
}

/// Requires that a copy is in its container's control group in every hierarchy. If memory runs out, the kernel must kill
/// the copy before its zygote.
fn require_own_place(pid: i32) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    assert_eq!(read("oom_score_adj").trim(), "900");
    let groups = read("cgroup");
    assert!(groups.contains("/pool-") && !groups.contains("zygotes"), "{groups}");
}

/// Requires that only one page of the restorer's code remains: the page from which the child's threads start.
fn require_little_left(pid: i32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let own: Vec<u64> = maps.lines().filter_map(code_bytes_of_restorer).collect();
    assert_eq!(own, [4096], "{maps}");
}

/// The restorer is mapped at the highest free address below this one.
const RESTORER_END: u64 = 0x2000_0000_0000;

/// Returns the size of a mapping; `None` if it does not have the restorer's code.
fn code_bytes_of_restorer(line: &str) -> Option<u64> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
    let is_near = (RESTORER_END - (1 << 32)..RESTORER_END).contains(&start);
    (is_near && rest.starts_with("r-xp")).then_some(end - start)
}

/// Pager and daemon are killed while children, which are copies of a zygote, touch memory.
fn processes_killed() {
    let cluster = Cluster::start_with(2, &["--zygotes", "8"]);
    let mut parent = Parent::start(Program::Situation("paging"), &["32"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let there = ["--to", cluster.name(1)];
    let page = |numbers: &[u64]| {
        let payloads: Vec<String> = numbers.iter().map(|number| format!("{number} {PAGING_MS} held")).collect();
        seed.fork_detached(&payloads, &there)
    };
    let one = |number: u64| {
        let children = seed.fork_detached(&[format!("{number} 1")], &there);
        seed.check_answers(&parent, &children, &[number]);
    };
    let copies = || cluster.zygote_count(1, "children");
    let numbers: Vec<u64> = (10..10 + AT_ONCE).collect();
    let more: Vec<u64> = (20..20 + AT_ONCE).collect();
    let (children, after, made) = timely(|| {
        one(1);
        wait_for_zygote(&cluster, 1);
        let before = copies();
        let children = page(&numbers);
        let at_first = copies() - before;
        thread::sleep(MOMENT);
        cluster.kill_pager(1);
        let after = page(&more);
        (children, after, (at_first, copies() - before))
    });
    assert_eq!(
        made,
        (AT_ONCE, 2 * AT_ONCE),
        "not every child is a copy of the zygote, or the zygote ended with the pager"
    );
    for child in &children {
        require_own_place(child.pid);
        require_little_left(child.pid);
    }
    seed.release_children(&[&children[..], &after].concat());
    seed.check_answers(&parent, &children, &numbers);
    seed.check_answers(&parent, &after, &more);

    let children = page(&numbers);
    thread::sleep(MOMENT);
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    assert_eq!(cluster.zygote_count(1, "kept"), 0, "the zygote did not end with its daemon");
    wait::wait_until("the node knows the seed again", SOON, || {
        cluster.node(1).run(&["inspect", seed.id()]).status.success().then_some(())
    });
    seed.release_children(&children);
    seed.check_answers(&parent, &children, &numbers);
    let made = timely(|| {
        one(2);
        wait_for_zygote(&cluster, 1);
        let before = copies();
        one(3);
        copies() - before
    });
    assert_eq!(made, 1);
    parent.require_unharmed();
    drop((seed, parent));
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// No copies are made for children with the strategy `first`, of dropped seeds, or if zygotes are disabled.
fn limits_and_matching_forks() {
    let cluster = Cluster::start_with(1, &["--zygotes", "1"]);
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    wait_for_zygote(&cluster, 0);
    let copies = || cluster.zygote_count(0, "children");
    let made = timely(|| {
        if cluster.zygote_count(0, "kept") == 0 {
            seed.fork_and_check(&parent, 0, &[]);
            wait_for_zygote(&cluster, 0);
        }
        let before = copies();
        seed.fork_and_check(&parent, 1, &["--strategy", "first"]);
        seed.fork_and_check(&parent, 2, &[]);
        for (number, option) in [(3, "first"), (4, "cow"), (5, "eager")] {
            seed.fork_and_check(&parent, number, &["--strategy", option]);
        }
        let at_first = copies() - before;
        seed.fork_and_check(&parent, 6, &[]);
        (at_first, copies() - before)
    });
    assert_eq!(made, (1, 2), "only the first fork without `first` must be a copy");

    // A fork that is refused for another reason must not end the zygote.
    let ports = ["--publish", "18091:80"];
    let made = timely(|| {
        seed.fork_and_check(&parent, 6, &[]);
        wait_for_zygote(&cluster, 0);
        let before = copies();
        let child = &seed.fork_idle(1, &ports)[0];
        let refused = cluster.first().run_failing(&[&["fork", seed.id(), "--detach"], &ports[..]].concat());
        refused.require_mentions(&["port 18091", "in use"]);
        let made = (copies() - before, cluster.zygote_count(0, "kept"));
        cluster.first().run(&["kill", &child.id, "--signal", "KILL"]);
        cluster.first().run(&["wait", &child.id]);
        made
    });
    assert_eq!(made, (1, 1), "a refused fork must not make a copy or end the zygote");

    let other = Parent::start(Program::Waits, &["4"]);
    let others = Seed::prepare(cluster.first(), &other);
    let before = copies();
    others.fork_and_check(&other, 7, &[]);
    wait::wait_until("a zygote of the other seed replaces it", SOON, || {
        others.fork_and_check(&other, 8, &[]);
        assert!(cluster.zygote_count(0, "kept") <= 1, "more zygotes than allowed");
        (copies() > before).then_some(())
    });
    wait_for_zygote(&cluster, 0);
    cluster.first().json(&["drop", others.id()]);
    let has_gone = || (cluster.zygote_count(0, "kept") == 0).then_some(());
    wait::wait_until("the zygote ends with its seed", SOON, has_gone);
    drop((seed, others));

    let without = Cluster::start_with(1, &["--zygotes", "0"]);
    let seed = Seed::prepare(without.first(), &parent);
    for number in 1..4 {
        seed.fork_and_check(&parent, number, &[]);
    }
    assert_eq!((without.zygote_count(0, "kept_max"), without.zygote_count(0, "children")), (0, 0));
}

/// Returns the zygotes of this cluster's nodes. Other nodes may run on the machine too.
fn zygotes(cluster: &Cluster) -> Vec<i32> {
    let group = format!("/{}/", cluster.group());
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_zygote = |pid: &i32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.lines().any(|line| line.contains(&group) && line.ends_with("/zygotes"))
    };
    pids.filter(is_zygote).collect()
}

/// A zygote's memory is collapsed into huge pages while copies are made of it. Existing copies keep their pages. New
/// copies share the huge pages.
fn in_huge_pages() {
    let cluster = Cluster::start_with(1, &["--zygotes", "1"]);
    let mut parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    wait_for_zygote(&cluster, 0);
    seed.fork_and_check(&parent, 1, &[]);
    let before = seed.fork_idle(1, &[]);
    let mut number = 2;
    wait::wait_until("huge pages of a zygote", SOON, || {
        seed.fork_and_check(&parent, number, &[]);
        number += 1;
        zygotes(&cluster).into_iter().any(|pid| huge_kb(pid) > 0).then_some(())
    });
    let after = seed.fork_idle(1, &[]);
    assert!(huge_kb(after[0].pid) > 0, "a copy does not share the huge pages of the zygote");
    let numbers: Vec<u64> = (100..100 + AT_ONCE).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let copies = || cluster.zygote_count(0, "children");
    let made = timely(|| {
        seed.fork_and_check(&parent, number, &[]);
        wait_for_zygote(&cluster, 0);
        let before = copies();
        let children = seed.fork_detached(&payloads, &[]);
        let made = copies() - before;
        seed.check_answers(&parent, &children, &numbers);
        made
    });
    assert_eq!(made, AT_ONCE, "not every child is a copy");
    for child in before.iter().chain(&after) {
        cluster.first().run(&["kill", &child.id, "--signal", "KILL"]);
    }
    parent.require_unharmed();
}
