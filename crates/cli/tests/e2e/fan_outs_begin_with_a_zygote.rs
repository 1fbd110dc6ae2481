//! A fan-out of a fresh seed first makes a zygote on each node. All children except the first one of the fork are
//! copies of it. A killed pager, a dropped seed or a failed zygote changes no answer, and delays none for long.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("most_children_of_a_fresh_seed_are_zygote_copies", fresh_seeds),
    Test::alone("every_fan_out_is_of_zygote_copies", every_fan_out).long(),
    Test::alone("a_fan_out_succeeds_when_no_zygote_can_be_made", no_zygote),
    Test::alone("a_fan_out_succeeds_when_the_pager_is_killed", pager_killed),
    Test::alone("a_fan_out_ends_when_its_seed_is_dropped", seed_dropped),
];

/// Number of children of one fan-out on each node: more than the node starts at once.
const EACH: u64 = 16;
/// Minimum number of copies on each node. The first child on the node that got the request is usually restored. If the
/// wait for the zygote exceeds its time limit on a busy machine, some other children are restored too.
const COPIES_MIN: u64 = EACH - 4;
const ROUNDS: u64 = 10;
/// Longest wait until a fan-out has enough copies: a busy machine may need several fan-outs.
const COPIES_LIMIT: Duration = Duration::from_secs(200);
/// Time limit of a fan-out, against hangs. A fan-out whose zygote is lost waits for the zygote for some seconds.
const FAN_OUT_LIMIT: Duration = Duration::from_secs(90);
/// Longest wait until the zygote of a dropped seed has ended.
const SOON: Duration = Duration::from_secs(60);

fn numbers(nodes: u64) -> Vec<u64> {
    (100..100 + nodes * EACH).collect()
}

fn payloads(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

fn fan_out(cluster: &Cluster, parent: &Parent, seed: &Seed, nodes: &[usize]) {
    let numbers = numbers(nodes.len() as u64);
    let children = seed.fork_detached(&payloads(&numbers), &["--to", &cluster.names(nodes)]);
    seed.check_answers(parent, &children, &numbers);
}

/// Forks children of a fresh seed on two nodes. Returns the number of copies of a zygote on each node.
fn count_copies(cluster: &Cluster, parent: &Parent) -> [u64; 2] {
    let seed = Seed::prepare(cluster.first(), parent);
    let counts = || [0, 1].map(|node| cluster.zygote_count(node, "children"));
    let before = counts();
    fan_out(cluster, parent, &seed, &[0, 1]);
    let now = counts();
    [0, 1].map(|node| now[node] - before[node])
}

fn fresh_seeds() {
    let cluster = Cluster::start_with(2, &["--zygotes", "2"]);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let (mut has_enough, mut has_all) = (false, false);
    wait::wait_until(
        "enough copies of a zygote on both nodes, and all children of the second node are copies",
        COPIES_LIMIT,
        || {
            let copies = count_copies(&cluster, &parent);
            assert!(copies.iter().all(|copies| *copies <= EACH), "{copies:?} of {EACH} are copies");
            has_enough |= copies.iter().all(|copies| *copies >= COPIES_MIN);
            has_all |= copies[1] == EACH;
            (has_enough && has_all).then_some(())
        },
    );
    parent.require_unharmed();
}

/// Requires enough copies in every fan-out, which needs an idle machine.
fn every_fan_out() {
    let cluster = Cluster::start_with(2, &["--zygotes", "2"]);
    let parent = Parent::start(Program::Waits, &["16"]);
    for _ in 0..ROUNDS {
        let copies = count_copies(&cluster, &parent);
        assert!(copies.iter().all(|copies| (COPIES_MIN..=EACH).contains(copies)), "{copies:?} of {EACH} are copies");
    }
}

fn no_zygote() {
    let cluster = Cluster::start_with(2, &["--zygotes", "2"]);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let directory = cluster.run_dir(1).join("zygotes");
    fs::remove_dir_all(&directory).expect("the directory of zygotes is empty");
    fs::write(&directory, "").expect("a file takes the place of the directory");
    let began = Instant::now();
    fan_out(&cluster, &parent, &seed, &[1]);
    assert!(began.elapsed() < FAN_OUT_LIMIT, "it took {:?}", began.elapsed());
    assert_eq!((cluster.zygote_count(1, "children"), cluster.zygote_count(1, "kept")), (0, 0));
    parent.require_unharmed();
}

fn pager_killed() {
    let cluster = Cluster::start_with(2, &["--zygotes", "2"]);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    for moment_ms in [5, 20, 60] {
        let seed = Seed::prepare(cluster.first(), &parent);
        let began = Instant::now();
        thread::scope(|scope| {
            let fan_out = scope.spawn(|| fan_out(&cluster, &parent, &seed, &[1]));
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(moment_ms));
                cluster.kill_pager(1);
            }
            fan_out.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert!(began.elapsed() < FAN_OUT_LIMIT, "it took {:?}", began.elapsed());
    }
    parent.require_unharmed();
}

fn seed_dropped() {
    let cluster = Cluster::start_with(1, &["--zygotes", "2"]);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let count = EACH.to_string();
    for moment_ms in [5, 20, 60] {
        let seed = Seed::prepare(cluster.first(), &parent);
        let began = Instant::now();
        thread::scope(|scope| {
            let fan_out = scope.spawn(|| cluster.first().run(&["fork", seed.id(), "--detach", "-n", &count]));
            thread::sleep(Duration::from_millis(moment_ms));
            cluster.first().run(&["drop", seed.id(), "--force"]);
            fan_out.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert!(began.elapsed() < FAN_OUT_LIMIT, "it took {:?}", began.elapsed());
        wait::wait_until("no zygote of a seed that was dropped", SOON, || {
            (cluster.zygote_count(0, "kept") == 0).then_some(())
        });
    }
    let seed = Seed::prepare(cluster.first(), &parent);
    fan_out(&cluster, &parent, &seed, &[0]);
    parent.require_unharmed();
    drop((seed, parent));
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}
