//! The results of short-lived children are kept for commands that wait now or later, however many other children have
//! ended. Attached children are ended with the command that waits for them.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("of_short_lived_attached_children", || quick_attached(QUICK)).within(|| quick_limit(QUICK)),
    Test::alone("of_ten_thousand_short_lived_attached_children", || quick_attached(MANY_QUICK)).long(),
    Test::alone("of_short_lived_detached_children_until_they_are_waited_for", quick_detached)
        .within(|| quick_limit(QUICK)),
    Test::alone("across_a_daemon_restart", over_a_restart),
    Test::alone("unless_the_waiting_command_is_killed", client_killed),
    Test::alone("children_survive_a_killed_daemon_of_the_waiting_command", daemon_killed),
];

/// Number of short-lived children of one command. It exceeds the number of ended children that a node keeps if no command
/// needs their results.
const QUICK: u64 = 1_300;
/// Number of short-lived children in the long campaign.
const MANY_QUICK: u64 = 10_000;
const QUICK_LIMIT: Duration = Duration::from_secs(600);
const QUICK_LIMIT_EACH: Duration = Duration::from_millis(60);

/// Longest wait until children have ended after the command that waited for them.
const GONE_LIMIT: Duration = Duration::from_secs(60);

fn quick_limit(count: u64) -> Duration {
    QUICK_LIMIT + QUICK_LIMIT_EACH * u32::try_from(count).expect("the number of children fits")
}

fn lines(numbers: impl Iterator<Item = u64>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join("\n")
}

/// All children are on one node. Most have ended before the first result is requested.
fn quick_attached(count: u64) {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let file = scratch::file(&lines(0..count));
    let path = file.path().to_string_lossy();
    let ended = cluster
        .first()
        .run_within(quick_limit(count), &["fork", seed.id(), "--to", cluster.name(1), "--payloads", &path]);
    let said: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("result ")).collect();
    let expected: Vec<String> =
        (0..count).map(|number| format!("result {number} {}", parent.expected_answer(number))).collect();
    let lost = expected.len() - said.len();
    assert!(lost == 0, "{lost} of {} results are lost: {:.2000}", expected.len(), ended.stderr);
    assert!(said == expected, "results are not printed in order");
    parent.require_unharmed();
}

/// One command starts all children, and does not wait for them. A later command gets the results of all of them.
fn quick_detached() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (0..QUICK).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let nodes = cluster.names(&[0, 1, 1, 1, 1, 1, 1, 1, 1]);
    let limit = quick_limit(QUICK);
    let children = seed.fork_detached_within(limit, &payloads, &["--to", &nodes]);
    seed.check_answers_within(limit, &parent, &children, &numbers);
    parent.require_unharmed();
}

/// The next daemon still has the results that no command has requested.
fn over_a_restart() {
    const ENDED: u64 = 20;
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (0..ENDED).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    wait::wait_until("all children have ended", GONE_LIMIT, || {
        children.iter().all(|child| !is_there(child.pid)).then_some(())
    });
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    wait::wait_until("the node answers again", GONE_LIMIT, || {
        cluster.first().run(&["inspect", &children[0].id]).status.success().then_some(())
    });
    seed.check_answers(&parent, &children, &numbers);
    parent.require_unharmed();
}

fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Returns the number of running children on all nodes.
fn running(cluster: &Cluster) -> usize {
    let said = cluster.first().json(&["ps"]);
    let children = said["children"].as_array().expect("ps lists children");
    children.iter().filter(|child| child["state"] == "running").count()
}

/// Starts a command that waits for this many children that never end. Returns when all children run.
fn waiting_client(cluster: &Cluster, seed: &Seed, count: usize, options: &[&str]) -> std::process::Child {
    let file = scratch::file(&vec!["7 idle"; count].join("\n"));
    let path = file.path().to_string_lossy();
    let client = cluster.first().spawn(&[&["fork", seed.id(), "--payloads", &path], options].concat());
    wait::wait_until("all children run", GONE_LIMIT, || (running(cluster) == count).then_some(()));
    client
}

fn kill(client: &mut std::process::Child) {
    let pid = Pid::from_raw(client.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("the client runs");
    client.wait().expect("it was started here");
}

/// Kills the command: with one attached child, and with several on two nodes. The children are ended, because no
/// command could collect their results. Children of `--detach` continue.
fn client_killed() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let both = cluster.names(&[0, 1]);
    for (count, options) in
        [(1, &["--to", cluster.name(1)][..]), (6, &["--to", &both]), (4, &["--to", &both, "--json"])]
    {
        let mut client = waiting_client(&cluster, &seed, count, options);
        kill(&mut client);
        wait::wait_until("children end with their client", GONE_LIMIT, || (running(&cluster) == 0).then_some(()));
    }
    let children = seed.fork_detached(&vec!["7 idle".to_owned(); 4], &["--to", &both]);
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    let mut waiter = cluster.first().spawn(&[&["wait"], &ids[..]].concat());
    kill(&mut waiter);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(running(&cluster), children.len(), "detached children continue");
    cluster.first().json(&[&["kill", "--signal", "KILL"], &ids[..]].concat());
    parent.require_unharmed();
}

/// When a daemon dies, its clients do not count as ended: children on another node continue.
fn daemon_killed() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("idle"), &[]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--sealed", "--wait"]);
    let mut client = waiting_client(&cluster, &seed, 3, &["--to", cluster.name(1)]);
    cluster.kill_daemon(0);
    client.wait().expect("it was started here");
    std::thread::sleep(Duration::from_secs(2));
    let said = cluster.node(1).json_ignoring_status(&["ps"]);
    let children = said["children"].as_array().unwrap_or_else(|| panic!("{said}"));
    assert_eq!(children.iter().filter(|child| child["state"] == "running").count(), 3, "{said}");
    cluster.restart_daemon(0);
    parent.require_unharmed();
}
