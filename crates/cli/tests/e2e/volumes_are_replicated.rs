//! A volume with three replicas: data that one node writes is read on another node, and is in the shared tree of each
//! replica. `ls`, `status`, metrics and errors report the volume. umount(8) and `drop` remove everything.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farfork_sys::mount::table::read_own_mounts;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Cluster, scratch, unmount_volume, wait};
use crate::metrics_are_served::{PORT, ask};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_file_is_on_each_replica_and_each_mount", file_on_each_replica),
    Test::alone("a_replica_that_was_changed_is_found_and_repaired", changed_replica),
    Test::alone("down_waits_for_the_client_of_an_unmounted_volume", down_after_umount),
    Test::alone("a_cluster_without_volumes_has_no_volume_processes", no_processes_without_volumes),
    Test::alone("refusals_name_volume_cause_and_next_step", refusals),
];

/// Longest wait until changes are published on each node, or until processes have ended.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// A mounted volume. Dropping it unmounts the volume, also when a test fails.
pub(crate) struct VolumeMount {
    directory: PathBuf,
}

impl VolumeMount {
    pub(crate) fn new(cluster: &Cluster, node: usize, volume: &str, directory: &Path) -> Self {
        let directory = directory.join(format!("mount-{node}"));
        fs::create_dir(&directory).expect("a directory to mount at");
        let answer = cluster.node(node).json(&["volume", "mount", volume, &directory.to_string_lossy()]);
        let mount = Self { directory };
        assert_eq!(answer, json!({ "volume": volume, "directory": mount.directory }));
        mount
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Unmounts the volume as a user does, and waits until the processes that served it have ended.
    pub(crate) fn end(self) {
        unmount_volume(&self.directory);
        wait::wait_until("the processes of the mount have ended", SETTLE_LIMIT, || {
            volume_processes(&self.directory).is_empty().then_some(())
        });
    }
}

impl Drop for VolumeMount {
    fn drop(&mut self) {
        // umount2(2) fails if the volume is not mounted.
        let _ = unmount(&self.directory, UnmountFlags::DETACH);
    }
}

fn file_on_each_replica() {
    let cluster = Cluster::start_with(3, &["--metrics", PORT]);
    let directory = scratch::directory();
    let replicas = cluster.names(&[0, 1, 2]);
    let created = cluster.first().json(&["volume", "create", "data", "--replicas", &replicas]);
    assert_eq!(created, json!({ "volume": "data", "replicas": ["n1", "n2", "n3"] }));
    let mounts = [0, 1].map(|node| VolumeMount::new(&cluster, node, "data", directory.path()));

    let contents: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::create_dir(mounts[0].path("folder")).expect("a directory in the volume");
    write_synced(&mounts[0].path("folder/large"), &contents);
    write_synced(&mounts[0].path("small"), b"of the first node\n");
    require_contents(&mounts[1].path("folder/large"), &contents);
    require_contents(&mounts[1].path("small"), b"of the first node\n");
    // The other node becomes the writer.
    write_synced(&mounts[1].path("small"), b"of the second node\n");
    require_contents(&mounts[0].path("small"), b"of the second node\n");

    for node in 0..3 {
        let tree = cluster.run_dir(node).join("volumes/data/shared/tree");
        wait::wait_until("the shared tree has the files", SETTLE_LIMIT, || {
            let has = |name: &str, expected: &[u8]| fs::read(tree.join(name)).is_ok_and(|found| found == expected);
            (has("folder/large", &contents) && has("small", b"of the second node\n")).then_some(())
        });
    }
    require_status(&cluster);

    cluster.node(2).run_failing(&["volume", "drop", "data"]).require_mentions(&["volume data", "mounted"]);
    let cluster_dir = cluster.run_dir(0).parent().expect("a directory for each node").to_string_lossy().into_owned();
    let refused = cluster.first().run_failing(&["down", "--run-dir", &cluster_dir]);
    refused.require_mentions(&["volume data", "mounted on node n1", "umount"]);
    mounts.into_iter().for_each(VolumeMount::end);
    assert_eq!(cluster.node(2).json(&["volume", "drop", "data"]), json!({ "volume": "data" }));
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    for node in 0..3 {
        assert!(!cluster.run_dir(node).join("volumes/data").exists(), "the replica of node {node} was not removed");
    }
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Checks `ls`, `status` and the metrics of a volume that two nodes have written.
fn require_status(cluster: &Cluster) {
    let listed = cluster.node(2).json(&["volume", "ls"]);
    let volume = &listed["volumes"][0];
    assert_eq!(volume["volume"], "data");
    assert_eq!((&volume["state"], &volume["durability"]), (&json!("ready"), &json!("memory")));
    assert_eq!((&volume["replicas"], &volume["live"]), (&json!(["n1", "n2", "n3"]), &json!(["n1", "n2", "n3"])));
    assert_eq!((&volume["clients"], &volume["writer"]), (&json!(["n1", "n2"]), &json!("n2")));

    let is_published = |log: &Value| {
        let [logged, committed, published] = ["logged", "committed", "published"].map(|key| log[key].as_u64());
        logged > Some(0) && logged == committed && committed == published
    };
    wait::wait_until("each log is published on each replica", SETTLE_LIMIT, || {
        let status = cluster.node(2).json(&["volume", "status", "data"]);
        let replicas = status["replica_states"].as_array()?.clone();
        let logs = |replica: &Value| replica["logs"].as_array().cloned().unwrap_or_default();
        let is_well = |replica: &Value| replica["live"] == true && replica["failure"].is_null();
        let is_complete = |replica: &Value| logs(replica).len() == 2 && logs(replica).iter().all(is_published);
        (replicas.len() == 3 && replicas.iter().all(|replica| is_well(replica) && is_complete(replica))).then_some(())
    });
    watch_status(cluster);
    let table = cluster.first().run(&["volume", "status", "data"]);
    for part in ["VOLUME", "data", "ready", "n1,n2,n3", "REPLICA", "PUBLISHED"] {
        assert!(table.stdout.contains(part), "no {part} in\n{}", table.stdout);
    }

    let metrics = ask(cluster, 0, "GET /metrics HTTP/1.1").expect("the node listens");
    for line in [
        "farfork_volume_replica_up{volume=\"data\",replica=\"n3\"} 1",
        "farfork_volume_published_bytes_total{volume=\"data\",client=\"n1\",replica=\"n3\"} ",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
}

/// `status --watch` prints documents with rates, and ends when its output has no reader.
fn watch_status(cluster: &Cluster) {
    let mut watcher = cluster.node(1).spawn(&["volume", "status", "data", "--watch", "--json"]);
    let pictures = serde_json::Deserializer::from_reader(watcher.stdout.take().expect("a pipe")).into_iter::<Value>();
    let pictures: Vec<Value> = pictures.take(2).map(|picture| picture.expect("a document")).collect();
    for (picture, has_rates) in pictures.iter().zip([false, true]) {
        let rates = picture["rates"].as_array().expect("a list of rates");
        assert_eq!((rates.len(), &picture["volume"]), (3 * 2, &json!("data")), "two logs on three replicas: {picture}");
        assert!(rates.iter().all(|rate| rate["published_per_s"].is_u64() == has_rates), "{picture}");
    }
    let status = wait::wait_exit(&mut watcher, "`volume status --watch` without a reader", SETTLE_LIMIT);
    assert!(status.success(), "{status}");
}

/// Compares replicas after a program has changed the shared tree of a node that has not mounted the volume.
fn changed_replica() {
    let cluster = Cluster::start(3);
    let directory = scratch::directory();
    cluster.first().json(&["volume", "create", "data", "--replicas", &cluster.names(&[0, 1, 2])]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("file"), b"of the volume\n");
    let equal = cluster.node(1).json(&["volume", "check", "data"]);
    assert_eq!((&equal["differences"], &equal["inodes"]), (&json!([]), &json!(2)));
    assert_eq!(equal["replicas"], json!(["n1", "n2", "n3"]));

    let changed = cluster.run_dir(2).join("volumes/data/shared/tree/file");
    let contents = fs::read(&changed).expect("the check has published the file");
    fs::write(&changed, contents.to_ascii_uppercase()).expect("the shared tree is an ordinary directory");
    let found = cluster.first().run(&["volume", "check", "data"]);
    assert_eq!(found.status.code(), Some(1));
    for part in ["DAMAGED", "/file", "n3", "farfork volume check data --repair"] {
        assert!(found.stdout.contains(part), "no {part} in\n{}", found.stdout);
    }
    let repaired = cluster.first().json(&["volume", "check", "data", "--repair"]);
    assert_eq!(repaired["repaired"], json!(["n3"]));
    assert!(cluster.first().run(&["volume", "check", "data"]).stdout.contains("equal on n1,n2,n3"));
    require_contents(&changed, b"of the volume\n");
    let status = cluster.node(1).json(&["volume", "status", "data"]);
    assert_eq!((&status["last_check"]["differences"], &status["live"]), (&json!(0), &json!(["n1", "n2", "n3"])));
    let not_compared = cluster.first().run(&["volume", "check", "data", "--good", "n9"]);
    assert_eq!(not_compared.status.code(), Some(3));
    assert!(
        not_compared.stderr.contains("volume data") && not_compared.stderr.contains("n9"),
        "{}",
        not_compared.stderr
    );
    mount.end();
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// After umount(8), the client runs until the last program has closed its files. `down` waits for the client's end.
fn down_after_umount() {
    let cluster = Cluster::start(1);
    let directory = scratch::directory();
    cluster.first().json(&["volume", "create", "data", "--replicas", "n1"]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    let file = File::create(mount.path("file")).expect("a file in the volume");
    drop(mount);
    let run_dir = cluster.run_dir(0).parent().expect("a directory for each node").to_string_lossy().into_owned();
    thread::scope(|scope| {
        let down = scope.spawn(|| cluster.first().run(&["down", "--run-dir", &run_dir]));
        // `down` finds the client until the file is closed.
        thread::sleep(Duration::from_millis(500));
        drop(file);
        let ended = down.join().expect("the thread ends");
        ended.require_success();
    });
    assert!(!Path::new(&run_dir).exists(), "the cluster was not removed");
}

fn no_processes_without_volumes() {
    let cluster = Cluster::start(2);
    let store = cluster.run_dir(0).join("volumes");
    assert_eq!(volume_processes(&store), [0; 0]);
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    let has_started = || (volume_processes(&store).len() == 2).then_some(());
    wait::wait_until("the offload process and the worker run", SETTLE_LIMIT, has_started);
    assert_eq!(cluster.stop(), [""; 0]);
}

fn refusals() {
    let cluster = Cluster::start(1);
    let first = cluster.first();
    first.run_failing(&["volume", "create", "data", "--replicas", "n1,n9"]).require_mentions(&[
        "volume data",
        "no node n9",
        "farfork nodes",
    ]);
    first.run_failing(&["volume", "create", "data", "--replicas", "n1,n1"]).require_mentions(&["volume data", "twice"]);
    first.run_failing(&["volume", "status", "none"]).require_mentions(&["volume none"]);
    first.run_failing(&["volume", "drop", "none"]).require_mentions(&["volume none"]);
    first.run_failing(&["volume", "mount", "none", "/proc"]).require_mentions(&["volume none"]);
    first.run_failing(&["volume", "mount", "none", "/nowhere"]).require_mentions(&["volume none", "mkdir"]);
    first.json(&["volume", "create", "data", "--replicas", "n1"]);
    first.run_failing(&["volume", "create", "data", "--replicas", "n1"]).require_mentions(&["volume data"]);
    refuse_used_mount_point(&cluster);
    first.json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// A directory has one mount of a volume. Only the same volume replaces its mount, after the client has ended.
fn refuse_used_mount_point(cluster: &Cluster) {
    let (first, directory) = (cluster.first(), scratch::directory());
    first.json(&["volume", "create", "other", "--replicas", "n1"]);
    let mount = VolumeMount::new(cluster, 0, "data", directory.path());
    let point = mount.directory.to_string_lossy().into_owned();
    let refuse = |volume: &str| {
        let refused = first.run_failing(&["volume", "mount", volume, &point]);
        refused.require_mentions(&[
            &format!("volume {volume}"),
            &point,
            "volume data is mounted there",
            "volume umount",
        ]);
    };
    refuse("other");
    refuse("data");
    for process in volume_processes(&mount.directory).into_iter().filter_map(Pid::from_raw) {
        // The kernel kills the client of a killed supervisor.
        let _ = kill_process(process, Signal::KILL);
    }
    wait::wait_until("the processes of the mount have ended", SETTLE_LIMIT, || {
        volume_processes(&mount.directory).is_empty().then_some(())
    });
    refuse("other");
    first.json(&["volume", "mount", "data", &point]);
    assert_eq!(read_own_mounts().expect("mounts").iter().filter(|found| found.point == mount.directory).count(), 1);
    mount.end();
    first.json(&["volume", "drop", "other"]);
}

pub(crate) fn write_synced(path: &Path, contents: &[u8]) {
    let mut file = File::create(path).expect("a file in the volume");
    file.write_all(contents).and_then(|()| file.sync_all()).expect("the volume can be written");
}

fn require_contents(path: &Path, expected: &[u8]) {
    let found = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(found == expected, "{} has {} other bytes", path.display(), found.len());
}

/// Returns the processes of `farfork volume` that have this argument.
pub(crate) fn volume_processes(argument: &Path) -> Vec<i32> {
    let argument = argument.as_os_str().as_encoded_bytes();
    let has_argument = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |wanted: &[u8]| line.split(|byte| *byte == 0).any(|found| found == wanted);
        has(b"volume") && has(argument)
    };
    let entries = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_argument).collect()
}
