//! `farfork volume` with a certificate over the network: each command, by each role, through a node without a replica, and
//! while another node is down.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Cluster, scratch, wait};
use crate::members_are_authenticated::{issue, remote};
use crate::test::Test;
use crate::volumes_are_replicated::{SETTLE_LIMIT, VolumeMount, volume_processes, write_synced};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("by_each_role", roles),
    Test::alone("through_a_node_without_a_replica", node_without_replica),
    Test::alone("while_another_node_is_down", node_down).long(),
];

/// The index of the node without a replica.
const OTHER: usize = 2;

/// Runs a command with a request to a node. The command must succeed.
#[track_caller]
fn remote_json(cluster: &Cluster, node: usize, trust: &Path, arguments: &[&str]) -> Value {
    let ended = remote(cluster, node, trust, &[arguments, &["--json"]].concat());
    assert!(ended.status.success(), "{arguments:?}: {}: {}{}", ended.status, ended.stdout, ended.stderr);
    serde_json::from_str(&ended.stdout).expect("a document")
}

fn roles() {
    let (cluster, scratch) = (Cluster::start(2), scratch::directory());
    let (client, reader) = (issue(&cluster, &scratch, "client"), issue(&cluster, &scratch, "read-only"));
    let file = scratch.path().join("catalog.json");
    let file = file.to_str().expect("a path of the test");
    let create = ["volume", "create", "data", "--replicas", "n1"];
    remote(&cluster, 0, &reader, &create).require_failure(1, &["CreateVolume", "client is required"]);
    assert_eq!(remote_json(&cluster, 0, &client, &create), json!({ "volume": "data", "replicas": ["n1"] }));

    let reads: [&[&str]; 3] = [&["volume", "ls"], &["volume", "status", "data"], &["volume", "export-catalog", file]];
    for command in reads {
        remote_json(&cluster, 0, &reader, command);
    }
    let changes: [(&[&str], &str, i32); 5] = [
        (&["volume", "check", "data"], "CheckVolume", 3),
        (&["volume", "check", "data", "--repair"], "CheckVolume", 3),
        (&["volume", "replace", "data", "n1", "n2"], "ReplaceReplica", 1),
        (&["volume", "import-catalog", file], "ImportCatalog", 1),
        (&["volume", "drop", "data"], "DropVolume", 1),
    ];
    for (command, method, status) in changes {
        let refused = remote(&cluster, 0, &reader, command);
        refused.require_failure(status, &[method, "/read-only/", "client is required", "farfork cluster issue"]);
    }
    // A mount is made on the machine of the command, so it needs the node of this machine.
    let mount = ["volume", "mount", "data", "/mnt"];
    let address = cluster.address(0).to_string();
    let refused = cluster.first().run(&[&["--node", &*address], mount.as_slice()].concat());
    refused.require_failure(1, &["volume mount", &address, "--socket"]);
    assert_eq!(remote_json(&cluster, 0, &client, &["volume", "drop", "data"]), json!({ "volume": "data" }));
    assert_eq!(cluster.stop(), [""; 0]);
}

fn node_without_replica() {
    let (cluster, scratch) = (Cluster::start(3), scratch::directory());
    let client = issue(&cluster, &scratch, "client");
    let request = |arguments: &[&str]| remote_json(&cluster, OTHER, &client, arguments);
    let too_many = (1..=17).map(|number| format!("n{number}")).collect::<Vec<_>>().join(",");
    let refused = remote(&cluster, OTHER, &client, &["volume", "create", "data", "--replicas", &too_many]);
    refused.require_failure(1, &["volume data", "1 to 16 replicas"]);
    request(&["volume", "create", "data", "--replicas", "n1,n2"]);
    let mount = VolumeMount::new(&cluster, 0, "data", scratch.path());
    write_synced(&mount.path("file"), b"of the volume\n");
    let refused = remote(&cluster, OTHER, &client, &["volume", "drop", "data"]);
    refused.require_failure(1, &["volume data", "mounted on n1"]);
    mount.end();

    let volume = &request(&["volume", "ls"])["volumes"][0];
    assert_eq!(
        (&volume["volume"], &volume["state"], &volume["writer"]),
        (&json!("data"), &json!("ready"), &json!("n1"))
    );
    require_live_replicas(&request(&["volume", "status", "data"]));
    restart_offload_process(&cluster, 0);
    require_live_replicas(&request(&["volume", "status", "data"]));
    let checked = request(&["volume", "check", "data"]);
    assert_eq!((&checked["replicas"], &checked["differences"]), (&json!(["n1", "n2"]), &json!([])));
    let file = scratch.path().join("catalog.json");
    let file = file.to_str().expect("a path of the test");
    let exported = request(&["volume", "export-catalog", file]);
    assert_eq!(exported, json!({ "file": file, "volumes": ["data"], "catalog_failure": null, "damaged": [] }));
    let imported = request(&["volume", "import-catalog", file]);
    assert_eq!(imported, json!({ "written": [], "present": ["data"], "damaged": [] }));
    let unknown = remote(&cluster, OTHER, &client, &["volume", "status", "none"]);
    unknown.require_failure(1, &["volume none", "farfork volume ls"]);

    assert_eq!(request(&["volume", "drop", "data"]), json!({ "volume": "data" }));
    assert_eq!(request(&["volume", "ls"]), json!({ "volumes": [] }));
    assert_eq!(cluster.stop(), [""; 0]);
}

fn require_live_replicas(status: &Value) {
    let replicas = status["replica_states"].as_array().expect("replicas");
    let failures: Vec<&Value> = replicas.iter().map(|replica| &replica["failure"]).collect();
    assert_eq!(failures, [&Value::Null; 2], "{status}");
}

/// Kills the offload process of a node, and waits until the next one answers. Other nodes still have connections to the earlier
/// one.
fn restart_offload_process(cluster: &Cluster, node: usize) {
    let store = cluster.run_dir(node).join("volumes");
    let offload_process = || {
        let is_offload = |pid: &i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').any(|argument| argument == "offload")
        };
        volume_processes(&store).into_iter().find(is_offload).and_then(Pid::from_raw)
    };
    let earlier = offload_process().expect("the node serves volumes");
    kill_process(earlier, Signal::KILL).expect("the process runs");
    wait::wait_until("the next offload process runs", SETTLE_LIMIT, || {
        offload_process().filter(|present| *present != earlier).map(drop)
    });
    // Waits until the process serves volumes.
    cluster.node(node).json(&["volume", "status", "data"]);
}

/// The replica of a node that is down is replaced through the node without a replica, which gets one.
fn node_down() {
    let (cluster, scratch) = (Cluster::start(3), scratch::directory());
    let client = issue(&cluster, &scratch, "client");
    let request = |arguments: &[&str]| remote_json(&cluster, OTHER, &client, arguments);
    request(&["volume", "create", "data", "--replicas", "n1,n2"]);
    cluster.stop_daemon(1);
    let address = cluster.address(1).to_string();
    remote(&cluster, 1, &client, &["volume", "ls"]).require_failure(1, &[&address]);
    let status = request(&["volume", "status", "data"]);
    let failure = status["replica_states"][1]["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("n2"), "{status}");
    let replaced = request(&["volume", "replace", "data", "n2", "n3"]);
    let remaining = replaced["remaining_files"].as_str().unwrap_or_default();
    assert!(remaining.contains("node n2 keeps its files"), "{replaced}");
    wait::wait_until("the new replica is live", SETTLE_LIMIT, || {
        (request(&["volume", "ls"])["volumes"][0]["live"] == json!(["n1", "n3"])).then_some(())
    });
    assert_eq!(request(&["volume", "drop", "data"]), json!({ "volume": "data" }));
    assert_eq!(cluster.stop(), [""; 0]);
}
