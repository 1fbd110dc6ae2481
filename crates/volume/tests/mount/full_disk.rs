//! Disks that are full: programs get ENOSPC, and go on when space is free.

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

/// The volume takes at least so much of a small disk. The logs of three clients have 24 MiB of it.
const WRITTEN_MIN: u64 = 32 << 20;
/// For the test in which a node dies. A busy machine is no failure of a node.
const DETECTION_MS: u64 = 2_000;
/// Several attempts of a node to return.
const SMALL_DISK_TIME: Duration = Duration::from_secs(4);
const BLOCK_BYTES: usize = 64 << 10;
/// Space that was freed is used again within this.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);

/// Writes until the disk is full. How many bytes were written.
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

/// As `fill`, once the space of removed files is free again.
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
    assert!(data.len() as u64 == bytes && data.iter().all(|byte| *byte == 5), "what was written is there");
}

fn write_when_space_is_free(path: &Path) {
    let deadline = Instant::now() + RECOVERY_LIMIT;
    while let Err(error) = fs::write(path, vec![5; BLOCK_BYTES]) {
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(Instant::now() < deadline, "space is free again");
        thread::sleep(Duration::from_millis(20));
    }
}

fn a_full_volume_reports_it_and_recovers() {
    let volume = MountedVolume::create_on_small_disk();
    let path = volume.path().join("file");
    let written = fill(&path);
    assert!(written > WRITTEN_MIN, "{written} bytes fit");
    assert_filled(&path, written);
    fs::remove_file(&path).unwrap();
    write_when_space_is_free(&volume.path().join("another"));
}

fn replica<'s>(status: &'s VolumeStatus, node: &str) -> &'s ReplicaStatus {
    status.replicas.iter().find(|replica| replica.node.as_str() == node).unwrap()
}

/// The writers are first, in the middle and last on the paths that end at the small disk, or begin there.
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
            // From another node, whose log has taken nothing.
            write_when_space_is_free(&cluster.path((writer + 1) % 3).join("another"));
        }
        cluster.published_tree();
    }
}

/// Another program takes what the volume has kept free, so that records are acknowledged that cannot be published.
fn writers_do_not_hang_while_others_have_filled_a_disk() {
    let cluster = VolumeCluster::with_small_disk(2);
    let small = THREE_NODES[2];
    let kept = cluster.path(0).join("kept");
    fs::write(&kept, b"before").unwrap();
    let ballast = cluster.nodes[2].store().join("ballast");
    // Fewer bytes than the volume keeps free, and then all.
    fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let file = cluster.path(0).join("file");
    fill(&file);
    fill_with_ballast(&ballast);

    // More than the rest of the space that the last report has left.
    let data = vec![5; 2 * BLOCK_BYTES];
    for writer in 0..THREE_NODES.len() {
        let error = fs::write(cluster.path(writer).join("refused"), &data).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
    assert_eq!(fs::read(&kept).unwrap(), b"before");
    assert_eq!(replica(&cluster.nodes[0].status(), small).free_bytes, Some(0));
    // A removal takes a record, which the full disk refuses now or later. It must not hang either.
    let _ = fs::remove_file(&file);
    fs::remove_file(&ballast).unwrap();
    for writer in 0..THREE_NODES.len() {
        write_when_space_is_free(&cluster.path(writer).join("another"));
    }
    assert_eq!(fs::read(&kept).unwrap(), b"before");
    cluster.published_tree();
    assert!(!replica(&cluster.nodes[0].status(), small).is_full);
}

/// Another program takes all space in the moment in which records are acknowledged that are not published yet.
fn acknowledged_data_outlives_a_disk_that_others_fill() {
    let cluster = VolumeCluster::with_small_disk(2);
    let (ballast, file) = (cluster.nodes[2].store().join("ballast"), cluster.path(0).join("file"));
    fs::write(&file, b"before").unwrap();
    // The volume may take 4 MiB besides what it keeps free.
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
        assert!(fs::read(cluster.path(writer).join("file")).unwrap() == data, "others read it");
    }
    fs::remove_file(&ballast).unwrap();
    for writer in 0..THREE_NODES.len() {
        write_when_space_is_free(&cluster.path(writer).join("another"));
        assert!(fs::read(cluster.path(writer).join("file")).unwrap() == data, "nothing is lost");
    }
    cluster.published_tree();
}

/// Its new disk is empty, and has space for one of three logs.
fn a_returning_node_without_space_for_its_logs_stops_no_writer() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    // Each call may find the mount of a node that a busy machine has taken for dead.
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
    let mut count = 0;
    while began.elapsed() < SMALL_DISK_TIME {
        write(&cluster, &format!("file-{count}"));
        count += 1;
        thread::sleep(Duration::from_millis(50));
    }
    let status = cluster.nodes[0].status();
    let small = replica(&status, THREE_NODES[2]);
    assert!(!status.record.chain.contains(&small.node), "{status:?}");
    assert!(!small.is_full, "writers do not wait for it: {small:?}");

    // Its former disk is brought back.
    cluster.nodes[2].stop_processes();
    drop(disk);
    cluster.nodes[2].start_processes();
    cluster.wait_for_chain(0, 3);
    let tree = cluster.published_tree();
    assert_eq!(tree.len(), count + 1);
}

fn fill_with_ballast(path: &Path) {
    let mut ballast = File::options().append(true).open(path).unwrap();
    for bytes in [BLOCK_BYTES, 4096] {
        while ballast.write_all(&vec![1; bytes]).is_ok() {}
    }
}
