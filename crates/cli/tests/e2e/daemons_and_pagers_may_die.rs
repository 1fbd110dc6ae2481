//! Killed daemons and pagers: children continue to fetch pages after their own daemon or pager is killed. If the owner
//! of a page has ended, an access to the page is an error, and never reads a wrong byte.

use std::thread;
use std::time::Duration;

use farfork_sys::{pidfd, ptrace};
use serde_json::Value;

use crate::harness::seed::kernel_waits_text;
use crate::harness::{Cluster, NodeProcess, Parent, Program, Seed, StartedChild, WAIT_TIMEOUT, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("children_survive_a_killed_pager", pager),
    Test::alone("children_survive_a_killed_daemon", daemon_of_children),
    Test::alone("missing_pages_are_errors_when_the_owners_daemon_was_killed", daemon_of_parent),
    Test::alone("missing_pages_are_errors_when_the_seed_was_dropped", dropped_seed),
    Test::alone("missing_pages_are_errors_at_once_when_the_owners_daemon_was_restarted", restarted_owner),
    Test::alone("missing_pages_are_errors_at_once_when_the_owner_left_the_cluster", departed_owner),
    Test::alone("missing_pages_are_errors_at_once_when_the_owner_was_revoked", revoked_owner),
    Test::alone("missing_pages_are_errors_after_the_owner_timeout", owner_timeout),
    Test::alone("a_killed_child_disturbs_no_other", child),
    Test::alone("children_survive_node_processes_killed_together", killed_together),
    Test::alone("children_survive_all_descriptor_holders_killed_together", all_holders),
    Test::alone("a_node_without_a_pager_is_not_ready", not_ready),
    Test::alone("up_restart_starts_only_ended_daemons", up_restart),
    Test::alone("up_restart_waits_for_a_killed_daemon_to_end", up_restart_of_dying),
    Test::alone("to_any_avoids_a_node_whose_daemon_was_killed", any_node),
];

/// Sets of processes to kill. None of the processes that share the pager's descriptors remains, except the stubs of the
/// containers.
const DEATHS_OF_ALL: &[&[NodeProcess]] = &[
    &[NodeProcess::Keeper, NodeProcess::Pager, NodeProcess::FdHolder],
    &[NodeProcess::Daemon, NodeProcess::Keeper, NodeProcess::Pager, NodeProcess::FdHolder],
];

/// `PTRACE_O_TRACEEXIT`: the tracee stops before it ends, with its files still open.
const TRACE_EXIT: usize = 1 << 6;

/// Longest wait until a pager is replaced, or the node is not ready.
const REPLACEMENT_LIMIT: Duration = Duration::from_secs(60);

/// Sets of processes of the children's node to kill. One process that shares the pager's descriptors remains.
const DEATHS: &[&[NodeProcess]] = &[
    &[NodeProcess::Keeper, NodeProcess::Pager],
    &[NodeProcess::Daemon, NodeProcess::Keeper, NodeProcess::Pager],
    &[NodeProcess::Daemon, NodeProcess::Pager],
    &[NodeProcess::Daemon, NodeProcess::Keeper],
    &[NodeProcess::Keeper],
    &[NodeProcess::FdHolder, NodeProcess::Pager],
    &[NodeProcess::FdHolder, NodeProcess::Keeper],
];

/// How long children fork, in milliseconds. The node's processes are killed within this time.
const FORKING_MS: u64 = 1500;
/// Time from the children's start until the processes are killed.
const FORKING_MOMENT: Duration = Duration::from_millis(400);

/// How long each child touches memory, in milliseconds.
const PAGING_MS: u64 = 3000;
/// As `PAGING_MS`, for a child that must still have missing pages when its owner dies, even late on a slow machine. The
/// child ends long before this time is over.
const MISSING_MS: u64 = 60_000;
/// Time for which a daemon is dead. It is short enough that children still touch memory at its end.
const MOMENT: Duration = Duration::from_millis(800);
/// Memory of the parent, in MiB: so much that readahead has not fetched all of it when the daemon is killed.
const MEMORY_MIB: &str = "256";
/// Time limit of `wait` for children whose owner has ended. The pager retries for a minute, in case the node returns.
const VERDICT_TIMEOUT: &str = "200s";
const VERDICT_LIMIT: Duration = Duration::from_secs(220);

/// Longest wait until killed processes have ended.
const END_LIMIT: Duration = Duration::from_secs(60);

/// How each child touches memory: empty for loads, `calls` for system calls that read it.
const HOW: [&str; 3] = ["", "", "calls"];
const NUMBERS: [u64; 3] = [11, 12, 13];
/// The exit status of each child: 128 + SIGBUS after a load; the program's own status after EFAULT.
const VERDICTS: [u64; 3] = [135, 135, 14];

/// A cluster with children on its second node that fetch pages from the first.
struct Paging {
    cluster: Cluster,
    parent: Parent,
    seed: Seed,
    children: Vec<StartedChild>,
}

impl Paging {
    fn start() -> Self {
        Self::start_for(PAGING_MS)
    }

    fn start_for(paging_ms: u64) -> Self {
        Self::start_with(Cluster::start(2), paging_ms, &[])
    }

    /// As [`Self::start`], in this cluster, with further options of `farfork fork`.
    fn start_with(cluster: Cluster, paging_ms: u64, options: &[&str]) -> Self {
        let parent = Parent::start(Program::Situation("paging"), &[MEMORY_MIB]);
        let seed = Seed::prepare(cluster.first(), &parent);
        let payloads: Vec<String> =
            NUMBERS.iter().zip(HOW).map(|(number, how)| format!("{number} {paging_ms} {how}")).collect();
        let children = seed.fork_detached(&payloads, &[&["--to", cluster.name(1)], options].concat());
        thread::sleep(MOMENT);
        Self { cluster, parent, seed, children }
    }

    fn require_right_answers(mut self) {
        self.seed.check_answers(&self.parent, &self.children, &NUMBERS);
        self.parent.require_unharmed();
        self.stop();
    }

    /// Requires that each child has ended with the error for its kind of access, and that its log has the reason.
    fn require_verdict(&mut self) {
        let second = self.cluster.node(1);
        let ids: Vec<&str> = self.children.iter().map(|child| child.id.as_str()).collect();
        let arguments = [&["wait", "--json", "--results", "--timeout", VERDICT_TIMEOUT], &ids[..]].concat();
        let said: Value = serde_json::from_str(&second.run_within(VERDICT_LIMIT, &arguments).stdout).expect("JSON");
        let ends =
            said["children"].as_array().unwrap_or_else(|| panic!("{said}\n{}", kernel_waits_text(&self.children)));
        for (end, verdict) in ends.iter().zip(VERDICTS) {
            let id = end["child"].as_str().expect("an id");
            let log = second.json(&["logs", id])["stderr"].as_str().unwrap_or_default().to_owned();
            assert!(!log.contains("wrong:"), "the child read a wrong byte: {log}");
            assert_eq!(end["exit_code"].as_u64(), Some(verdict), "{id} {}: {log}", end["state"]);
            assert!(log.contains("lost its memory"), "the log of {id} does not say why: {log}");
        }
        self.parent.require_unharmed();
    }

    /// Requires that each child has ended with the error for its kind of access, and that `ps` and `wait` say why.
    fn require_verdict_for(&mut self, cause: &str) {
        self.require_verdict();
        // The owner does not answer, or is no member.
        let listed = self.cluster.node(1).json_ignoring_status(&["ps"]);
        let listed = listed["children"].as_array().expect("children");
        for child in &self.children {
            let waited = self.cluster.node(1).json_ignoring_status(&["wait", &child.id]);
            let of_child = listed.iter().find(|listed| listed["child"] == child.id.as_str());
            for said in [&waited["children"][0], of_child.expect("the child is listed")] {
                let reason = said["memory_lost"].as_str().unwrap_or_default();
                assert!(reason.contains(cause) && reason.contains("fork again"), "no `{cause}` in {said}");
            }
        }
    }

    fn stop(self) {
        drop(self.seed);
        drop(self.parent);
        let remains = self.cluster.stop();
        assert!(remains.is_empty(), "{remains:#?}");
    }
}

fn pager() {
    let paging = Paging::start();
    for _ in 0..3 {
        paging.cluster.kill_pager(1);
        thread::sleep(Duration::from_millis(500));
    }
    paging.require_right_answers();
}

fn daemon_of_children() {
    let paging = Paging::start();
    paging.cluster.kill_daemon(1);
    thread::sleep(MOMENT);
    paging.cluster.restart_daemon(1);
    paging.require_right_answers();
}

fn daemon_of_parent() {
    let mut paging = Paging::start_for(MISSING_MS);
    paging.cluster.kill_daemon(0);
    paging.require_verdict();
    paging.cluster.restart_daemon(0);
    // The new daemon knows the addresses of the other nodes, and lists them as alive when they have answered.
    paging.cluster.wait_until_all_are_alive();
    let seed = Seed::prepare(paging.cluster.first(), &paging.parent);
    let children = seed.fork_detached(&["21 100".to_owned()], &["--to", paging.cluster.name(1)]);
    seed.check_answers(&paging.parent, &children, &[21]);
    drop(seed);
    paging.stop();
}

fn dropped_seed() {
    let mut paging = Paging::start_for(MISSING_MS);
    paging.cluster.first().json(&["drop", "--force", paging.seed.id()]);
    paging.require_verdict();
    paging.stop();
}

/// The children do not wait for the owner: its new daemon answers that it has no such seed.
fn restarted_owner() {
    let mut paging = Paging::start_for(MISSING_MS);
    paging.cluster.kill_daemon(0);
    paging.cluster.restart_daemon(0);
    paging.require_verdict_for("its owner does not have it");
    paging.cluster.wait_until_all_are_alive();
    require_new_daemon_listed(&paging.cluster);
    paging.stop();
}

/// Requires that each node lists the process and the release of the first node's new daemon.
fn require_new_daemon_listed(cluster: &Cluster) {
    let is_new = |node: &Value| node["pid"] == cluster.daemon_pid(0) && node["version"] == env!("CARGO_PKG_VERSION");
    for farfork in [cluster.first(), cluster.node(1)] {
        // The second node learns it from a heartbeat.
        wait::wait_until("the node lists the new daemon", REPLACEMENT_LIMIT, || {
            is_new(&farfork.json(&["nodes"])["nodes"][0]).then_some(())
        });
        let node = farfork.json(&["inspect", cluster.name(0)]);
        assert!(is_new(&node), "{node}");
    }
}

/// The owner's daemon stops, and reports which seeds end with it. The node of a sealed seed may serve it again.
fn departed_owner() {
    let mut paging = Paging::start_for(MISSING_MS);
    let first = paging.cluster.first();
    let sealed = Seed::prepare_with(first, &paging.parent, &["--sealed", "--wait"]);
    let waiting = sealed.fork_idle(1, &["--to", paging.cluster.name(1), "--strategy", "cow"]);
    paging.cluster.stop_daemon(0);
    paging.require_verdict_for("its node has left the cluster");
    let listed = paging.cluster.node(1).json(&["inspect", &waiting[0].id]);
    assert_eq!((&listed["state"], &listed["memory_lost"]), (&"running".into(), &Value::Null), "{listed}");
    paging.cluster.restart_daemon(0);
    paging.cluster.wait_until_all_are_alive();
    sealed.release_children(&waiting);
    drop(sealed);
    paging.stop();
}

/// The owner runs on, but its certificate is revoked.
fn revoked_owner() {
    let mut paging = Paging::start_for(MISSING_MS);
    let trust = paging.cluster.run_dir(0).join("trust");
    let name = paging.cluster.name(0).to_owned();
    paging.cluster.first().json(&["cluster", "revoke", &name, "--trust", trust.to_str().expect("UTF-8")]);
    paging.require_verdict_for("its node was revoked");
    paging.stop();
}

/// The owner is unreachable for longer than the option permits, and for less than the default.
fn owner_timeout() {
    let mut paging = Paging::start_with(Cluster::start(2), MISSING_MS, &["--owner-timeout", "2s"]);
    paging.cluster.kill_daemon(0);
    paging.require_verdict_for("cannot be reached for 2.");
    paging.cluster.restart_daemon(0);
    paging.cluster.wait_until_all_are_alive();
    for (value, part) in [("999ms", "from one second to one year"), ("400days", "to one year"), ("5", "no unit")] {
        let refused = paging.cluster.first().run(&["fork", "x", "--owner-timeout", value]);
        refused.require_failure(2, &["--owner-timeout", part]);
    }
    paging.stop();
}

/// Kills one child. The others are not affected.
fn child() {
    let mut paging = Paging::start();
    let victim = paging.children.remove(0);
    paging.cluster.first().json(&["kill", "--signal", "KILL", &victim.id]);
    let said = paging.cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &victim.id]);
    assert_eq!(said["children"][0]["signal"], 9, "{said}");
    paging.seed.check_answers(&paging.parent, &paging.children, &NUMBERS[1..]);
    wait::wait_until("the killed child has ended", END_LIMIT, || {
        (!std::fs::exists(format!("/proc/{}/maps", victim.pid)).unwrap_or(true)).then_some(())
    });
    paging.parent.require_unharmed();
    paging.stop();
}

/// Children, including copies of a zygote, fork processes while [`DEATHS`] are executed.
fn killed_together() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("forking_descendants"), &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut number = 30;
    for victims in DEATHS {
        let numbers = [number, number + 1, number + 2];
        number += 3;
        let payloads = numbers.map(|number| format!("{number} {FORKING_MS}"));
        let to_second = ["--to", cluster.name(1), "--strategy", "cow"];
        let children = seed.fork_detached(&payloads, &to_second);
        kill_while_they_fork(&cluster, victims);
        seed.check_answers(&parent, &children, &numbers);
    }
    parent.require_unharmed();
    drop(seed);
    drop(parent);
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// Kills processes of the children's node. A killed daemon is restarted.
fn kill_while_they_fork(cluster: &Cluster, victims: &[NodeProcess]) {
    thread::sleep(FORKING_MOMENT);
    cluster.kill_together(1, victims);
    if victims.contains(&NodeProcess::Daemon) {
        cluster.restart_daemon(1);
        cluster.wait_until_all_are_alive();
    }
}

/// Kills all processes of a node that share the pager's descriptors. Then existing children are served with the
/// userfaultfds that the stubs hold, and the node accepts new children.
fn all_holders() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("forking_descendants"), &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let mut number = 60;
    for victims in DEATHS_OF_ALL {
        let numbers = [number, number + 1, number + 2];
        number += 10;
        let to_second = ["--to", cluster.name(1), "--strategy", "cow"];
        let mut children = Vec::new();
        // Forks the children one by one: the later ones are copies of a zygote.
        for number in numbers {
            children.extend(seed.fork_detached(&[format!("{number} {FORKING_MS} waiting")], &to_second));
        }
        kill_while_they_fork(&cluster, victims);
        seed.check_answers(&parent, &children, &numbers);
        let later = [number, number + 1];
        let children = seed.fork_detached(&later.map(|number| format!("{number} 200")), &to_second);
        seed.check_answers(&parent, &children, &later);
    }
    parent.require_unharmed();
    drop(seed);
    drop(parent);
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// Replaces the pager's log by a directory, so that the pager cannot start.
fn not_ready() {
    let cluster = Cluster::start(2);
    let parent = Parent::start(Program::Situation("forking_descendants"), &["1"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let second = cluster.name(1);
    let node = || {
        let said = cluster.first().json(&["nodes"]);
        let nodes = said["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|node| node["name"] == second).expect("the node is listed")
    };
    let log = cluster.run_dir(1).join("pager.log");
    std::fs::remove_file(&log).expect("the pager has a log");
    std::fs::create_dir(&log).expect("a directory can be made");
    cluster.kill_together(1, DEATHS_OF_ALL[0]);
    wait::wait_until("a node that is not ready", REPLACEMENT_LIMIT, || (node()["state"] == "not ready").then_some(()));
    let reason = node()["not_ready"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("its log cannot be opened"), "{reason}");
    for _ in 0..3 {
        let children = seed.fork_detached(&["90 1".to_owned()], &["--to", "any"]);
        assert_ne!(children[0].node, second, "a node that is not ready was chosen");
    }
    let refused = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--to", second]);
    refused.require_mentions(&[second, "it takes no children", "fork to another node"]);
    std::fs::remove_dir(&log).expect("it is empty");
    wait::wait_until("a node that is ready again", REPLACEMENT_LIMIT, || (node()["state"] == "alive").then_some(()));
    let children = seed.fork_detached(&["91 1".to_owned()], &["--to", second]);
    seed.check_answers(&parent, &children, &[91]);
    drop(seed);
    drop(parent);
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// `farfork up --restart` starts the daemons that have ended, and no others.
fn up_restart() {
    let cluster = Cluster::start(3);
    let mut parent = Parent::start(Program::Arrays, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let first = cluster.daemon_pid(0);
    let run_dir = cluster_run_dir(&cluster);
    let restart = ["up", "--restart", "--run-dir", &*run_dir];
    cluster.kill_daemon(1);
    cluster.stop_daemon(2);
    let refused = cluster.first().run_failing(&["up", "--nodes", "3", "--run-dir", &run_dir]);
    refused.require_mentions(&["a cluster already runs in", &run_dir, "farfork up --restart"]);
    for _ in 0..2 {
        assert_eq!(cluster.first().json(&restart)["nodes"].as_array().map(Vec::len), Some(3));
    }
    assert_eq!(cluster.daemon_pid(0), first);
    cluster.wait_until_all_are_alive();
    seed.fork_and_check(&parent, 2, &["--to", &cluster.names(&[1, 2])]);
    parent.require_unharmed();
}

/// A tracer delays the end of the killed daemon, as a large memory or a busy machine does.
fn up_restart_of_dying() {
    let cluster = Cluster::start(2);
    let run_dir = cluster_run_dir(&cluster);
    let (killed, tracer) = (cluster.daemon_pid(1), "the tracer");
    ptrace::seize(killed, TRACE_EXIT).expect(tracer);
    let pidfd = pidfd::open(killed).expect("the daemon runs");
    pidfd::send_signal(&pidfd, 9).expect("the daemon runs");
    wait::wait_until("the daemon's end is delayed", REPLACEMENT_LIMIT, ptrace::poll_stop);
    let restart = cluster.first().spawn(&["up", "--restart", "--run-dir", &run_dir]);
    thread::sleep(MOMENT);
    ptrace::detach(killed).expect(tracer);
    cluster.wait_for_end(1);
    let restarted = wait::wait_with_output(restart, "the restart", REPLACEMENT_LIMIT);
    restarted.require_success();
    cluster.wait_until_all_are_alive();
}

fn cluster_run_dir(cluster: &Cluster) -> String {
    let run_dir = cluster.run_dir(0);
    let parent = run_dir.parent().expect("the run directory of a node is in that of its cluster");
    parent.to_string_lossy().into_owned()
}

/// The killed node still counts as alive.
fn any_node() {
    let cluster = Cluster::start(3);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    cluster.kill_daemon(1);
    let numbers: Vec<u64> = (1..=8).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", "any"]);
    assert!(children.iter().all(|child| child.node != cluster.name(1)), "{children:?}");
    seed.check_answers(&parent, &children, &numbers);
    let named = cluster.first().run_failing(&["fork", seed.id(), "--detach", "--to", cluster.name(1)]);
    named.require_mentions(&[cluster.name(1), "no connection", "farfork up --restart"]);
    parent.require_unharmed();
    cluster.restart_daemon(1);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
