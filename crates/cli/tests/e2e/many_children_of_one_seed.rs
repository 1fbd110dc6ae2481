//! Many children of one seed are distinct and answer correctly. Each child costs a process of the node at most two
//! descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("two_hundred_children_on_two_nodes_answer_correctly", two_hundred),
    Test::shared("each_child_costs_at_most_two_descriptors", descriptors),
    Test::alone("hundreds_of_children_live_at_once", alive_at_once).within(alive_limit),
    Test::alone("children_start_from_a_pool_of_one_container", small_pool),
];

/// Environment variable with the number of children that live at once. The default suits a test machine that runs other
/// tests too.
const ALIVE_VARIABLE: &str = "FARFORK_ALIVE";
const ALIVE: usize = 200;
/// Number of children of one command.
const PORTION: usize = 50;
/// Fixed part of the time limit of a test with `ALIVE` children. `ALIVE_LIMIT_EACH` is added for each child.
const ALIVE_LIMIT: Duration = Duration::from_secs(180);
const ALIVE_LIMIT_EACH: Duration = Duration::from_millis(100);
/// Number of threads by which a daemon or a pager may exceed its number without children, however many children there
/// are. Threads that start many children at once live a little longer.
const THREADS_SLACK: usize = 64;

const ROUNDS: u64 = 10;
const AT_ONCE: u64 = 20;
const DESCRIPTORS_EACH_MAX: usize = 2;

/// Longest wait until a daemon has closed the descriptors of ended children.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// Permitted number of additional descriptors: for example, the number of connections to other nodes varies.
const DESCRIPTORS_SLACK: usize = 8;

fn two_hundred(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = cluster.names(&[1, 2]);
    let mut ids = BTreeSet::new();
    for round in 0..ROUNDS {
        let numbers: Vec<u64> = (round * AT_ONCE..(round + 1) * AT_ONCE).collect();
        let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let children = seed.fork_detached(&payloads, &["--to", &to]);
        let on_second = children.iter().filter(|child| child.node == cluster.name(1)).count() as u64;
        assert_eq!(on_second, AT_ONCE / 2, "children are not spread evenly over both nodes");
        seed.check_answers(&parent, &children, &numbers);
        ids.extend(children.into_iter().map(|child| child.id));
    }
    assert_eq!(ids.len() as u64, ROUNDS * AT_ONCE, "children have the same id");
    parent.require_unharmed();
}

fn descriptors(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
    let before = cluster.descriptors(1);

    let children = seed.fork_idle(AT_ONCE as usize, &["--to", cluster.name(1)]);
    // While a container is built, a copy of the daemon exists for some microseconds, and has its descriptors.
    wait::wait_until("no process of the node has more descriptors than its children need", SETTLE_LIMIT, || {
        let is_allowed = |(process, count): (String, usize)| {
            let had = before.get(&process).copied().unwrap_or(0);
            count <= had + children.len() * DESCRIPTORS_EACH_MAX + DESCRIPTORS_SLACK
        };
        cluster.descriptors(1).into_iter().all(is_allowed).then_some(())
    });

    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
    wait::wait_until("descriptors of ended children are closed", SETTLE_LIMIT, || {
        let after = cluster.descriptors(1);
        let is_back = |(process, count): (&String, &usize)| {
            after.get(process).is_none_or(|now| *now <= count + DESCRIPTORS_SLACK)
        };
        before.iter().all(is_back).then_some(())
    });
    parent.require_unharmed();
}

fn alive() -> usize {
    let asked = std::env::var(ALIVE_VARIABLE).ok();
    asked.map_or(ALIVE, |text| text.parse().expect("FARFORK_ALIVE is a number"))
}

fn alive_limit() -> Duration {
    ALIVE_LIMIT + ALIVE_LIMIT_EACH * u32::try_from(alive()).expect("the number of children fits")
}

/// Copies of a zygote, restored children, and children that share a network live at the same time. Further children
/// answer correctly. The daemon and its pager need only descriptors for them.
fn alive_at_once() {
    let all = alive();
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 1, &[]);
    let processes = [cluster.daemon_pid(0), cluster.pager_pid(0)];
    let threads = || processes.map(|pid| fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count());
    let (before, threads_before) = (cluster.descriptors(0), threads());

    let kinds: [&[&str]; 5] = [&[], &["--net", "shared"], &[], &["--strategy", "cow"], &[]];
    let mut children = Vec::new();
    for options in kinds.into_iter().cycle() {
        match PORTION.min(all - children.len()) {
            0 => break,
            portion => children.extend(seed.fork_detached(&vec!["7 idle".to_owned(); portion], options)),
        }
    }
    let lost: Vec<_> = children.iter().filter(|child| !Path::new(&format!("/proc/{}", child.pid)).exists()).collect();
    assert!(lost.is_empty(), "{} of {all} have ended: {lost:?}", lost.len());
    seed.fork_and_check(&parent, 2, &[]);
    wait::wait_until("no process of the node has more descriptors than its children need", SETTLE_LIMIT, || {
        let had = |process: &str| before.get(process).copied().unwrap_or(0);
        let most = |process: &str| had(process) + all * DESCRIPTORS_EACH_MAX + DESCRIPTORS_SLACK;
        cluster.descriptors(0).iter().all(|(process, count)| *count <= most(process)).then_some(())
    });
    for (now, before) in threads().into_iter().zip(threads_before) {
        assert!(now <= before + THREADS_SLACK, "{now} threads for {all} children, {before} for one");
    }

    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).take(all / 2).collect();
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
    seed.fork_and_check(&parent, 3, &[]);
    parent.require_unharmed();
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new(), "the remaining children do not end with their node");
}

/// Starts more children at once than there are pooled containers. The others wait for a container.
fn small_pool() {
    let cluster = Cluster::start_with(2, &["--pool", "1"]);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (0..AT_ONCE).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
