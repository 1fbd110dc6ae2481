//! `FARFORK_VOLUME_COMPRESS` on all nodes, and on one node only. Replicas stay equal. Nodes that compress send fewer bytes
//! for data that can be compressed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, Cluster, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::VolumeMount;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("on_all_nodes", || compress_on(&["n1", "n2", "n3"])),
    Test::alone("on_the_writer", || compress_on(&["n1"])),
    Test::alone("on_the_middle_of_the_chain", || compress_on(&["n2"])),
];

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const FILES: usize = 3;
/// Size of each file. All files together are larger than a log, so each log is written again from its start.
const FILE_BYTES: usize = 7 << 20;
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// Bytes that a node has sent to the next replica, before and after compression.
#[derive(Clone, Copy, Debug, Default)]
struct SentBytes {
    forwarded: u64,
    compressed: u64,
}

/// The first node writes text and then random data. Nodes that compress send less than a quarter of the text's size, and
/// more than three quarters of the random data's size.
fn compress_on(compressing: &[&str]) {
    let directory = scratch::directory();
    let cluster = Cluster::start_wrapped(&write_wrapper(&directory, compressing), NODES.len());
    let replicas = cluster.names(&[0, 1, 2]);
    cluster.first().json(&["volume", "create", "data", "--replicas", &replicas, "--log-size", "16MiB"]);
    let mounts = [0, 2].map(|node| VolumeMount::new(&cluster, node, "data", directory.path()));

    write_files(&mounts[0], "text", text_byte);
    let text = read_sent_bytes(&cluster);
    write_files(&mounts[0], "random", random_byte);
    let all = read_sent_bytes(&cluster);
    for (node, name) in NODES.iter().enumerate() {
        let SentBytes { forwarded, compressed } = text[node];
        // The log has headers and padding, too. The last replica sends nothing.
        assert_eq!(forwarded > (FILES * FILE_BYTES) as u64, *name != "n3", "{name} forwards {forwarded} bytes");
        if *name == "n3" || !compressing.contains(name) {
            assert_eq!(forwarded, compressed, "{name} does not compress");
            continue;
        }
        assert!(compressed < forwarded / 4, "{name} sends {compressed} of {forwarded} bytes of text");
        let (random, random_sent) = (all[node].forwarded - forwarded, all[node].compressed - compressed);
        assert!(random_sent > random / 4 * 3 && random_sent <= random, "{name} sends {random_sent} of {random} bytes");
    }

    for (name, byte) in [("text", text_byte as fn(usize) -> u8), ("random", random_byte)] {
        for file in 0..FILES {
            let found = fs::read(mounts[1].path(&format!("{name}-{file}"))).expect("the volume has it");
            assert!(found == contents(file, byte), "{name}-{file}");
        }
    }
    assert_eq!(cluster.first().json(&["volume", "check", "data"])["differences"], json!([]));
    mounts.into_iter().for_each(VolumeMount::end);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Writes a script that starts `farfork`. Only the given nodes get `FARFORK_VOLUME_COMPRESS` in their environment.
fn write_wrapper(directory: &TestDirectory, compressing: &[&str]) -> std::path::PathBuf {
    let path = directory.path().join("farfork-wrapper");
    let nodes: Vec<String> = compressing.iter().map(|node| format!("*\" --name {node} \"*")).collect();
    let script = format!(
        "#!/bin/sh\nunset FARFORK_VOLUME_COMPRESS\ncase \" $* \" in {}) export FARFORK_VOLUME_COMPRESS=lz4;; esac\nexec {BINARY} \"$@\"\n",
        nodes.join("|")
    );
    fs::write(&path, script).expect("the directory can be written");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    path
}

fn write_files(mount: &VolumeMount, name: &str, byte: fn(usize) -> u8) {
    for file in 0..FILES {
        let path = mount.path(&format!("{name}-{file}"));
        fs::write(&path, contents(file, byte)).expect("the volume takes data");
        sync_file(&path);
    }
}

fn sync_file(path: &Path) {
    fs::File::open(path).and_then(|file| file.sync_all()).expect("the volume syncs");
}

fn contents(file: usize, byte: fn(usize) -> u8) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| byte(at + file)).collect()
}

fn text_byte(at: usize) -> u8 {
    b"what a program logs, line after line\n"[at % 37] ^ u8::from(at.is_multiple_of(5000))
}

/// Returns the upper bits of a number that SplitMix64 makes from a position.
fn random_byte(at: usize) -> u8 {
    let mixed = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed.wrapping_mul(0x94D0_49BB_1331_11EB) >> 56) as u8
}

/// Waits until each node has published the first log of the volume. Returns the sent bytes of each node.
fn read_sent_bytes(cluster: &Cluster) -> [SentBytes; 3] {
    wait::wait_until("each log is published on each replica", SETTLE_LIMIT, || {
        let status = cluster.first().json(&["volume", "status", "data"]);
        let logs: Vec<&Value> =
            status["replica_states"].as_array()?.iter().map(|replica| &replica["logs"][0]).collect();
        let number = |log: &Value, key: &str| log[key].as_u64().unwrap_or_else(|| panic!("no {key} in {status}"));
        let is_published = |log: &&Value| log["logged"] == log["published"];
        let sent =
            |log: &Value| SentBytes { forwarded: number(log, "forwarded"), compressed: number(log, "compressed") };
        (logs.len() == 3 && logs.iter().all(is_published)).then(|| [sent(logs[0]), sent(logs[1]), sent(logs[2])])
    })
}
