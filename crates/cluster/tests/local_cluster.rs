//! Local clusters start, work and are removed without a trace. The tests create namespaces, so they need root, and fail with
//! a message without it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_cluster::local::{LocalCluster, LocalClusterConfig, LocalError, LocalNode, UpProgress, netns_path};
use farfork_sys::pidfd;
use rustix::process::{Pid, Signal, kill_process};

const WAIT: Duration = Duration::from_secs(60);

fn config(name: &str, directory: &Path, nodes: usize) -> LocalClusterConfig {
    assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces: run them as root");
    let dummy = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/dummy_node.py");
    LocalClusterConfig::new(name, directory.join("run"), nodes, dummy)
}

/// A cluster that ends with its test, also if the test fails.
struct Cluster(Option<LocalCluster>);

impl Cluster {
    fn up(config: &LocalClusterConfig) -> Self {
        Self(Some(LocalCluster::up(config, &mut |_| ()).unwrap()))
    }

    fn down(mut self) {
        self.0.take().unwrap().down().unwrap();
    }
}

impl Deref for Cluster {
    type Target = LocalCluster;
    fn deref(&self) -> &LocalCluster {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut LocalCluster {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(LocalCluster::down) {
            eprintln!("the cluster is not removed: {error}");
        }
    }
}

/// Whether one node can connect to another node's daemon within a second.
fn reaches(from: &LocalNode, to: &LocalNode) -> bool {
    let connect = format!("exec 3<>/dev/tcp/{}/{}", to.address.ip(), to.address.port());
    let status = Command::new("ip")
        .args(["netns", "exec", &from.netns, "timeout", "1", "bash", "-c", &connect])
        .stderr(std::process::Stdio::null())
        .status();
    status.unwrap().success()
}

/// Repeats [`reaches`]: the kernel may take a second to notice that a link is up again.
fn reaches_soon(from: &LocalNode, to: &LocalNode) -> bool {
    let deadline = Instant::now() + WAIT;
    while Instant::now() < deadline {
        if reaches(from, to) {
            return true;
        }
    }
    false
}

fn netns_exists(name: &str) -> bool {
    netns_path(name).exists()
}

/// Requires that a removed cluster left no namespaces, control groups, processes or files.
fn assert_no_trace(nodes: &[LocalNode], run_dir: &Path) {
    assert!(!run_dir.exists());
    for node in nodes {
        assert!(!netns_exists(&node.netns), "{}", node.netns);
        for group in &node.cgroups {
            assert!(!group.parent().unwrap().exists(), "{}", group.display());
        }
    }
    let commands =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let run_dir = run_dir.to_str().unwrap().as_bytes();
    let left = commands.filter(|command| command.windows(run_dir.len()).any(|window| window == run_dir)).count();
    assert_eq!(left, 0, "processes of the cluster");
}

#[test]
fn a_cluster_starts_and_stops_without_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let config = config("t-come-and-go", directory.path(), 3);
    let links_before = fs::read_dir("/sys/class/net").unwrap().count();
    let mut ready = Vec::new();
    let cluster = LocalCluster::up(&config, &mut |progress| {
        if let UpProgress::Ready(node) = progress {
            ready.push(node.to_owned());
        }
    });
    let cluster = Cluster(Some(cluster.unwrap()));
    assert_eq!(ready, ["n1", "n2", "n3"]);
    let nodes = cluster.nodes().to_vec();
    assert!(reaches_soon(&nodes[0], &nodes[2]) && reaches_soon(&nodes[2], &nodes[1]));
    assert_eq!(fs::read_dir("/sys/class/net").unwrap().count(), links_before, "the machine's own network is untouched");
    for node in &nodes {
        assert!(node.is_alive() && node.log_path().exists());
        let membership = fs::read_to_string(format!("/proc/{}/cgroup", node.pid().unwrap())).unwrap();
        let group = format!("/farfork-t-come-and-go/{}/farfork-daemon", node.name);
        assert_eq!(membership.lines().filter(|line| line.ends_with(&group)).count(), node.cgroups.len());
    }
    assert!(matches!(LocalCluster::up(&config, &mut |_| ()), Err(LocalError::AlreadyExists { .. })));
    // Load the cluster from its file, as another command would.
    LocalCluster::load(&config.run_dir).unwrap().down().unwrap();
    assert_no_trace(&nodes, &config.run_dir);
    assert!(matches!(LocalCluster::load(&config.run_dir), Err(LocalError::NotFound { .. })));
}

#[test]
fn a_link_is_cut_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::up(&config("t-links", directory.path(), 2));
    let [one, two] = cluster.nodes() else { panic!("two nodes") };
    assert!(reaches_soon(one, two));
    cluster.cut_link(1).unwrap();
    assert!(!reaches(one, two));
    cluster.restore_link(1).unwrap();
    assert!(reaches_soon(one, two));
    assert!(matches!(cluster.cut_link(2), Err(LocalError::NoNode { index: 2, nodes: 2 })));
    cluster.down();
}

#[test]
fn a_daemon_is_killed_and_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::up(&config("t-restart", directory.path(), 2));
    assert!(matches!(cluster.restart_node(1), Err(LocalError::AlreadyRunning { .. })));
    cluster.signal_node(1, Signal::KILL.as_raw()).unwrap();
    assert!(cluster.wait_node_exit(1, WAIT).unwrap());
    assert!(matches!(cluster.signal_node(1, Signal::KILL.as_raw()), Err(LocalError::NotRunning { .. })));
    cluster.restart_node(1).unwrap();
    assert!(reaches_soon(&cluster.nodes()[0], &cluster.nodes()[1]));
    cluster.down();
}

#[test]
fn the_next_cluster_removes_leftovers_of_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let config = config("t-crash", directory.path(), 2);
    let mut cluster = Cluster::up(&config);
    for index in 0..2 {
        cluster.signal_node(index, Signal::KILL.as_raw()).unwrap();
        cluster.wait_node_exit(index, WAIT).unwrap();
    }
    // As if the process that made the cluster had ended too.
    drop(cluster.0.take());
    cluster.0 = Some(LocalCluster::up(&config, &mut |_| ()).unwrap());
    let nodes = cluster.nodes().to_vec();
    assert!(nodes.iter().all(LocalNode::is_alive));
    cluster.down();
    assert_no_trace(&nodes, &config.run_dir);
}

#[test]
fn an_etcd_is_started_restarted_and_removed_with_its_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let config = LocalClusterConfig { has_etcd: true, ..config("t-etcd", directory.path(), 2) };
    let mut cluster = Cluster::up(&config);
    let nodes = cluster.nodes().to_vec();
    let location = cluster.catalog();
    let read = || nodes[1].run_in_network(|| Ok(location.open().and_then(|catalog| catalog.read()).is_ok()));
    assert!(read().unwrap());
    // Two of three members.
    let is_member = |command: &str| command.starts_with("etcd") && command.contains(config.run_dir.to_str().unwrap());
    let members = wait_for_three(is_member);
    members[..2].iter().for_each(|member| kill(*member));
    cluster.restart_ended(&mut |_| ()).unwrap();
    assert!(read().unwrap());
    wait_for_three(is_member);
    // As if the process that made the cluster had been killed.
    drop(cluster.0.take());
    LocalCluster::load(&config.run_dir).unwrap().down().unwrap();
    assert_no_trace(&nodes, &config.run_dir);
}

/// Kills a process, and waits for its end: a process that is about to end still counts as running.
fn kill(process: Pid) {
    let pidfd = pidfd::open(process.as_raw_pid()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    assert!(pidfd::wait_exit(&pidfd, WAIT).unwrap());
}

/// Waits until the command lines of three processes meet a condition: an etcd answers before its last member runs.
fn wait_for_three(condition: impl Fn(&str) -> bool + Copy) -> Vec<Pid> {
    let deadline = Instant::now() + WAIT;
    loop {
        let found = processes(condition);
        if found.len() == 3 {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes whose command lines meet a condition.
fn processes(condition: impl Fn(&str) -> bool) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let meets =
        |path: &Path| fs::read(path.join("cmdline")).is_ok_and(|line| condition(&String::from_utf8_lossy(&line)));
    let found = entries.filter(|entry| meets(&entry.path()));
    found.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[test]
fn a_failed_start_quotes_the_daemon_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config("t-fail", directory.path(), 2);
    config.node_arguments = vec!["--fail".to_owned()];
    let error = LocalCluster::up(&config, &mut |_| ()).unwrap_err();
    assert!(matches!(error, LocalError::DaemonEnded { .. }), "{error}");
    assert!(error.to_string().contains("no memory left on Tuesdays"), "{error}");
    assert!(!netns_exists("ff-t-fail-n1") && !netns_exists("ff-t-fail-net"));
    assert!(!config.run_dir.exists());
}

#[test]
fn a_foreign_network_namespace_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let config = config("t-taken", directory.path(), 2);
    let ip = |action| assert!(Command::new("ip").args(["netns", action, "ff-t-taken-n2"]).status().unwrap().success());
    ip("add");
    let error = LocalCluster::up(&config, &mut |_| ()).unwrap_err();
    let untouched = netns_exists("ff-t-taken-n2");
    ip("delete");
    assert!(matches!(error, LocalError::NetnsTaken { .. }) && untouched, "{error}");
    assert!(!netns_exists("ff-t-taken-net") && !config.run_dir.exists());
}

#[test]
fn a_bad_name_or_size_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, nodes) in [("Bad/Name", 1), ("good", 0), ("good", 255)] {
        let error = LocalCluster::up(&config(name, directory.path(), nodes), &mut |_| ()).unwrap_err();
        assert!(matches!(error, LocalError::InvalidName { .. } | LocalError::NodeCount { .. }), "{error}");
    }
}
