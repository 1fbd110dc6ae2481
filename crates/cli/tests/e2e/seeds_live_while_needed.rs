//! A seed whose pages a child needs is not dropped without `--force`, and not when its lease expires. Labels select
//! seeds.

use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use serde_json::Value;

use crate::harness::wait::{self, CommandOutput};
use crate::harness::{Cluster, FailedCommand, Farfork, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("by_children", by_children),
    Test::shared("by_seeds_of_children", by_seeds),
    Test::shared("a_lease_is_renewed_while_a_child_needs_the_seed", leases),
    Test::shared("seeds_are_selected_by_labels", labels),
    Test::alone("by_children_that_are_being_started", by_starts),
    Test::alone("by_fork_requests_that_have_not_arrived", by_requests_in_flight),
    Test::alone("unreachable_nodes_count_as_needing_a_seed", unreachable_nodes),
];

/// Time to live of the seeds. `LEASE_LIMIT` is far longer than a renewal or an expiry may take.
const TTL: &str = "2s";
const TTL_MS: u64 = 2_000;
const LEASE_LIMIT: Duration = Duration::from_secs(60);
/// If the pager was stopped for longer than this, the start of a child may fail.
const HALT_MAX: Duration = Duration::from_secs(4);
/// Number of attempts. A slow machine may be too late for a short lease, or stop the pager for too long. Such an
/// attempt proves nothing, and is repeated.
const ATTEMPTS_MAX: u32 = 12;

fn by_children(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_idle(2, &["--to", &cluster.names(&[0, 1]), "--paused"]);
    let (first, second) = (children[0].id.as_str(), children[1].id.as_str());
    // Any node can answer the query.
    for farfork in [cluster.first(), cluster.node(2)] {
        let listed = find(farfork, seed.id());
        assert_eq!(listed["needed_by_count"], 2, "{listed}");
        farfork.run_failing(&["drop", seed.id()]).require_mentions(&[
            seed.id(),
            "needed by",
            first,
            second,
            "settle",
            "--force",
        ]);
    }
    let inspected = cluster.first().json(&["inspect", seed.id()]);
    assert_eq!(inspected["needed_by"].as_array().map(Vec::len), Some(2), "{inspected}");
    assert!(inspected["own_bytes"].is_u64(), "{inspected}");

    cluster.first().json(&["settle", first]);
    cluster.first().run_failing(&["drop", seed.id()]).require_mentions(&[second]);
    kill(cluster.first(), second);
    cluster.first().json(&["drop", seed.id()]);
    kill(cluster.first(), first);

    let forced = Seed::prepare(cluster.first(), &parent);
    let child = forced.fork_idle(1, &["--to", cluster.name(1), "--paused"]).remove(0);
    cluster.first().json(&["drop", "--force", forced.id()]);
    cluster.first().json(&["unpause", &child.id]);
    let ended = cluster.first().run(&["wait", &child.id]);
    assert!(ended.stdout.contains("SIGBUS") && ended.stderr.contains(forced.id()), "{}{}", ended.stdout, ended.stderr);
    parent.require_unharmed();
}

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// A child is started while its pager is stopped, until the lease has been renewed.
fn by_starts() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Waits, &["4"]);
    let is_shown = (0..ATTEMPTS_MAX).any(|_| renewed_while_started(&cluster, &parent));
    assert!(is_shown, "in {ATTEMPTS_MAX} attempts, no lease was renewed during a start");
    drop(parent);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Returns whether the lease was renewed and the child gave the right answer. If not, the machine was seen to be slow:
/// the fork came after the end of the lease, or the pager was stopped for too long.
fn renewed_while_started(cluster: &Cluster, parent: &Parent) -> bool {
    let begun = Instant::now();
    let seed = Seed::prepare_with(cluster.first(), parent, &["--ttl", TTL]);
    let pager = pidfd::open(cluster.pager_pid(1)).expect("it lives");
    pidfd::send_signal(&pager, SIGSTOP).expect("it lives");
    let halted = Instant::now();
    let (answer, is_renewed, halt) = thread::scope(|scope| {
        let asked = scope.spawn(|| seed.fork_attached("1", &["--to", cluster.name(1)]));
        // The query does not renew the lease. Only a process that needs the seed does.
        let is_over = || Instant::now() > halted + HALT_MAX || asked.is_finished();
        let is_renewed = wait::poll_within(LEASE_LIMIT, || {
            let expires_ms = find(cluster.first(), seed.id())["expires_unix_ms"].as_u64();
            let is_renewed = expires_ms.is_some_and(|expires_ms| expires_ms >= lease_end(&seed) + TTL_MS);
            (is_renewed || expires_ms.is_none() || is_over()).then_some(is_renewed)
        });
        pidfd::send_signal(&pager, SIGCONT).expect("it lives");
        let halt = halted.elapsed();
        (asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), is_renewed == Some(true), halt)
    });
    let is_right = answer.status.code() == Some(42);
    let was_without_pager = halt > HALT_MAX && answer.stderr.contains(NO_PAGER);
    if is_right {
        assert!(is_renewed || halt > HALT_MAX, "the child ran without its pager, or without a lease of its seed");
    } else if !was_without_pager {
        assert!(!is_renewed, "after {halt:?}: {}{}", answer.stdout, answer.stderr);
        require_expired_lease(answer, &seed, begun);
    }
    is_right && is_renewed
}

/// Part of the error of a child whose pager was stopped for longer than `HALT_MAX`.
const NO_PAGER: &str = "does not answer";

/// Requires that a fork failed because the lease of its seed had expired, and that the lease had time to expire.
fn require_expired_lease(ended: CommandOutput, seed: &Seed, begun: Instant) {
    let passed = begun.elapsed();
    FailedCommand::of(ended).require_mentions(&[seed.id(), "its node has no such seed"]);
    assert!(passed >= Duration::from_millis(TTL_MS), "the lease expired within {passed:?}");
}

/// Returns the time at which a seed's first lease expires.
fn lease_end(seed: &Seed) -> u64 {
    seed.prepare_output["expires_unix_ms"].as_u64().expect("the seed has a lease")
}

/// The request for a child has not reached the child's node yet. The node that sent the request knows that the seed is
/// needed.
fn by_requests_in_flight() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Waits, &["4"]);
    // On a slow machine, the request may not even have reached its own node when the seed is to be dropped. So the wait
    // is longer in each attempt.
    let is_shown = (1..=ATTEMPTS_MAX).any(|attempt| refused_while_in_flight(&cluster, &parent, attempt * WAY_MIN));
    assert!(is_shown, "in {ATTEMPTS_MAX} attempts, the own node did not know of the request");
    drop(parent);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Time in which a request should reach its own node, in the first attempt.
const WAY_MIN: Duration = Duration::from_millis(300);

/// Returns whether the refusal of a drop has the reason. In any case, the drop is refused, because the child's node does
/// not answer, and the child gives the right answer.
fn refused_while_in_flight(cluster: &Cluster, parent: &Parent, way: Duration) -> bool {
    cluster.wait_until_all_are_alive();
    let seed = Seed::prepare(cluster.first(), parent);
    let fork = || seed.fork_attached("1", &["--to", cluster.name(1)]);
    // The first fork connects the nodes.
    assert_eq!(fork().status.code(), Some(42));
    let daemon = pidfd::open(cluster.daemon_pid(1)).expect("it lives");
    pidfd::send_signal(&daemon, SIGSTOP).expect("it lives");
    let (dropped, answer) = thread::scope(|scope| {
        let asked = scope.spawn(fork);
        thread::sleep(way);
        let dropped = cluster.first().run(&["drop", seed.id()]);
        pidfd::send_signal(&daemon, SIGCONT).expect("it lives");
        (dropped, asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    assert!(!dropped.status.success(), "the seed was dropped while a child was being started");
    assert_eq!(answer.status.code(), Some(42), "{}{}", answer.stdout, answer.stderr);
    let is_known = dropped.stderr.contains("a child that is being started");
    let reasons: &[&str] = if is_known { &[] } else { &["another node may need it", cluster.name(1)] };
    FailedCommand::of(dropped).require_mentions(&[&[seed.id(), "--force"], reasons].concat());
    is_known
}

fn by_seeds(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let second = Seed::prepare_process(cluster.node(1), &child.pid.to_string(), &[]);
    let grandchild = second.fork_idle(1, &["--to", cluster.name(2), "--paused"]).remove(0);
    let refused = cluster.first().run_failing(&["drop", seed.id()]);
    refused.require_mentions(&[&child.id, second.id(), &grandchild.id]);
    cluster.first().run_failing(&["drop", second.id()]).require_mentions(&[&grandchild.id]);
    kill(cluster.first(), &grandchild.id);
    cluster.first().json(&["drop", second.id()]);
    let third = Seed::prepare_process(cluster.node(1), &child.pid.to_string(), &[]);
    // `prepare` returns before the seed is complete. A child that ends before then leaves no seed.
    wait::wait_until("the seed is complete", LEASE_LIMIT, || {
        let listed = find(cluster.first(), seed.id());
        listed["needed_by"].as_array().is_some_and(|ids| ids.iter().any(|id| id == third.id())).then_some(())
    });
    kill(cluster.first(), &child.id);
    cluster.first().run_failing(&["drop", seed.id()]).require_mentions(&[&format!("`farfork drop {}`", third.id())]);
    cluster.first().json(&["drop", third.id()]);
    cluster.first().json(&["drop", seed.id()]);
}

fn leases(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let leased = || {
        let begun = Instant::now();
        let seed = Seed::prepare_with(cluster.first(), &parent, &["--ttl", TTL]);
        assert_eq!(seed.prepare_output["ttl_ms"], TTL_MS, "{}", seed.prepare_output);
        let started = cluster.first().run(&["fork", seed.id(), "--detach", "--to", cluster.name(1), "--paused"]);
        if started.status.success() {
            return Some((seed, started.stdout.trim().to_owned()));
        }
        // On a slow machine, the lease may have expired before the fork.
        require_expired_lease(started, &seed, begun);
        None
    };
    let (seed, child) = (0..ATTEMPTS_MAX).find_map(|_| leased()).expect("a child is started before the lease expires");
    let end_ms = lease_end(&seed) + 2 * TTL_MS;
    wait::wait_until("the lease is renewed twice", LEASE_LIMIT, || {
        let expires_ms = find(cluster.node(1), seed.id())["expires_unix_ms"].as_u64().expect("the seed is listed");
        (expires_ms >= end_ms).then_some(())
    });
    kill(cluster.first(), &child);
    wait::wait_until("the lease expires", LEASE_LIMIT, || find(cluster.first(), seed.id()).is_null().then_some(()));
}

fn labels(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["1"]);
    let blue = Seed::prepare_with(cluster.first(), &parent, &["--label", "team=blue", "--label", "size=1"]);
    let red = Seed::prepare_with(cluster.first(), &parent, &["--label", "team=red", "--label", "size=1"]);
    let listed = |options: &[&str]| {
        let said = cluster.node(1).json(&[&["seeds"], options].concat());
        let ids =
            said["seeds"].as_array().expect("a list").iter().map(|seed| seed["seed"].as_str().unwrap().to_owned());
        ids.collect::<Vec<String>>()
    };
    assert_eq!(listed(&["--label", "size=1"]), [blue.id(), red.id()]);
    assert_eq!(listed(&["--label", "size=1", "--label", "team=red"]), [red.id()]);
    assert_eq!(cluster.first().json(&["inspect", red.id()])["labels"]["team"], "red");
    cluster.first().json(&["drop", "--label", "team=blue"]);
    assert_eq!(listed(&["--label", "size=1"]), [red.id()]);
    let pid = parent.pid_text();
    cluster.first().run_failing(&["prepare", &pid, "--label", "a=b c"]).require_mentions(&["label `a=b c`", "letters"]);
}

fn unreachable_nodes() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Waits, &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    cluster.cut_link(1);
    let refused = cluster.first().run_failing(&["drop", seed.id()]);
    refused.require_mentions(&["another node may need it", cluster.name(1), "farfork up --restart", "--force"]);
    let unknown = cluster.first().run_failing(&["fork", "nobody"]);
    unknown.require_mentions(&["seed `nobody`", "without an answer", cluster.name(1), "farfork nodes"]);
    cluster.first().json(&["drop", "--force", seed.id()]);
    cluster.restore_link(1);
    cluster.wait_until_all_are_alive();
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Returns a seed from the list of a node; null if the seed is not listed.
fn find(farfork: &Farfork, id: &str) -> Value {
    let said = farfork.json(&["seeds"]);
    let seeds = said["seeds"].as_array().expect("a list").iter();
    seeds.into_iter().find(|seed| seed["seed"] == id).cloned().unwrap_or_default()
}

fn kill(farfork: &Farfork, id: &str) {
    farfork.run(&["kill", "--signal", "KILL", id]);
    farfork.run(&["wait", id]);
}
