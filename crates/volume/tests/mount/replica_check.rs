//! Compares replicas by digests, and repairs damaged ones, while programs write.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farfork_cluster::catalog::{Durability, VolumeName};
use farfork_sys::process;
use farfork_volume::process::{
    CheckProgress, CheckReport, ControlAnswer, DifferenceSubject, ProcessRole, VolumeCheck, check_volume,
};
use farfork_wire::NodeName;
use fastrand::Rng;
use rustix::process::Signal;

use super::crash::stop;
use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, SetOnDrop, TestNode, VOLUME};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("equal_replicas_have_no_differences_while_programs_write", equal_replicas_have_no_differences),
    ("a_check_starts_again_when_a_node_leaves_the_chain", a_node_leaves_the_chain),
    ("a_damaged_replica_is_found_and_repaired", a_damaged_replica_is_found_and_repaired),
    ("a_replica_that_cannot_be_read_hides_no_other_difference", a_replica_that_cannot_be_read),
    ("a_sparse_file_is_compared_without_reading_its_holes", a_sparse_file),
    ("a_check_through_a_node_without_a_replica_is_shown_by_every_node", a_check_through_another_node),
    ("the_scrub_repairs_a_replica_that_no_program_uses", the_scrub_repairs_a_replica),
    ("a_replica_with_a_damaged_log_is_copied_again", a_replica_with_a_damaged_log),
    ("a_replica_with_a_damaged_mark_is_copied_again", a_replica_with_a_damaged_mark),
    ("a_check_reports_a_damaged_mark_of_the_last_replica", the_last_replica_with_a_damaged_mark),
    ("a_client_with_a_damaged_log_is_replaced", a_client_with_a_damaged_log),
    ("two_replicas_that_differ_are_repaired_from_the_one_that_is_named", two_replicas_that_differ),
];

/// Larger than `DATA_PART_BYTES`, so that the data has several digests.
const LARGE_FILE_BYTES: u64 = 20 << 20;
/// Long, so that a node under load is not considered failed.
const DETECTION_MS: u64 = 10_000;

fn cluster(names: &[&str]) -> VolumeCluster {
    let cluster = VolumeCluster::mounted(names, LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let root = cluster.path(0);
    for number in 0..50_u8 {
        let directory = root.join(format!("directory-{}", number % 5));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("file-{number}")), vec![number; 1000 * usize::from(number)]).unwrap();
    }
    let mut random = Rng::with_seed(1);
    let large: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(LARGE_FILE_BYTES as usize).collect();
    let mut file = File::create(root.join("large")).unwrap();
    file.write_all(&large).unwrap();
    std::os::unix::fs::symlink("large", root.join("link")).unwrap();
    file.sync_all().unwrap();
    cluster
}

fn name(node: &str) -> NodeName {
    NodeName::new(node).unwrap()
}

fn check(cluster: &VolumeCluster, node: usize, should_repair: bool, good: Option<&str>) -> Result<CheckReport, String> {
    let check = VolumeCheck { name: VolumeName::new(VOLUME).unwrap(), should_repair, good: good.map(name) };
    check_with_progress(&cluster.nodes[node], check, |_| {})
}

/// Compares the replicas without repairing them.
pub(crate) fn compare(node: &TestNode, report_progress: impl FnMut(CheckProgress)) -> CheckReport {
    let check = VolumeCheck { name: VolumeName::new(VOLUME).unwrap(), should_repair: false, good: None };
    check_with_progress(node, check, report_progress).unwrap()
}

fn check_with_progress(
    node: &TestNode,
    check: VolumeCheck,
    mut report_progress: impl FnMut(CheckProgress),
) -> Result<CheckReport, String> {
    let report_progress = |progress| {
        report_progress(progress);
        true
    };
    match check_volume(&node.store(), check, report_progress).unwrap() {
        ControlAnswer::Checked(report) => Ok(*report),
        ControlAnswer::Failed(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Path of a file in the shared tree of a node.
fn replica_path(cluster: &VolumeCluster, node: usize, path: &str) -> PathBuf {
    cluster.nodes[node].volume_path().join("shared/tree").join(path)
}

/// Flips a bit as a failing disk does: timestamps and size stay.
fn flip_byte(path: &PathBuf, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let times = fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    file.set_times(times).unwrap();
}

fn equal_replicas_have_no_differences() {
    let cluster = cluster(&THREE_NODES);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for node in 0..2 {
            let (root, is_over) = (cluster.path(node), &is_over);
            scope.spawn(move || {
                let mut random = Rng::with_seed(node as u64);
                while !is_over.load(Ordering::Relaxed) {
                    let path = root.join(format!("written-{node}-{}", random.u8(..30)));
                    fs::write(&path, vec![random.u8(..); random.usize(..200_000)]).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + random.u32(..0o100))).unwrap();
                    if random.bool() {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
        let _end = SetOnDrop(&is_over);
        for round in 0..6 {
            let report = check(&cluster, round % 3, false, None).unwrap();
            assert_eq!((report.differences, report.replicas.len()), (Vec::new(), 3), "round {round}");
            assert!(report.inodes > 50 && report.data_bytes > LARGE_FILE_BYTES, "round {round}");
        }
    });
}

/// Starts a check of three replicas, one of which never answers.
fn a_node_leaves_the_chain() {
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    fs::write(cluster.path(0).join("file"), b"file").unwrap();
    cluster.published_tree();
    stop(cluster.nodes[1].process_id(ProcessRole::Offload));
    thread::scope(|scope| {
        let checking = scope.spawn(|| check(&cluster, 0, false, None));
        let mut file = File::create(cluster.path(0).join("other")).unwrap();
        file.write_all(b"other").unwrap();
        file.sync_all().unwrap();
        let report = checking.join().unwrap().unwrap();
        assert_eq!((report.replicas, report.differences), (vec![name("n1"), name("n3")], Vec::new()));
    });
    cluster.nodes[1].signal(&[ProcessRole::Offload], Signal::CONT);
    cluster.wait_for_chain(0, 3);
    assert_eq!(check(&cluster, 0, false, None).unwrap().replicas.len(), 3);
}

fn a_damaged_replica_is_found_and_repaired() {
    let cluster = cluster(&THREE_NODES);
    cluster.published_tree();
    flip_byte(&replica_path(&cluster, 1, "large"), LARGE_FILE_BYTES - 5);
    flip_byte(&replica_path(&cluster, 1, "directory-3/file-8"), 8);
    fs::set_permissions(replica_path(&cluster, 1, "directory-2"), fs::Permissions::from_mode(0o700)).unwrap();
    let report = check(&cluster, 0, false, None).unwrap();
    assert!(report.differences.iter().all(|difference| difference.damaged == [name("n2")]), "{report:?}");
    let found: Vec<_> = report.differences.iter().map(|difference| describe(&difference.subject)).collect();
    assert_eq!(found, ["inode /directory-2", "data /directory-3/file-8 0", "data /large 16777216"]);

    let report = check(&cluster, 1, true, None).unwrap();
    assert_eq!((report.repaired, report.remounting), (vec![name("n2")], Vec::new()));
    // The mount must be usable without waiting.
    fs::write(cluster.path(1).join("after"), b"after").unwrap();
    assert_eq!(check(&cluster, 2, true, None).unwrap().differences, []);
    let tree = cluster.published_tree();
    assert_eq!(tree[&PathBuf::from("directory-3/file-8")].1, [8; 8000]);
}

/// One tree has a file without an inode number. Another one has foreign files.
fn a_replica_that_cannot_be_read() {
    let cluster = cluster(&THREE_NODES);
    cluster.published_tree();
    let shared = |node: usize, path: &str| cluster.nodes[node].volume_path().join("shared").join(path);
    fs::write(shared(1, "inodes/05/notes"), b"notes").unwrap();
    fs::set_permissions(replica_path(&cluster, 1, "directory-2"), fs::Permissions::from_mode(0o700)).unwrap();
    let found = |report: &CheckReport| -> Vec<_> {
        report
            .differences
            .iter()
            .map(|difference| (describe(&difference.subject), difference.damaged.clone()))
            .collect()
    };
    let of = |text: &str, node: &str| (text.to_owned(), vec![name(node)]);
    let foreign = "tree inodes/05/notes is no file of the volume";
    let expected = [of(foreign, "n2"), of("inode /directory-2", "n2")];
    assert_eq!(found(&check(&cluster, 0, false, None).unwrap()), expected);

    fs::write(replica_path(&cluster, 2, "copied"), b"copied").unwrap();
    let unreadable = r#"tree node n3 cannot read its shared tree: "copied" in the shared tree has no inode number"#;
    let undecided = ("inode /directory-2".to_owned(), Vec::new());
    let expected = [of(foreign, "n2"), of(unreadable, "n3"), undecided];
    let report = check(&cluster, 0, true, Some("n3")).unwrap();
    assert_eq!(found(&report), expected);
    assert!(report.repaired.is_empty() && report.repair_failure.unwrap().contains("node n3"), "n3 is damaged itself");

    assert_eq!(check(&cluster, 0, true, Some("n1")).unwrap().repaired, [name("n2"), name("n3")]);
    assert_eq!(check(&cluster, 0, false, None).unwrap().differences, []);
    assert!(!shared(1, "inodes/05/notes").exists());
}

/// A file of 1 TiB, of which each replica has allocated a few pages.
fn a_sparse_file() {
    let cluster = VolumeCluster::three_replicas();
    let size = 1 << 40;
    let file = File::create(cluster.path(0).join("sparse")).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"data", size / 2).unwrap();
    file.sync_all().unwrap();
    cluster.nodes[0].wait_for("the file is published", || {
        (0..3).all(|node| replica_path(&cluster, node, "sparse").metadata().is_ok_and(|state| state.len() == size))
    });
    // One replica has zeros where the others have a hole.
    let zeros = replica_path(&cluster, 2, "sparse");
    let times = fs::FileTimes::new().set_modified(zeros.metadata().unwrap().modified().unwrap());
    let replica = OpenOptions::new().write(true).open(&zeros).unwrap();
    replica.write_all_at(&[0; 100_000], size / 4).unwrap();
    replica.set_times(times).unwrap();
    let mut progress = Vec::new();
    let report = compare(&cluster.nodes[0], |step| progress.push(step));
    assert_eq!((report.differences, report.data_bytes), (Vec::new(), size));
    assert!(progress.len() < 20, "{} batches", progress.len());
    flip_byte(&zeros, size / 4 + 5000);
    let report = compare(&cluster.nodes[0], |_| {});
    let found: Vec<_> = report.differences.iter().map(|difference| describe(&difference.subject)).collect();
    assert_eq!(found, [format!("data /sparse {}", size / 4)]);
}

/// A stopped replica delays the check.
fn a_check_through_another_node() {
    let mut cluster = cluster(&["n1", "n2"]);
    cluster.published_tree();
    let other = cluster.add_node("n3");
    flip_byte(&replica_path(&cluster, 0, "large"), 8);
    stop(cluster.nodes[1].process_id(ProcessRole::Offload));
    thread::scope(|scope| {
        let checking = scope.spawn(|| check(&cluster, other, true, Some("n2")));
        let is_shown = |node: usize| cluster.nodes[node].status().replicas.iter().any(|replica| replica.is_checked);
        for node in [0, other] {
            cluster.nodes[node].wait_for("the check is shown", || is_shown(node));
        }
        cluster.nodes[1].signal(&[ProcessRole::Offload], Signal::CONT);
        assert_eq!(checking.join().unwrap().unwrap().repaired, [name("n1")]);
    });
    for node in [0, other] {
        let checks = cluster.nodes[node].status().replicas.into_iter().filter_map(|replica| replica.last_check);
        assert!(checks.into_iter().any(|check| check.repaired == [name("n1")]), "node {node}");
    }
}

/// The node of the damaged replica has not mounted the volume.
fn the_scrub_repairs_a_replica() {
    let mut cluster = cluster(&THREE_NODES);
    cluster.published_tree();
    cluster.nodes[2].stop_client();
    let damaged = replica_path(&cluster, 2, "directory-3/file-8");
    flip_byte(&damaged, 8);
    cluster.nodes[0]
        .wait_for("the scrub repairs the replica", || fs::read(&damaged).is_ok_and(|found| found == [8; 8000]));
    cluster.wait_for_chain(0, 3);
    cluster.nodes[0].wait_for("the result is kept", || {
        let checks = cluster.nodes[1].status().replicas.into_iter().filter_map(|replica| replica.last_check);
        checks.into_iter().any(|check| check.differences == 1 && check.repaired == [name("n3")])
    });
}

/// Flips a bit of unpublished data in a log.
fn damage_log(cluster: &VolumeCluster, node: usize, data: &[u8]) {
    let path = cluster.nodes[node].volume_path().join("logs/0");
    let log = fs::read(&path).unwrap();
    let at = log.windows(data.len()).position(|window| window == data).expect("the log has the data");
    flip_byte(&path, at as u64 + 3);
}

/// Whether the publisher of a node waits for the worker's answer to a change set.
fn is_publishing(node: &TestNode) -> bool {
    // <asm/unistd_64.h>
    const RECVFROM: u64 = 45;
    let pid = node.process_id(ProcessRole::Offload).cast_signed();
    let threads = process::thread_ids(pid).unwrap();
    let is_publisher = |tid: &i32| process::thread_name(pid, *tid).is_ok_and(|name| name == b"publisher");
    let call = |tid: i32| process::SystemCall::read(tid).ok().flatten();
    threads.into_iter().filter(is_publisher).filter_map(call).any(|call| call.number == RECVFROM)
}

/// The worker of a node is stopped, so that its log has unpublished records.
fn a_replica_with_a_damaged_log() {
    let cluster = cluster(&THREE_NODES);
    cluster.published_tree();
    stop(cluster.nodes[1].process_id(ProcessRole::Worker));
    let sync = |name: &str, data: &[u8]| {
        let mut file = File::create(cluster.path(0).join(name)).unwrap();
        file.write_all(data).unwrap();
        file.sync_all().unwrap();
    };
    sync("being-published", b"x");
    cluster.nodes[1].wait_for("the worker has a change set", || is_publishing(&cluster.nodes[1]));
    let data = [b"unpublished".as_slice(), &[9; 5000]].concat();
    sync("file", &data);
    damage_log(&cluster, 1, &data);
    cluster.nodes[1].signal(&[ProcessRole::Worker], Signal::CONT);
    cluster.nodes[0].wait_for("the replica is copied again", || {
        fs::read(replica_path(&cluster, 1, "file")).is_ok_and(|found| found == data)
    });
    cluster.wait_for_chain(0, 3);
    cluster.nodes[1].wait_until_mounted();
    assert_eq!(fs::read(cluster.path(1).join("file")).unwrap(), data);
    assert_eq!(check(&cluster, 0, false, None).unwrap().differences, []);
}

/// A process that has the mark open does not read it again. Its successor does.
fn a_replica_with_a_damaged_mark() {
    let cluster = cluster(&THREE_NODES);
    for (round, role) in [ProcessRole::Worker, ProcessRole::Offload].into_iter().enumerate() {
        cluster.published_tree();
        let mark = cluster.nodes[1].volume_path().join("shared/published/0");
        OpenOptions::new().write(true).open(mark).unwrap().write_all_at(&[7; 8192], 0).unwrap();
        cluster.nodes[1].kill(&[role]);
        let name = format!("after-{round}");
        let mut file = File::create(cluster.path(0).join(&name)).unwrap();
        file.write_all(b"after").and_then(|()| file.sync_all()).unwrap();
        cluster.nodes[1].wait_for("the replica is copied again, and publishes", || {
            fs::read(replica_path(&cluster, 1, &name)).is_ok_and(|found| found == b"after")
        });
        cluster.wait_for_chain(0, 3);
        cluster.nodes[1].wait_until_mounted();
        assert_eq!(check(&cluster, 0, false, None).unwrap().differences, []);
    }
}

/// The last live replica stays in the chain with its damaged mark.
fn the_last_replica_with_a_damaged_mark() {
    let cluster = cluster(&["n1"]);
    cluster.published_tree();
    let mark = cluster.nodes[0].volume_path().join("shared/published/0");
    OpenOptions::new().write(true).open(mark).unwrap().write_all_at(&[7; 8192], 0).unwrap();
    let report = check(&cluster, 0, false, None).unwrap();
    let found: Vec<_> = report.differences.iter().map(|difference| describe(&difference.subject)).collect();
    assert_eq!(found, ["mark n1 the file cannot be read: both published marks are damaged"]);
    assert_eq!(report.differences[0].damaged, [name("n1")]);
}

/// The offload process is stopped, so that it has not read the record before the damage.
fn a_client_with_a_damaged_log() {
    let cluster = cluster(&THREE_NODES);
    fs::write(cluster.path(0).join("acknowledged"), b"acknowledged").unwrap();
    File::open(cluster.path(0).join("acknowledged")).unwrap().sync_all().unwrap();
    stop(cluster.nodes[0].process_id(ProcessRole::Offload));
    let data = [b"garbage".as_slice(), &[9; 5000]].concat();
    let mut file = File::create(cluster.path(0).join("file")).unwrap();
    file.write_all(&data).unwrap();
    damage_log(&cluster, 0, &data);
    cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::CONT);
    assert!(file.sync_all().is_err(), "an invalid record is not acknowledged");
    drop(file);
    cluster.nodes[0].wait_until_mounted();
    fs::write(cluster.path(1).join("other"), b"other").unwrap();
    for node in 0..3 {
        assert_eq!(fs::read(cluster.path(node).join("acknowledged")).unwrap(), b"acknowledged");
        assert_eq!(fs::read(cluster.path(node).join("other")).unwrap(), b"other");
    }
    fs::write(cluster.path(0).join("file"), b"again").unwrap();
    assert_eq!(fs::read(cluster.path(2).join("file")).unwrap(), b"again");
    cluster.published_tree();
}

fn two_replicas_that_differ() {
    let cluster = cluster(&["n1", "n2"]);
    cluster.published_tree();
    flip_byte(&replica_path(&cluster, 0, "directory-3/file-8"), 8);
    let report = check(&cluster, 0, true, None).unwrap();
    assert_eq!((report.differences.len(), report.repaired.len()), (1, 0), "{report:?}");
    assert_eq!(report.differences[0].damaged, [], "either may be right");
    assert!(check(&cluster, 0, true, Some("n7")).unwrap_err().contains("n7"));
    assert_eq!(check(&cluster, 1, true, Some("n2")).unwrap().repaired, [name("n1")]);
    assert_eq!(cluster.published_tree()[&PathBuf::from("directory-3/file-8")].1, [8; 8000]);
}

fn describe(subject: &DifferenceSubject) -> String {
    match subject {
        DifferenceSubject::Inode { path: Some(path), .. } => format!("inode {path}"),
        DifferenceSubject::Data { path: Some(path), range, .. } => format!("data {path} {}", range.start),
        DifferenceSubject::Tree { reason } => format!("tree {reason}"),
        DifferenceSubject::Mark { client, reason } => format!("mark {client} {reason}"),
        other => format!("{other:?}"),
    }
}
