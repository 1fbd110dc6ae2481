//! A node makes a zygote before the first request: for the first seed of a process, on the seed's node; for a later
//! seed, if the previous seed was forked. Each child has the memory of its own seed. An unused zygote leaves nothing,
//! and none is made for the next seed.

use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Cluster, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, wait};
use crate::next_child_is_prestarted::in_containers;
use crate::test::Test;
use crate::zygotes_are_forked::timely;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("for_each_next_seed", each_next_seed),
    Test::alone("not_again_after_an_unused_zygote", unused_zygote),
    Test::alone("not_for_sealed_or_frozen_first_seeds", sealed_or_frozen),
    Test::alone("for_fan_outs_on_two_nodes", fan_outs),
    Test::alone("on_other_nodes", on_other_nodes),
    Test::alone("children_answer_correctly_when_processes_are_killed", processes_killed),
    Test::alone("children_of_another_node_answer_correctly_when_processes_are_killed", processes_killed_elsewhere),
];

/// Longest wait until a zygote is ready, or has ended.
const SOON: Duration = Duration::from_secs(100);
/// Time within which a zygote would have been made.
const MOMENT: Duration = Duration::from_secs(1);
/// Minimum number of speculative zygotes or children that must have been used.
const ENOUGH: u64 = 3;
/// Number of children: more than are started at once, on each of two nodes.
const MANY: u64 = 32;
/// Delays after a prepare, in milliseconds: before a zygote is made, while it is made, and when it is ready.
const MOMENTS_MS: [u64; 4] = [0, 4, 12, 60];

/// A parent that rewrites its memory before each of its seeds.
struct Changing {
    parent: Parent,
    times: u64,
}

impl Changing {
    fn start() -> Self {
        Self { parent: Parent::start(Program::Situation("rewritten_memory"), &["8"]), times: 0 }
    }

    /// Makes the parent rewrite its memory. Then makes a seed of it.
    fn seed(&mut self, cluster: &Cluster) -> Seed {
        self.times += 1;
        let pid = Pid::from_raw(self.parent.pid()).expect("a process id");
        kill_process(pid, Signal::USR1).expect("it runs");
        // The parent may handle the signal after the first tick.
        self.parent.wait_for_ticks(3);
        Seed::prepare(cluster.first(), &self.parent)
    }

    /// Forks a child of the latest seed. The child must have the memory of that seed.
    fn fork(&self, seed: &Seed, number: u64, options: &[&str]) {
        let ended = seed.fork_attached(&number.to_string(), options);
        let expected = format!("result {number} {}", number + self.times);
        let is_right = ended.status.code() == Some(42) && ended.stdout.lines().any(|line| line == expected);
        assert!(is_right, "no `{expected}`: {}\n{}{}", ended.status, ended.stderr, ended.stdout);
    }

    /// Requires that a detached child has the memory of the latest seed.
    fn check(&self, cluster: &Cluster, children: &[StartedChild], number: u64) {
        let said =
            cluster.first().json_ignoring_status(&["wait", "--results", "--timeout", WAIT_TIMEOUT, &children[0].id]);
        let expected = format!("result {number} {}", number + self.times);
        let stdout = said["children"][0]["stdout"].as_str().unwrap_or_default();
        assert!(stdout.lines().any(|line| line == expected), "no `{expected}`: {said}");
    }
}

fn wait_for(cluster: &Cluster, node: usize, what: &str, count: u64) {
    wait::wait_until(&format!("{what}: {count}"), SOON, || (cluster.zygote_count(node, what) >= count).then_some(()));
}

fn require_nothing_left(cluster: Cluster) {
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

fn each_next_seed() {
    let cluster = Cluster::start(1);
    let mut changing = Changing::start();
    let used = || cluster.zygote_count(0, "foretold_used");
    let mut rounds = 0;
    wait::wait_until("speculatively prestarted children", SOON, || {
        let made = timely(|| {
            let (seed, before) = (changing.seed(&cluster), used());
            rounds += 1;
            wait_for(&cluster, 0, "foretold", rounds);
            if rounds == 1 {
                assert!(
                    in_containers(&cluster, &changing.parent).is_empty(),
                    "the options of the next fork are unknown"
                );
            }
            thread::sleep(Duration::from_millis(100));
            changing.fork(&seed, 100 + rounds, &[]);
            used() - before
        });
        assert_eq!(made, 1, "the first child is not a copy of the speculative zygote");
        (cluster.zygote_count(0, "stood_by") >= ENOUGH).then_some(())
    });
    // A speculative child may be prestarted only after the fork for which it was intended.
    wait::wait_until("no prestarted child is left over", SOON, || {
        let seed = changing.seed(&cluster);
        rounds += 1;
        wait_for(&cluster, 0, "foretold", rounds);
        thread::sleep(Duration::from_millis(100));
        changing.fork(&seed, 100, &[]);
        thread::sleep(MOMENT / 2);
        in_containers(&cluster, &changing.parent).is_empty().then_some(())
    });

    // Forks right after prepare, some with other options.
    for number in 200..200 + ENOUGH {
        let seed = changing.seed(&cluster);
        changing.fork(&seed, number, if number % 2 == 0 { &[] } else { &["--memory", "256MiB"] });
    }
    changing.parent.require_unharmed();
    drop(changing);
    require_nothing_left(cluster);
}

fn unused_zygote() {
    let cluster = Cluster::start(1);
    let mut changing = Changing::start();
    // A speculative zygote is made for the first seed, and for a seed whose predecessor had children.
    for made in 1..=2 {
        let foretold = changing.seed(&cluster);
        wait_for(&cluster, 0, "foretold", made);
        drop(foretold);
        // A zygote of the dropped seed may just have been made. It ends a little later.
        wait::wait_until("zygotes end with seeds", SOON, || (cluster.zygote_count(0, "kept") == 0).then_some(()));
        let not_again = changing.seed(&cluster);
        thread::sleep(MOMENT);
        let told = ["kept", "foretold", "foretold_used"].map(|what| cluster.zygote_count(0, what));
        assert_eq!(told, [0, made, 0], "a zygote was made although the previous seed was not forked");
        changing.fork(&not_again, made, &[]);
    }
    let mut made = 2;
    let used = timely(|| {
        let (again, before) = (changing.seed(&cluster), cluster.zygote_count(0, "foretold_used"));
        made += 1;
        wait_for(&cluster, 0, "foretold", made);
        changing.fork(&again, made, &[]);
        cluster.zygote_count(0, "foretold_used") - before
    });
    assert_eq!(used, 1);
    drop(changing);
    require_nothing_left(cluster);
}

/// No speculative zygote is made for a seed that is being sealed, nor for a frozen seed.
fn sealed_or_frozen() {
    let cluster = Cluster::start(1);
    for options in [&["--sealed"][..], &["--freeze"]] {
        let parent = Parent::start(Program::Waits, &["8"]);
        let seed = Seed::prepare_with(cluster.first(), &parent, options);
        thread::sleep(MOMENT);
        assert_eq!(cluster.zygote_count(0, "foretold"), 0, "{options:?}");
        drop((seed, parent));
    }
    require_nothing_left(cluster);
}

/// Counts of `zygote_count` on each of two nodes.
#[derive(Debug, PartialEq, Eq)]
struct FanOutCounts {
    /// Children that are copies of a zygote.
    copies: [u64; 2],
    /// Speculative zygotes that have made a copy.
    used: [u64; 2],
}

fn fan_outs() {
    let cluster = Cluster::start(2);
    let counts_of = |what: &str| [0, 1].map(|node| cluster.zygote_count(node, what));
    let there = cluster.names(&[0, 1]);
    let numbers: Vec<u64> = (1..=MANY).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    // Prepares a parent, waits until these nodes have made a speculative zygote, and forks children on both nodes.
    let fan_out = |parent: &Parent, speculative: &[usize]| {
        let foretold = counts_of("foretold");
        let seed = Seed::prepare(cluster.first(), parent);
        speculative.iter().for_each(|&node| wait_for(&cluster, node, "foretold", foretold[node] + 1));
        let counts = || ["children", "foretold_used"].map(counts_of);
        let before = counts();
        let children = seed.fork_detached(&payloads, &["--to", &there]);
        let now = counts();
        seed.check_answers(parent, &children, &numbers);
        let [copies, used] = [0, 1].map(|what| [0, 1].map(|node| now[what][node] - before[what][node]));
        FanOutCounts { copies, used }
    };
    // The first seed of a parent has a speculative zygote only on its own node.
    let (parent, made) = timely(|| {
        let parent = Parent::start(Program::Waits, &["16"]);
        let made = fan_out(&parent, &[0]);
        (parent, made)
    });
    assert_eq!(made.used, [1, 0], "only the zygote of the seed's own node is speculative: {made:?}");
    for _ in 1..ENOUGH {
        let made = timely(|| fan_out(&parent, &[0, 1]));
        let expected = FanOutCounts { copies: [MANY / 2; 2], used: [1; 2] };
        assert_eq!(made, expected, "not every child is a copy of a speculative zygote");
    }
    assert_eq!(counts_of("stood_by"), [0; 2], "a child of a fan-out was prestarted");
    drop(parent);
    require_nothing_left(cluster);
}

/// Whichever node gets the fork, the children's node makes the speculative zygote. It drops the zygote when the seed is
/// dropped.
fn on_other_nodes() {
    let cluster = Cluster::start_with(2, &["--zygotes", "2"]);
    let mut changing = Changing::start();
    let there = ["--to", cluster.name(1)];
    let first = changing.seed(&cluster);
    wait_for(&cluster, 0, "foretold", 1);
    let children = first.fork_detached(&["1".to_owned()], &there);
    changing.check(&cluster, &children, 1);
    drop(first);
    let mut rounds = 0;
    let used = || cluster.zygote_count(1, "foretold_used");
    wait::wait_until("speculatively prestarted children", SOON, || {
        let made = timely(|| {
            let (seed, before) = (changing.seed(&cluster), used());
            rounds += 1;
            wait_for(&cluster, 1, "foretold", rounds);
            thread::sleep(Duration::from_millis(100));
            let (payload, of_node) =
                ([rounds.to_string()], |node| Seed::from_json(cluster.node(node), &seed.prepare_output.to_string()));
            // The request is sent to the seed's node or to the child's node, in turn.
            let asked = of_node((rounds % 2) as usize);
            let children = asked.fork_detached(&payload, &there);
            changing.check(&cluster, &children, rounds);
            used() - before
        });
        assert_eq!(made, 1, "the first child is not a copy of the speculative zygote");
        assert!(cluster.zygote_count(1, "kept") <= 2, "more zygotes than allowed");
        (cluster.zygote_count(1, "stood_by") >= ENOUGH).then_some(())
    });
    assert_eq!(cluster.zygote_count(0, "foretold"), 1, "a speculative zygote was made where no child was forked");

    // This seed is dropped without a fork.
    let foretold = changing.seed(&cluster);
    wait_for(&cluster, 1, "foretold", rounds + 1);
    drop(foretold);
    let used_before = used();
    let not_again = changing.seed(&cluster);
    let are_gone = || (cluster.zygote_count(1, "kept") == 0).then_some(());
    wait::wait_until("the node has dropped the zygotes of dropped seeds", SOON, are_gone);
    thread::sleep(MOMENT);
    let told = ["kept", "foretold", "foretold_used"].map(|what| cluster.zygote_count(1, what));
    assert_eq!(told, [0, rounds + 1, used_before], "a zygote was made although the previous seed was not forked");
    changing.fork(&not_again, 2, &[]);
    drop((not_again, changing));
    require_nothing_left(cluster);
}

fn processes_killed_elsewhere() {
    let cluster = Cluster::start(2);
    let mut changing = Changing::start();
    let there = ["--to", cluster.name(1)];
    let known = |changing: &mut Changing| {
        let seed = changing.seed(&cluster);
        changing.fork(&seed, 1, &there);
    };
    for moment_ms in MOMENTS_MS {
        let moment = Duration::from_millis(moment_ms);
        known(&mut changing);
        let dropped = changing.seed(&cluster);
        thread::sleep(moment);
        drop(dropped);

        known(&mut changing);
        let unpaged = changing.seed(&cluster);
        thread::sleep(moment);
        cluster.kill_pager(1);
        changing.fork(&unpaged, 2, &there);
        drop(unpaged);

        known(&mut changing);
        let unheard = changing.seed(&cluster);
        thread::sleep(moment);
        cluster.kill_daemon(1);
        cluster.restart_daemon(1);
        cluster.wait_until_all_are_alive();
        changing.fork(&unheard, 3, &there);
        drop(unheard);
    }
    known(&mut changing);
    changing.parent.require_unharmed();
    drop(changing);
    require_nothing_left(cluster);
}

fn processes_killed() {
    let cluster = Cluster::start(1);
    let mut changing = Changing::start();
    let known = |changing: &mut Changing| {
        let seed = changing.seed(&cluster);
        changing.fork(&seed, 1, &[]);
    };
    for moment_ms in MOMENTS_MS {
        let moment = Duration::from_millis(moment_ms);
        known(&mut changing);
        let dropped = changing.seed(&cluster);
        thread::sleep(moment);
        drop(dropped);

        known(&mut changing);
        let unpaged = changing.seed(&cluster);
        thread::sleep(moment);
        cluster.kill_pager(0);
        changing.fork(&unpaged, 2, &[]);
        drop(unpaged);

        known(&mut changing);
        let orphan = changing.seed(&cluster);
        thread::sleep(moment);
        changing.parent.kill();
        changing.fork(&orphan, 3, &[]);
        drop(orphan);

        changing = Changing::start();
        known(&mut changing);
        let lost = changing.seed(&cluster);
        thread::sleep(moment);
        cluster.kill_daemon(0);
        cluster.restart_daemon(0);
        assert_eq!(cluster.zygote_count(0, "kept"), 0, "the zygote did not end with its daemon");
        drop(lost);
        wait::wait_until("no zygote of a seed that was dropped", SOON, || {
            (cluster.zygote_count(0, "kept") == 0).then_some(())
        });
    }
    known(&mut changing);
    changing.parent.require_unharmed();
    drop(changing);
    require_nothing_left(cluster);
}
