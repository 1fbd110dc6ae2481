//! A process with files of a volume is forked to each node that has the volume mounted at the same path. Other nodes
//! refuse it. `check` lists the files of a process that are on volumes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Cluster, Farfork, Parent, Program, Seed, programs, run_in_mounts_of, run_in_own_mounts, scratch,
    seed::without_ticks, unmount_volume, wait,
};
use crate::test::Test;
use crate::volumes_are_replicated::volume_processes;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("on_nodes_that_have_it_at_the_same_path", || run_in_own_mounts(|| forked(&[]))),
    Test::alone("on_mounts_with_read_passthrough", || run_in_own_mounts(|| forked(&["--read-passthrough"]))),
    Test::alone("only_while_they_exist_on_the_volume", || run_in_own_mounts(removed)),
    Test::alone("a_child_without_volume_files_does_not_block_unmounting", || run_in_own_mounts(unmounted)),
];

/// Longest wait until the processes of a mount have ended after the unmount.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Two nodes with a replica each. The first node has the volume mounted. The second node has its own mount namespace.
struct VolumeCluster {
    cluster: Cluster,
    directory: PathBuf,
    _scratch: crate::harness::scratch::TestDirectory,
}

impl VolumeCluster {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Creates the volume, and mounts it on the first node with these options.
    fn start_with(options: &[&str]) -> Self {
        let cluster = Cluster::start(2);
        cluster.stop_daemon(1);
        run_in_own_mounts(|| cluster.restart_daemon(1));
        cluster.wait_until_all_are_alive();
        cluster.first().json(&["volume", "create", "data", "--replicas", &cluster.names(&[0, 1])]);
        let scratch = scratch::directory();
        let directory = scratch.path().join("volume");
        fs::create_dir(&directory).expect("a directory to mount at");
        mount_volume(cluster.first(), &directory, options);
        fs::create_dir(directory.join("folder")).expect("a directory in the volume");
        let files = Self { cluster, directory, _scratch: scratch };
        let mut read = File::create(files.read()).expect("a file in the volume");
        read.write_all(b"first\nsecond\n").and_then(|()| read.sync_all()).expect("the volume can be written");
        files
    }

    fn read(&self) -> PathBuf {
        self.directory.join("folder/read")
    }

    fn written(&self) -> PathBuf {
        self.directory.join("written")
    }

    fn parent(&self, options: &[&str]) -> Parent {
        let mut command = Command::new(programs::python());
        command.arg(programs::sources().join("parents/volume_files.py"));
        Parent::start_command(command.arg(self.read()).arg(self.written()).args(options))
    }

    /// Forks a child with this number. Checks the contents of the files that the child prints.
    fn require_child(&self, seed: &Seed, number: &str, node: usize, rest: &str) {
        let ended = seed.fork_attached(number, &["--to", self.cluster.name(node)]);
        let expected = format!("rest {rest} mapped b'first' names read\n");
        assert_eq!((without_ticks(&ended.stdout), ended.status.code()), (expected, Some(42)), "{}", ended.stderr);
    }

    fn require_written(&self, expected: &str) {
        assert_eq!(fs::read_to_string(self.written()).expect("a file in the volume"), expected);
    }

    /// Unmounts as a user does. Containers in a pool must not keep the mounts in use.
    fn stop(self) {
        unmount_volume(&self.directory);
        self.wait_without_processes();
        self.drop_volume();
    }

    fn wait_without_processes(&self) {
        wait::wait_until("the processes of the mounts have ended", END_LIMIT, || {
            volume_processes(&self.directory).is_empty().then_some(())
        });
    }

    fn drop_volume(self) {
        self.cluster.first().json(&["volume", "drop", "data"]);
        assert_eq!(self.cluster.stop(), [""; 0]);
    }
}

fn forked(mount_options: &[&str]) {
    let files = VolumeCluster::start_with(mount_options);
    let VolumeCluster { cluster, directory, .. } = &files;
    let parent = files.parent(&[]);
    require_listed(cluster.first(), &parent);
    let seed = Seed::prepare(cluster.first(), &parent);
    files.require_child(&seed, "1", 0, "second/");
    files.require_written("parent\nchild 1\n");

    let refused = cluster.first().run_failing(&["fork", seed.id(), "--to", cluster.name(1)]);
    let mount_path = directory.to_string_lossy();
    let command = format!("farfork volume mount data {mount_path}");
    refused.require_mentions(&["volume data", "on node n2", &mount_path, &command]);
    let children = cluster.first().json(&["ps"])["children"].clone();
    let is_there = |child: &Value| child["node"] == "n2";
    assert!(!children.as_array().expect("a list").iter().any(is_there), "a child was started on n2: {children}");

    let second = cluster.daemon_pid(1);
    run_in_mounts_of(second, || mount_volume(cluster.node(1), directory, mount_options));
    files.require_child(&seed, "2", 1, "second/");
    // On a volume, a child finds the current contents of a file, not those at prepare.
    let mut appended = OpenOptions::new().append(true).open(files.read()).expect("a file in the volume");
    appended.write_all(b"third\n").and_then(|()| appended.sync_all()).expect("the volume can be written");
    files.require_child(&seed, "3", 1, "second/third/");
    files.require_child(&seed, "4", 0, "second/third/");
    files.require_written("parent\nchild 1\nchild 2\nchild 3\nchild 4\n");

    drop((seed, parent, appended));
    fs::remove_file(files.written()).expect("a file in the volume");
    require_locked(&files);
    require_read_only(&files);
    run_in_mounts_of(second, || unmount_volume(directory));
    files.stop();
}

/// Checks the output of `check` for a parent.
fn require_listed(node: &Farfork, parent: &Parent) {
    let checked = node.json(&["check", &parent.pid_text()]);
    let object = |kind: &str, fd: Value, path: &str| json!({ "kind": kind, "pid": parent.pid(), "fd": fd, "volume": "data", "path": path });
    let expected = json!([
        object("working directory", Value::Null, "/folder"),
        object("fd", json!(3), "/folder/read"),
        // Python's mmap object has a duplicate of the descriptor.
        object("fd", json!(4), "/folder/read"),
        object("fd", json!(5), "/written"),
        object("mapping", Value::Null, "/folder/read"),
    ]);
    assert_eq!(checked["volume_objects"], expected);
    let table = node.run(&["check", &parent.pid_text()]).stdout;
    for line in ["on volume data: /folder/read (fd 3)", "on volume data: /folder (working directory)"] {
        assert!(table.contains(line), "no {line} in\n{table}");
    }
}

/// The parent has a lock on a file. The lock exists only on the parent's node: a fork there is refused, but on another
/// node a child gets the lock.
fn require_locked(files: &VolumeCluster) {
    let parent = files.parent(&["locked"]);
    let seed = Seed::prepare(files.cluster.first(), &parent);
    let refused = files.cluster.first().run_failing(&["fork", seed.id(), "--to", files.cluster.name(0)]);
    refused.require_mentions(&["lock", "fd 5"]);
    files.require_child(&seed, "5", 1, "second/third/");
    files.require_written("parent\nchild 5\n");
}

/// A volume is read-only for untrusted children. So a fork is refused if the parent has a file of it open for writing.
fn require_read_only(files: &VolumeCluster) {
    let parent = files.parent(&[]);
    let seed = Seed::prepare(files.cluster.first(), &parent);
    for node in ["n1", "n2"] {
        let refused = files.cluster.first().run_failing(&["fork", seed.id(), "--to", node, "--untrusted"]);
        refused.require_mentions(&["fd 5", "Read-only"]);
    }
    files.require_written("parent\nchild 5\nparent\n");
}

fn removed() {
    let files = VolumeCluster::start();
    let parent = files.parent(&["removed"]);
    let refused = files.cluster.first().run_failing(&["prepare", &parent.pid_text()]);
    refused.require_mentions(&["fd 3", "folder/read", "removed from volume data", "close it"]);
    drop(parent);
    files.stop();
}

/// Two children have the volume in their containers. Only one uses it, and delays the end of the mount.
fn unmounted() {
    let files = VolumeCluster::start();
    let node = files.cluster.first();
    let parents = [Parent::start(Program::Waits, &["4"]), files.parent(&[])];
    let [idle, using] = parents.each_ref().map(|parent| {
        let seed = Seed::prepare(node, parent);
        let child = seed.fork_idle(1, &["--to", files.cluster.name(0)]).remove(0);
        // The seed uses the volume too. After settling, the child no longer needs the seed.
        node.json(&["settle", &child.id]);
        child.id
    });
    drop(parents);
    unmount_volume(&files.directory);
    let refused = node.run_failing(&["volume", "drop", "data"]);
    refused.require_mentions(&["volume data", "is mounted on n1", "children that use it"]);
    node.json(&["kill", &using]);
    files.wait_without_processes();
    let children = node.json(&["ps"])["children"].clone();
    let is_running = |child: &Value| child["child"] == *idle && child["state"] == "running";
    assert!(children.as_array().expect("a list").iter().any(is_running), "{children}");
    node.json(&["kill", &idle]);
    files.drop_volume();
}

fn mount_volume(node: &Farfork, directory: &Path, options: &[&str]) {
    let directory_text = directory.to_string_lossy();
    let mounted = node.json(&[&["volume", "mount", "data", &*directory_text], options].concat());
    assert_eq!(mounted, json!({ "volume": "data", "directory": directory }));
}
