//! Full disks: programs get ENOSPC, and can write again when space is free.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_volume::process::{ReplicaStatus, VolumeStatus};

use super::mounted_volume::{LOG_BYTES, MountedVolume, SmallDisk};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_full_volume_reports_it_and_recovers", a_full_volume_reports_it_and_recovers),
    ("the_smallest_disk_of_the_replicas_limits_writers", the_smallest_disk_of_the_replicas_limits_writers),
    ("acknowledged_data_outlives_a_disk_that_others_fill", acknowledged_data_outlives_a_disk_that_others_fill),
    (
        "a_returning_node_without_space_for_its_logs_stops_no_writer",
        a_returning_node_without_space_for_its_logs_stops_no_writer,
    ),
    ("writers_do_not_hang_while_others_have_filled_a_disk", writers_do_not_hang_while_others_have_filled_a_disk),
];

/// Fewest bytes that fit on a small disk, in addition to the logs of three clients with 24 MiB.
const WRITTEN_MIN: u64 = 32 << 20;
/// Time of failure detection in the test in which a node dies.
const DETECTION_MS: u64 = 2_000;
/// Time for several attempts of a node to return.
const SMALL_DISK_TIME: Duration = Duration::from_secs(4);
const BLOCK_BYTES: usize = 64 << 10;
/// Space that the records of written blocks may need, and that statfs(2) does not know.
const PROMISE_ERROR_MAX: u64 = 2 << 20;
/// Freed space can be used again within this time.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);

/// Writes until the disk is full. Returns the number of written bytes.
fn fill(path: &Path) -> u64 {
    let mut file = File::create(path).unwrap();
    let block = vec![5; BLOCK_BYTES];
    let mut written = 0;
    let error = loop {
        match file.write(&block) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    file.sync_all().unwrap();
    written
}

/// As `fill`, but repeats until the space of removed files is free again.
fn fill_when_space_is_free(path: &Path) -> u64 {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    loop {
        let written = fill(path);
        if written > WRITTEN_MIN {
            return written;
        }
        assert!(Instant::now() < deadline, "only {written} bytes of {} fit", path.display());
        fs::remove_file(path).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

fn assert_filled(path: &Path, bytes: u64) {
    let data = fs::read(path).unwrap();
    assert!(data.len() as u64 == bytes && data.iter().all(|byte| *byte == 5), "the file has the written data");
}

fn write_when_space_is_free(path: &Path) {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    while let Err(error) = fs::write(path, vec![5; BLOCK_BYTES]) {
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(Instant::now() < deadline, "no space is free");
        thread::sleep(Duration::from_millis(20));
    }
}

fn a_full_volume_reports_it_and_recovers() {
    let volume = MountedVolume::create_on_small_disk();
    let path = volume.path().join("file");
    let state = rustix::fs::statvfs(volume.path()).unwrap();
    let promised = state.f_bavail * state.f_frsize;
    let written = fill(&path);
    assert!(written > WRITTEN_MIN, "{written} bytes fit");
    assert!(promised <= written + PROMISE_ERROR_MAX, "{promised} bytes are promised, {written} fit");
    assert_filled(&path, written);
    fs::remove_file(&path).unwrap();
    write_when_space_is_free(&volume.path().join("another"));
}

fn replica<'s>(status: &'s VolumeStatus, node: &str) -> &'s ReplicaStatus {
    status.replicas.iter().find(|replica| replica.node.as_str() == node).unwrap()
}

/// Each node writes in turn, with the small disk on n2 and then on n3.
fn the_smallest_disk_of_the_replicas_limits_writers() {
    for small in [1, 2] {
        let cluster = VolumeCluster::with_small_disk(small);
        for writer in 0..THREE_NODES.len() {
            let path = cluster.path(writer).join("file");
            let written = fill_when_space_is_free(&path);
            assert_filled(&path, written);
            assert!(cluster.published_tree().values().any(|(_, data)| data.len() as u64 == written));
            let status = cluster.nodes[0].status();
            let disk = replica(&status, THREE_NODES[small]);
            assert!(!disk.is_full && disk.free_bytes.unwrap() > 0, "the volume leaves a reserve: {disk:?}");
            fs::remove_file(&path).unwrap();
            // Writes from another node, whose log has used no space.
            write_when_space_is_free(&cluster.path((writer + 1) % 3).join("another"));
        }
        cluster.published_tree();
    }
}

/// Another program uses the reserve of the volume, so that acknowledged records cannot be published.
fn writers_do_not_hang_while_others_have_filled_a_disk() {
    let cluster = VolumeCluster::with_small_disk(2);
    let small = THREE_NODES[2];
    let kept = cluster.path(0).join("kept");
    fs::write(&kept, b"before").unwrap();
    let ballast = cluster.nodes[2].store().join("ballast");
    // First leave some space for the volume. Later, `fill_with_ballast` takes all space, including the reserve.
    fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let file = cluster.path(0).join("file");
    fill(&file);
    fill_with_ballast(&ballast);

    // More bytes than the rest of the last reported space.
    let data = vec![5; 2 * BLOCK_BYTES];
    for writer in 0..THREE_NODES.len() {
        let error = fs::write(cluster.path(writer).join("refused"), &data).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
    assert_eq!(fs::read(&kept).unwrap(), b"before");
    assert_eq!(replica(&cluster.nodes[0].status(), small).free_bytes, Some(0));
    // A removal needs a record, which the full disk may refuse. The call must not hang.
    let _ = fs::remove_file(&file);
    fs::remove_file(&ballast).unwrap();
    for writer in 0..THREE_NODES.len() {
        write_when_space_is_free(&cluster.path(writer).join("another"));
    }
    assert_eq!(fs::read(&kept).unwrap(), b"before");
    cluster.published_tree();
    assert!(!replica(&cluster.nodes[0].status(), small).is_full);
}

/// Another program uses all space while acknowledged records are unpublished.
fn acknowledged_data_outlives_a_disk_that_others_fill() {
    let cluster = VolumeCluster::with_small_disk(2);
    let (ballast, file) = (cluster.nodes[2].store().join("ballast"), cluster.path(0).join("file"));
    fs::write(&file, b"before").unwrap();
    // The volume may use 4 MiB in addition to its reserve.
    let free = replica(&cluster.nodes[0].status(), THREE_NODES[2]).free_bytes.unwrap();
    fs::write(&ballast, vec![1; (free - (20 << 20)) as usize]).unwrap();
    let data = vec![5; 3 << 20];
    fs::write(&file, &data).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    fill_with_ballast(&ballast);

    for writer in 0..2 {
        let refused = cluster.path(writer).join("refused");
        cluster.nodes[writer].wait_for("a write is refused", || match fs::write(&refused, vec![5; 1 << 20]) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                true
            }
        });
        assert!(fs::read(cluster.path(writer).join("file")).unwrap() == data, "node {writer} reads other data");
    }
    fs::remove_file(&ballast).unwrap();
    for writer in 0..THREE_NODES.len() {
        write_when_space_is_free(&cluster.path(writer).join("another"));
        assert!(fs::read(cluster.path(writer).join("file")).unwrap() == data, "node {writer} has lost data");
    }
    cluster.published_tree();
}

/// The new disk of the node is empty, and has space for only one of three logs.
fn a_returning_node_without_space_for_its_logs_stops_no_writer() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    // On a busy machine, the node may be considered dead, which interrupts its mount. So each write is repeated.
    let write = |cluster: &VolumeCluster, name: &str| {
        let path = cluster.path(0).join(name);
        cluster.nodes[0].wait_for("a file is synced", || {
            File::create(&path)
                .and_then(|mut file| file.write_all(&[7; BLOCK_BYTES]).and_then(|()| file.sync_all()))
                .is_ok()
        });
    };
    write(&cluster, "before");
    cluster.stop_node(2);
    let disk = SmallDisk::mount_with(&cluster.nodes[2].store(), c"size=12m,mode=700");
    cluster.nodes[2].start_processes();
    let began = Instant::now();
    while began.elapsed() < SMALL_DISK_TIME {
        write(&cluster, "meanwhile");
    }
    let status = cluster.nodes[0].status();
    let small = replica(&status, THREE_NODES[2]);
    assert!(!status.record.chain.contains(&small.node), "{status:?}");
    assert!(!small.is_full, "writers do not wait for it: {small:?}");

    // The node gets its former disk again.
    cluster.nodes[2].stop_processes();
    drop(disk);
    cluster.nodes[2].start_processes();
    cluster.wait_for_chain(0, 3);
    let tree = cluster.published_tree();
    assert_eq!(tree.len(), 2);
}

fn fill_with_ballast(path: &Path) {
    let mut ballast = File::options().append(true).open(path).unwrap();
    for bytes in [BLOCK_BYTES, 4096] {
        while ballast.write_all(&vec![1; bytes]).is_ok() {}
    }
}
