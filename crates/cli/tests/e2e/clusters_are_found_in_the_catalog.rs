//! `farfork cluster init --catalog`: nodes find their cluster in an etcd, with an empty run directory and without `--join`. A
//! node that was down learns from the catalog that it was revoked. The daemons of this test run in the networks of a cluster,
//! which has the etcd.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, Cluster, Farfork, print_error, scratch, wait};
use crate::test::Test;
use crate::volumes_agree_in_etcd::run_etcdctl;
use crate::volumes_are_replicated::write_synced;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("after_a_reboot_without_join", nodes_return).long(),
    Test::alone("a_revoked_node_leaves_its_volumes", revoked_node_leaves).long(),
    Test::alone("the_members_are_moved_to_another_catalog", members_move).long(),
    Test::alone("a_cluster_does_not_use_the_prefix_of_another_one", shared_prefix).long(),
];

/// Longest wait for a state of the nodes.
const LIMIT: Duration = Duration::from_secs(60);

/// A node whose daemon the test starts by itself.
struct CatalogNode<'a> {
    name: &'static str,
    cluster: &'a Cluster,
    index: usize,
    directory: PathBuf,
    daemon: Option<Child>,
}

impl<'a> CatalogNode<'a> {
    fn new(name: &'static str, cluster: &'a Cluster, index: usize, scratch: &TestDirectory) -> Self {
        let directory = scratch.path().join(name);
        fs::create_dir(&directory).expect("a scratch directory can be written");
        Self { name, cluster, index, directory, daemon: None }
    }

    fn trust(&self) -> String {
        self.directory.join("trust").to_str().expect("a path of the test").to_owned()
    }

    fn address(&self) -> String {
        format!("{}:7500", self.cluster.ip(self.index))
    }

    fn farfork(&self) -> Farfork {
        Farfork::at(&self.directory.join("run/node.sock"))
    }

    /// Starts the daemon, and waits until it answers.
    fn start(&mut self, options: &[&str]) {
        let path = |name: &str| self.directory.join(name);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.cluster.netns(self.index)));
        command.args([BINARY, "node", "--name", self.name, "--listen", &self.address(), "--pool", "1"]);
        command.arg("--run-dir").arg(path("run")).arg("--trust").arg(path("trust"));
        command.arg("--volumes").arg(path("volumes")).arg("--user-ranges").arg(path("user-ranges")).args(options);
        let log = File::options().create(true).append(true).open(path("log")).expect("a log can be written");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        self.daemon = Some(command.spawn().expect("nsenter(1) can be started"));
        wait::wait_until("the daemon answers", LIMIT, || self.farfork().run(&["nodes"]).status.success().then_some(()));
    }

    /// Stops the daemon, as a shutdown of the machine does. Removes its run directory, and the addresses of other nodes in its
    /// trust directory, as if all nodes had others since.
    fn shut_down(&mut self) {
        let mut daemon = self.daemon.take().expect("the daemon was started");
        kill_process(Pid::from_child(&daemon), Signal::TERM).expect("our own child");
        wait::wait_exit(&mut daemon, "the daemon", LIMIT);
        fs::remove_dir_all(self.directory.join("run")).expect("the daemon has ended");
        // A daemon that knew no other node has not written it.
        let _ = fs::remove_file(self.directory.join("trust/members.json"));
    }

    /// The names of the nodes that this node sees alive.
    fn alive(&self) -> Vec<String> {
        let nodes = self.farfork().json(&["nodes"]);
        let nodes = nodes["nodes"].as_array().expect("nodes").iter().filter(|node| node["state"] == "alive");
        nodes.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect()
    }

    /// Runs `farfork cluster …` with the trust directory of the node, in its network.
    fn manage(&self, arguments: &[&str]) -> Value {
        let output = self.run_cluster_command(&self.trust(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("a document")
    }

    fn run_cluster_command(&self, trust: &str, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.cluster.netns(self.index))).args([BINARY, "cluster"]);
        command.args(arguments).args(["--json", "--trust", trust]).env_remove("FARFORK_SOCKET");
        command.output().expect("nsenter(1) can be started")
    }
}

impl Drop for CatalogNode<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            print_error(format_args!("-- log of {}:\n{log}", self.name));
        }
        if let Some(daemon) = &mut self.daemon {
            wait::kill_group(daemon);
        }
    }
}

fn nodes_return() {
    let (cluster, scratch) = (Cluster::start_with_etcd(2), scratch::directory());
    let mut first = CatalogNode::new("m1", &cluster, 0, &scratch);
    let mut second = CatalogNode::new("m2", &cluster, 1, &scratch);
    let catalog = format!("etcd://{}:2379/second", cluster.ip(0));
    first.manage(&["init", "--name", "m1", "--catalog", &catalog]);
    refuse_other_cluster(&first, &scratch, &catalog);

    start_both(&mut first, &mut second, &scratch);
    let keys = run_etcdctl(&cluster, &["get", "--keys-only", "--prefix", "/second/"]);
    for key in ["/second/cluster", "/second/members/m1", "/second/members/m2", "/second/roster"] {
        assert!(keys.lines().any(|line| line == key), "no {key} in\n{keys}");
    }
    // Nodes that only run do not change the catalog.
    let changes = run_etcdctl(&cluster, &["get", "--prefix", "/second/", "-w", "fields"]);
    std::thread::sleep(Duration::from_secs(2));
    let later = run_etcdctl(&cluster, &["get", "--prefix", "/second/", "-w", "fields"]);
    let revisions = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("ModRevision")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(revisions(&changes), revisions(&later));

    for node in [&mut second, &mut first] {
        node.shut_down();
    }
    second.start(&[]);
    assert_eq!(second.alive(), ["m2"]);
    first.start(&[]);
    require_both(&second);
    require_both(&first);

    second.shut_down();
    first.manage(&["revoke", "m2"]);
    let members = || run_etcdctl(&cluster, &["get", "--keys-only", "--prefix", "/second/members/"]);
    wait::wait_until("the revoked node is no member any more", LIMIT, || (!members().contains("m2")).then_some(()));
    first.shut_down();
    second.start(&[]);
    wait::wait_until("the revoked node learns of its revocation from the catalog", LIMIT, || {
        second.manage(&["show"])["revoked"].to_string().contains("/node/m2").then_some(())
    });
    assert!(!members().contains("m2"), "a revoked node must not return to the members");
    second.shut_down();
    drop((first, second));
    assert_eq!(cluster.stop(), [""; 0]);
}

/// The other nodes refuse the connections of the revoked node. It must not take them for dead, and continue alone.
fn revoked_node_leaves() {
    let (cluster, scratch) = (Cluster::start_with_etcd(2), scratch::directory());
    let mut first = CatalogNode::new("m1", &cluster, 0, &scratch);
    let mut second = CatalogNode::new("m2", &cluster, 1, &scratch);
    first.manage(&["init", "--name", "m1", "--catalog", &format!("etcd://{}:2379/third", cluster.ip(0))]);
    start_both(&mut first, &mut second, &scratch);
    first.farfork().json(&["volume", "create", "data", "--replicas", "m1,m2"]);
    let mounted = [&first, &second].map(|node| {
        let directory = node.directory.join("mounted");
        fs::create_dir(&directory).expect("a scratch directory can be written");
        node.farfork().json(&["volume", "mount", "data", directory.to_str().expect("a path of the test")]);
        directory
    });
    first.manage(&["revoke", "m2"]);
    // The revoked node writes until its client ends. No acknowledged file is only on this node.
    let write = |number: &usize| {
        let file = File::create(mounted[1].join(format!("file-{number}")));
        file.and_then(|mut file| file.write_all(b"acknowledged").and_then(|()| file.sync_all())).is_ok()
    };
    let acknowledged = (0..).take_while(write).count();
    wait::wait_until("the revoked node has left the chain", LIMIT, || {
        (first.farfork().json(&["volume", "ls"])["volumes"][0]["live"] == serde_json::json!(["m1"])).then_some(())
    });
    for number in 0..acknowledged {
        let contents = fs::read(mounted[0].join(format!("file-{number}"))).expect("it was acknowledged");
        assert_eq!(contents, b"acknowledged", "file {number} of {acknowledged}");
    }
    write_synced(&mounted[0].join("other"), b"of the first node");
    for directory in &mounted {
        // The mount of the revoked node may have ended.
        let _ = unmount(directory, UnmountFlags::DETACH);
    }
    first.farfork().json(&["volume", "drop", "--force", "data"]);
    first.shut_down();
    second.shut_down();
    drop((first, second));
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Starts the first node of a new cluster, and one that joins.
fn start_both(first: &mut CatalogNode<'_>, second: &mut CatalogNode<'_>, scratch: &TestDirectory) {
    first.start(&[]);
    let token = first.manage(&["token"])["token"].as_str().expect("a token").to_owned();
    let token_file = scratch.path().join("token");
    write_private(&token_file, &token);
    second.start(&["--join", &first.address(), "--token-file", token_file.to_str().expect("a path of the test")]);
    require_both(second);
}

/// The keys of another prefix stand for a new etcd. A damaged roster is the fault of the catalog.
fn members_move() {
    let (cluster, scratch) = (Cluster::start_with_etcd(2), scratch::directory());
    let mut first = CatalogNode::new("m1", &cluster, 0, &scratch);
    let mut second = CatalogNode::new("m2", &cluster, 1, &scratch);
    let [old, new] = ["old", "new"].map(|prefix| format!("etcd://{}:2379/{prefix}", cluster.ip(0)));
    first.manage(&["init", "--name", "m1", "--catalog", &old]);
    start_both(&mut first, &mut second, &scratch);

    run_etcdctl(&cluster, &["put", "/old/roster", "damaged"]);
    let log = || fs::read_to_string(first.directory.join("log")).unwrap_or_default();
    let is_named = || log().contains("the key /old/roster: the roster is damaged").then_some(());
    wait::wait_until("the damaged roster is named", LIMIT, is_named);
    run_etcdctl(&cluster, &["del", "/old/roster"]);
    let has_roster = || run_etcdctl(&cluster, &["get", "--keys-only", "/old/roster"]).contains("roster").then_some(());
    wait::wait_until("a node has written the roster again", LIMIT, has_roster);

    first.shut_down();
    second.shut_down();
    run_etcdctl(&cluster, &["del", "--prefix", "/old/"]);
    for node in [&mut first, &mut second] {
        let moved = node.manage(&["set-catalog", &new]);
        assert_eq!((moved["catalog"].as_str(), moved["trust"].as_str()), (Some(&*new), Some(&*node.trust())));
        node.start(&[]);
    }
    require_both(&first);
    require_both(&second);
    let keys = run_etcdctl(&cluster, &["get", "--keys-only", "--prefix", "/"]);
    for key in ["/new/cluster", "/new/members/m1", "/new/members/m2", "/new/roster"] {
        assert!(keys.lines().any(|line| line == key), "no {key} in\n{keys}");
    }
    assert!(!keys.contains("/old/"), "{keys}");
    refuse_other_cluster(&first, &scratch, &new);
    drop((first, second));
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Neither cluster was made with `--catalog`. The first that uses the prefix reserves it.
fn shared_prefix() {
    let (cluster, scratch) = (Cluster::start_with_etcd(1), scratch::directory());
    cluster.first().json(&["volume", "create", "data", "--replicas", "n1"]);
    let mut other = CatalogNode::new("m1", &cluster, 0, &scratch);
    other.manage(&["init", "--name", "m1"]);
    let catalog = format!("etcd://{}:2379/farfork", cluster.ip(0));
    other.start(&["--catalog", &catalog]);
    for command in [["volume", "ls"].as_slice(), &["volume", "drop", "data"]] {
        other.farfork().run_failing(command).require_mentions(&["another cluster", "another key prefix"]);
    }
    let refused = other.run_cluster_command(&other.trust(), &["set-catalog", &catalog]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("another cluster"), "{message}");
    other.shut_down();
    drop(other);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// A cluster cannot use the catalog of another one.
fn refuse_other_cluster(node: &CatalogNode<'_>, scratch: &TestDirectory, catalog: &str) {
    let trust = scratch.path().join("other");
    let arguments = ["init", "--name", "m1", "--catalog", catalog];
    let refused = node.run_cluster_command(trust.to_str().expect("a path of the test"), &arguments);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("another cluster") && message.contains(catalog), "{message}");
    assert!(!trust.exists(), "nothing was written");
}

#[track_caller]
fn require_both(node: &CatalogNode<'_>) {
    wait::wait_until("both nodes are alive", LIMIT, || (node.alive() == ["m1", "m2"]).then_some(()));
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).expect("a scratch directory can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("our own file");
}
