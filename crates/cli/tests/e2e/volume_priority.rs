//! `--volume-priority idle`: the threads that replicate and publish are idle threads, and those that show that a node is
//! alive are ordinary ones. A volume works while programs use all CPUs, and no node leaves the chain.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Cluster, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, volume_processes, write_synced};

pub(crate) const TESTS: &[Test] = &[Test::alone("a_volume_works_next_to_busy_loops", next_to_busy_loops)];

const NODES: usize = 3;
const FILES: usize = 3;
/// Longest wait until changes are published on each node. Idle threads get a small share of the busy CPUs.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// SCHED_OTHER and SCHED_IDLE in `/proc/PID/stat`.
const ORDINARY: &str = "0";
const IDLE: &str = "5";

/// A busy loop on each CPU. They end when this value is dropped.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Self {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let start = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..count).map(start).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for program in &mut self.0 {
            // An error means that the program has ended.
            let _ = program.kill().and_then(|()| program.wait());
        }
    }
}

fn next_to_busy_loops() {
    let cluster = Cluster::start_with(NODES, &["--volume-priority", "idle"]);
    let directory = scratch::directory();
    let replicas = cluster.names(&[0, 1, 2]);
    cluster.first().json(&["volume", "create", "data", "--replicas", &replicas, "--log-size", "16MiB"]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    let contents = |file: usize| vec![b'a' + file as u8; 100_000];

    let loops = BusyLoops::start();
    for file in 0..FILES {
        write_synced(&mount.path(&format!("file-{file}")), &contents(file));
    }
    wait::wait_until("each node has published the files", SETTLE_LIMIT, || {
        let is_published = |node: usize| {
            let tree = cluster.run_dir(node).join("volumes/data/shared/tree");
            (0..FILES)
                .all(|file| fs::read(tree.join(format!("file-{file}"))).is_ok_and(|found| found == contents(file)))
        };
        (0..NODES).all(is_published).then_some(())
    });
    drop(loops);

    for node in 0..NODES {
        // A worker is idle only while it executes a request.
        assert_eq!(processes_with(&cluster, node, &["worker", "--priority", "idle"]).len(), 1, "node {node}");
        let threads = policies_of(&processes_with(&cluster, node, &["offload"]));
        // A thread with the name `call` may answer whether the process is alive.
        for (name, policy) in threads.iter().filter(|(name, _)| name != "call") {
            let expected = if name.starts_with("rpc-") { ORDINARY } else { IDLE };
            assert_eq!(policy, expected, "thread {name} of node {node}: {threads:?}");
        }
        for name in ["rpc-0", "log-0", "publisher"] {
            assert!(threads.iter().any(|(thread, _)| thread == name), "node {node} has no thread {name}: {threads:?}");
        }
    }
    assert_eq!(cluster.first().json(&["volume", "ls"])["volumes"][0]["live"], json!(["n1", "n2", "n3"]));
    for node in 0..NODES {
        let log = fs::read_to_string(cluster.run_dir(node).join("node.log")).expect("the log of a daemon");
        assert!(!log.contains("has left the chain"), "node {node}:\n{log}");
    }
    mount.end();
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// The processes of a node's volumes that have these arguments.
fn processes_with(cluster: &Cluster, node: usize, arguments: &[&str]) -> Vec<i32> {
    let has_arguments = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.iter().all(|wanted| line.split('\0').any(|argument| argument == *wanted))
    };
    volume_processes(&cluster.run_dir(node).join("volumes")).into_iter().filter(has_arguments).collect()
}

/// The threads of processes: name and scheduling policy of each.
fn policies_of(processes: &[i32]) -> Vec<(String, String)> {
    let threads = processes.iter().flat_map(|pid| {
        fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(|entry| entry.path())
    });
    // A thread may end between the two calls.
    threads.filter_map(|thread| policy_of(&thread)).collect()
}

/// Reads name and policy of a thread from its directory in `/proc`.
fn policy_of(thread: &Path) -> Option<(String, String)> {
    // proc(5): the name is the second field, in parentheses, and the policy is the 41st.
    const FIELDS_AFTER_NAME: usize = 38;
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    let (start, fields) = stat.rsplit_once(") ")?;
    let policy = fields.split(' ').nth(FIELDS_AFTER_NAME)?;
    Some((start.split_once('(')?.1.to_owned(), policy.to_owned()))
}
