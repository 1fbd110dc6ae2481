//! The catalog is in an etcd next to the nodes. It is saved, and written into an empty etcd. An etcd that does not answer, and
//! a damaged record, are reported with the next step.

use std::fs;
use std::process::Command;
use std::time::Duration;

use farfork_sys::pidfd;
use serde_json::{Value, json};

use crate::harness::{Cluster, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, write_synced};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("an_etcd_that_is_gone_is_replaced", replaced_etcd).long(),
    Test::alone("a_silent_etcd_is_reported_with_the_next_step", silent_etcd).long(),
    Test::alone("a_damaged_record_is_listed_and_restored", damaged_record).long(),
];

const SIGSTOP: i32 = 19;

/// Longest wait until nodes have returned.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// The file is older than the logs: both nodes have written in later turns. Nothing acknowledged is lost, and both write again.
fn replaced_etcd() {
    let (cluster, directory) = (Cluster::start_with_etcd(2), scratch::directory());
    cluster.first().json(&["volume", "create", "data", "--replicas", "n1,n2"]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("file"), b"acknowledged");
    mount.end();
    let file = directory.path().join("catalog.json");
    let file = file.to_str().expect("a path of the test");
    let exported = cluster.first().json(&["volume", "export-catalog", file]);
    assert_eq!(exported, json!({ "file": file, "volumes": ["data"], "catalog_failure": null, "damaged": [] }));
    cluster.first().run_failing(&["volume", "export-catalog", file]).require_mentions(&["catalog.json", "exists"]);
    let import = || cluster.first().json(&["volume", "import-catalog", file]);
    assert_eq!(import(), json!({ "written": [], "present": ["data"], "damaged": [] }));
    write_in_turns(&cluster, "before");
    let earlier = scratch::directory();
    let mount = VolumeMount::new(&cluster, 1, "data", earlier.path());
    write_synced(&mount.path("first"), b"acknowledged");
    // Nothing is published from now on, so only the logs have the file.
    for node in 0..2 {
        let store = cluster.run_dir(node).join("volumes");
        assert_eq!(signal_processes(&["volume\0worker", store.to_str().expect("a path of the test")], SIGSTOP), 1);
    }
    write_synced(&mount.path("unpublished"), b"acknowledged");

    (0..2).for_each(|node| cluster.kill_daemon(node));
    mount.end();
    delete_all_keys(&cluster);
    (0..2).for_each(|node| cluster.restart_daemon(node));
    cluster.wait_until_all_are_alive();
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    assert_eq!(import(), json!({ "written": ["data"], "present": [], "damaged": [] }));
    let is_live = || cluster.first().run(&["volume", "ls"]).stdout.contains("n1,n2").then_some(());
    wait::wait_until("the nodes serve the volume again", SETTLE_LIMIT, is_live);
    let mount = VolumeMount::new(&cluster, 1, "data", directory.path());
    for name in ["file", "first", "unpublished"] {
        assert_eq!(fs::read(mount.path(name)).expect("the file is there"), b"acknowledged", "{name}");
    }
    write_synced(&mount.path("other"), b"acknowledged");
    mount.end();
    write_in_turns(&cluster, "after");
    let check = cluster.first().json(&["volume", "check", "data"]);
    assert_eq!(check["differences"], json!([]), "{check}");

    let refused = cluster.first().run_failing(&["volume", "import-catalog", file]);
    refused.require_mentions(&["later record", "volume data", "nothing was imported"]);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Writes files on both nodes in turns, each synced. Each node then reads all of them.
fn write_in_turns(cluster: &Cluster, prefix: &str) {
    const TURNS: usize = 5;
    let directory = scratch::directory();
    let mounts = [0, 1].map(|node| VolumeMount::new(cluster, node, "data", directory.path()));
    let names = (0..TURNS).flat_map(|turn| [0, 1].map(|node| format!("{prefix}-{turn}-{node}")));
    let names: Vec<String> = names.collect();
    for (name, mount) in names.iter().zip(mounts.iter().cycle()) {
        write_synced(&mount.path(name), name.as_bytes());
    }
    for (name, mount) in names.iter().flat_map(|name| mounts.iter().map(move |mount| (name, mount))) {
        assert_eq!(fs::read(mount.path(name)).expect("the file is there"), name.as_bytes());
    }
    mounts.into_iter().for_each(VolumeMount::end);
}

fn silent_etcd() {
    const SIGCONT: i32 = 18;
    let (cluster, directory) = (Cluster::start_with_etcd(1), scratch::directory());
    cluster.first().json(&["volume", "create", "data", "--replicas", "n1"]);
    signal_etcd(&cluster, SIGSTOP);
    let fails_with = |parts: &[&str]| {
        let ended = cluster.first().run(&["volume", "ls"]);
        (!ended.status.success() && parts.iter().all(|part| ended.stderr.contains(part))).then_some(())
    };
    let reason = ["the volumes", "cannot read the catalog etcd://", "no member has answered", "etcdctl --endpoints"];
    wait::wait_until("`volume ls` says why the catalog cannot be read", SETTLE_LIMIT, || fails_with(&reason));
    // The record that the node has read last is exported.
    let file = directory.path().join("catalog.json");
    let exported = cluster.first().json(&["volume", "export-catalog", file.to_str().expect("a path of the test")]);
    assert!(exported["catalog_failure"].as_str().is_some_and(|failure| failure.contains("no member has answered")));

    cluster.stop_daemon(0);
    cluster.restart_daemon(0);
    let reason = [&reason[..], &["node n1 serves no volumes", "the node tries again"]].concat();
    wait::wait_until("a node that was started without etcd says so", SETTLE_LIMIT, || fails_with(&reason));
    signal_etcd(&cluster, SIGCONT);
    wait::wait_until("the node serves volumes again by itself", SETTLE_LIMIT, || {
        let ended = cluster.first().run(&["volume", "ls"]);
        (ended.status.success() && ended.stdout.contains("data")).then_some(())
    });
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

fn damaged_record() {
    let (cluster, directory) = (Cluster::start_with_etcd(2), scratch::directory());
    for volume in ["data", "other"] {
        cluster.first().json(&["volume", "create", volume, "--replicas", "n1,n2"]);
    }
    let file = directory.path().join("catalog.json");
    let file = file.to_str().expect("a path of the test");
    cluster.first().json(&["volume", "export-catalog", file]);
    run_etcdctl(&cluster, &["put", "/farfork/volumes/data", "{\"format\": 1}"]);

    let listed = cluster.node(1).json(&["volume", "ls"]);
    let [damaged, other] = [&listed["volumes"][0], &listed["volumes"][1]];
    assert_eq!((&damaged["volume"], &damaged["state"]), (&json!("data"), &json!("damaged")), "{listed}");
    assert_eq!((&other["volume"], &other["state"], &other["damage"]), (&json!("other"), &json!("ready"), &json!(null)));
    assert!(damaged["damage"]["revision"].as_u64() > Some(0), "{damaged}");
    let reason = damaged["damage"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("/farfork/volumes/data"), "{damaged}");
    let table = cluster.first().run(&["volume", "ls"]).stdout;
    assert!(table.contains("damaged") && table.contains("farfork volume import-catalog FILE data"), "{table}");

    // The other record is exported and imported. The damaged one is named.
    let rest = directory.path().join("rest.json");
    let rest = rest.to_str().expect("a path of the test");
    let exported = cluster.first().run(&["volume", "export-catalog", rest, "--json"]);
    assert_eq!(exported.status.code(), Some(3), "{}", exported.stderr);
    let document: Value = serde_json::from_str(&exported.stdout).expect("a document");
    assert_eq!((&document["volumes"], &document["damaged"][0]["volume"]), (&json!(["other"]), &json!("data")));
    assert!(exported.stderr.contains("record of volume data is damaged"), "{}", exported.stderr);
    let restored = cluster.first().json(&["volume", "import-catalog", rest, "other"]);
    assert_eq!(restored, json!({ "written": [], "present": ["other"], "damaged": [] }));

    let import = ["volume", "import-catalog", file];
    let partial = cluster.first().run(&import);
    assert_eq!(partial.status.code(), Some(3), "{}", partial.stderr);
    assert!(partial.stdout.contains("in the catalog already: other"), "{}", partial.stdout);
    for part in ["record of volume data", "damaged", "import-catalog FILE data"] {
        assert!(partial.stderr.contains(part), "no {part:?} in {}", partial.stderr);
    }
    let missing = cluster.first().run_failing(&["volume", "import-catalog", "/dev/shm/none/catalog.json"]);
    missing.require_mentions(&["/dev/shm/none/catalog.json does not exist", "export-catalog"]);
    let unknown = cluster.first().run_failing(&[import.as_slice(), &["none"]].concat());
    unknown.require_mentions(&["no record of volume none", "data, other"]);
    let restored = cluster.first().json(&[import.as_slice(), &["data"]].concat());
    assert_eq!(restored, json!({ "written": ["data"], "present": [], "damaged": [] }));
    let mount = VolumeMount::new(&cluster, 1, "data", directory.path());
    write_synced(&mount.path("file"), b"acknowledged");
    mount.end();
    for volume in ["data", "other"] {
        cluster.first().json(&["volume", "drop", volume]);
    }
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Sends a signal to all members of the etcd.
fn signal_etcd(cluster: &Cluster, signal: i32) {
    let data = cluster.run_dir(0).parent().expect("a directory for each node").join("etcd");
    assert_eq!(signal_processes(&["--data-dir", data.to_str().expect("a path of the test")], signal), 3);
}

/// Sends a signal to all processes whose command line has these parts. Returns their number.
fn signal_processes(parts: &[&str], signal: i32) -> usize {
    let is_one = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parts.iter().all(|part| line.contains(part))
    };
    let entries = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    let pids: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect();
    for pid in &pids {
        let process = pidfd::open(*pid).expect("the process lives");
        pidfd::send_signal(&process, signal).expect("the process lives");
    }
    pids.len()
}

/// Makes the etcd as empty as a new one.
fn delete_all_keys(cluster: &Cluster) {
    run_etcdctl(cluster, &["del", "--prefix", "/"]);
}

/// Runs etcdctl(1) in the network of the first node. Returns its output.
pub(crate) fn run_etcdctl(cluster: &Cluster, arguments: &[&str]) -> String {
    let endpoint = format!("--endpoints={}:2379", cluster.ip(0));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.netns(0), "etcdctl", &endpoint]).args(arguments);
    let output = command.env("ETCDCTL_API", "3").output().expect("iproute2 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
