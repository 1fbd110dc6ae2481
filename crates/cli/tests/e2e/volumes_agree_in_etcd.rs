//! The catalog is in an etcd next to the nodes. It is saved, and written into an empty etcd.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Cluster, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, write_synced};

pub(crate) const TESTS: &[Test] = &[Test::alone("an_etcd_that_is_gone_is_replaced", replaced_etcd).long()];

/// Longest wait until nodes have returned.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

fn replaced_etcd() {
    let (cluster, directory) = (Cluster::start_with_etcd(2), scratch::directory());
    cluster.first().json(&["volume", "create", "data", "--replicas", "n1,n2"]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("file"), b"acknowledged");
    mount.end();
    let file = directory.path().join("catalog.json");
    let file = file.to_str().expect("a path of the test");
    let exported = cluster.first().json(&["volume", "export-catalog", file]);
    assert_eq!(exported, json!({ "file": file, "volumes": ["data"], "catalog_failure": null }));
    cluster.first().run_failing(&["volume", "export-catalog", file]).require_mentions(&["catalog.json", "exists"]);
    let import = || cluster.first().json(&["volume", "import-catalog", file]);
    assert_eq!(import(), json!({ "written": [], "present": ["data"] }));

    (0..2).for_each(|node| cluster.stop_daemon(node));
    delete_all_keys(&cluster);
    (0..2).for_each(|node| cluster.restart_daemon(node));
    cluster.wait_until_all_are_alive();
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    assert_eq!(import(), json!({ "written": ["data"], "present": [] }));
    let is_live = || cluster.first().run(&["volume", "ls"]).stdout.contains("n1,n2").then_some(());
    wait::wait_until("the nodes serve the volume again", SETTLE_LIMIT, is_live);
    let mount = VolumeMount::new(&cluster, 1, "data", directory.path());
    assert_eq!(fs::read(mount.path("file")).expect("the file is there"), b"acknowledged");
    write_synced(&mount.path("other"), b"acknowledged");
    mount.end();

    let refused = cluster.first().run_failing(&["volume", "import-catalog", file]);
    refused.require_mentions(&["later record", "volume data", "nothing was imported"]);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Makes the etcd as empty as a new one.
fn delete_all_keys(cluster: &Cluster) {
    let endpoint = format!("--endpoints={}:2379", cluster.ip(0));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.netns(0), "etcdctl", &endpoint, "del", "--prefix", "/"]);
    let output = command.env("ETCDCTL_API", "3").output().expect("iproute2 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
