//! Each method of `--volume-copy` copies data from logs into files, also after the host worker was killed. If a node
//! cannot use the method, it gives the reason.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::Cluster;
use crate::harness::scratch::{self, Disk};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, volume_processes};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("async", || copy_with(&["--volume-copy", "async"], None)),
    Test::alone("async_batch", || copy_with(&["--volume-copy", "async-batch", "--offload-cpus", "0"], None)),
    Test::alone("event", || copy_with(&["--volume-copy", "event"], None)),
    Test::alone("memcpy_by_the_daemon", || copy_with(&["--volume-offload", "inline"], None)),
    Test::alone("none_shares_blocks", none_shares_blocks),
    Test::alone("none_without_reflinks_is_refused", none_without_reflinks),
];

const FILES: usize = 4;
const ROUNDS: usize = 60;
/// Size of the disk: enough for three replicas and their logs. mkfs.xfs(8) requires at least 300 MiB.
const DISK_MIB: u64 = 600;

/// Writes the same data to a volume and to a local directory. Both replicas must then have the same files as the
/// directory.
fn copy_with(arguments: &[&str], disk: Option<&Disk>) {
    let cluster = match disk {
        None => Cluster::start_with(2, arguments),
        Some(disk) => Cluster::start_on(disk, 2, arguments),
    };
    let (directory, model) = (scratch::directory(), scratch::directory());
    let replicas = cluster.names(&[0, 1]);
    cluster.first().json(&["volume", "create", "data", "--replicas", &replicas, "--log-size", "16MiB"]);
    let mounts = [0, 1].map(|node| VolumeMount::new(&cluster, node, "data", directory.path()));
    write_rounds(&[&mounts[0].path(""), model.path()], 0..ROUNDS / 2);
    // There is no worker if the daemon publishes (`--volume-offload inline`).
    if let Some(worker) = find_worker(&cluster, 1) {
        kill_process(worker, Signal::KILL).expect("the worker runs");
    }
    write_rounds(&[&mounts[0].path(""), model.path()], ROUNDS / 2..ROUNDS);

    for name in (0..FILES).map(|file| format!("file-{file}")) {
        let expected = fs::read(model.path().join(&name)).expect("the local directory has the file");
        let found = fs::read(mounts[1].path(&name)).expect("the volume has the file");
        assert!(found == expected, "{name}");
    }
    let checked = cluster.first().json(&["volume", "check", "data"]);
    assert_eq!(checked["differences"], json!([]));
    if disk.is_some() {
        let tree = cluster.run_dir(1).join("volumes/data/shared/tree");
        assert!(
            (0..FILES).any(|file| has_shared_blocks(&tree.join(format!("file-{file}")))),
            "no file shares blocks with a log"
        );
    }
    mounts.into_iter().for_each(VolumeMount::end);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Writes data in rounds. Some begin at a block boundary, some do not, and some overwrite earlier data before it is
/// published.
fn write_rounds(directories: &[&Path], rounds: std::ops::Range<usize>) {
    for round in rounds {
        let offset = round * 37 % 11 * 4096 + if round % 3 == 0 { 0 } else { round * 13 };
        let bytes: Vec<u8> = (0..1000 + round * 7919 % 150_000).map(|at| (round + at / 3) as u8).collect();
        for directory in directories {
            let path = directory.join(format!("file-{}", round % FILES));
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            let file: File = file.expect("a file of the volume");
            file.write_all_at(&bytes, offset as u64).expect("the volume can be written");
            if round % 10 == 9 {
                file.set_len(offset as u64 + 100).expect("the file can be truncated");
            }
            if round % 5 == 0 {
                file.sync_all().expect("fsync(2) works");
            }
        }
    }
}

fn find_worker(cluster: &Cluster, node: usize) -> Option<Pid> {
    let processes = volume_processes(&cluster.run_dir(node).join("volumes"));
    let is_worker = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|argument| argument == "worker")
    };
    processes.into_iter().find(is_worker).and_then(Pid::from_raw)
}

/// Returns whether an extent of a file also belongs to another file.
fn has_shared_blocks(file: &Path) -> bool {
    let output = Command::new("filefrag").arg("-v").arg(file).output().expect("e2fsprogs");
    String::from_utf8_lossy(&output.stdout).contains("shared")
}

fn none_shares_blocks() {
    copy_with(&["--volume-copy", "none"], Some(&Disk::with_reflinks(DISK_MIB)));
}

fn none_without_reflinks() {
    let disk = Disk::of_mib(100);
    let cluster = Cluster::start_on(&disk, 1, &["--volume-copy", "none"]);
    let refused = cluster.first().run_failing(&["volume", "create", "data", "--replicas", "n1"]);
    refused.require_mentions(&["--volume-copy none", "XFS or Btrfs", "--volume-copy memcpy"]);
    assert_eq!(cluster.stop(), [""; 0]);
}
