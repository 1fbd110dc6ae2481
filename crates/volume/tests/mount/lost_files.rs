//! A replica loses a part of its directory while its node runs, or another directory takes its place. The node notices it
//! without a command, and copies the volume again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use farfork_cluster::catalog::Durability;
use farfork_volume::process::{DifferenceSubject, ProcessRole};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::mounted_volume::LOG_BYTES;
use super::replica_check::compare;
use super::test_node::NO_DETECTION_MS;
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_live_replica_that_loses_a_part_is_copied_again", a_lost_part),
    ("a_replica_that_loses_a_part_and_its_process_is_copied_again", a_lost_part_and_process),
    ("a_replica_whose_tree_lacks_a_directory_is_copied_again", a_lost_directory_of_the_tree),
    ("a_replica_with_a_part_of_another_type_is_copied_again", a_part_of_another_type),
    ("a_replica_whose_inodes_are_exchanged_for_an_older_copy_is_copied_again", an_older_copy_of_the_inodes),
    ("a_replica_that_is_exchanged_for_an_older_copy_is_copied_again", an_older_copy),
    ("a_check_reports_a_log_that_cannot_be_read", a_log_that_cannot_be_read),
];

fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).and_then(|()| file.sync_all()).unwrap();
}

/// Removes a file or directory. A process of the node may create files in it at the same time.
fn remove(path: &Path) -> io::Result<()> {
    if path.is_file() {
        return fs::remove_file(path);
    }
    while path.try_exists()? {
        if let Err(error) = fs::remove_dir_all(path)
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty)
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Truncates a file.
fn empty(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

fn damage_header(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all_at(&[0; 4096], 0)
}

/// Overwrites both marks of a log.
fn damage_mark(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all_at(&[0; 8192], 0)
}

/// Damages the replica of a node between two writes of another node, and waits until it is a live replica again, with all
/// data.
fn damage(cluster: &VolumeCluster, node: usize, case: &str, damage: impl FnOnce(&Path)) {
    let writer = (node + 1) % 3;
    let [before, after] = ["before", "after"].map(|time| format!("{time}-{case}"));
    write_synced(&cluster.path(node).join(&before), case.as_bytes());
    cluster.published_tree();
    let epoch = cluster.nodes[writer].status().record.epoch;
    damage(&cluster.nodes[node].volume_path());
    write_synced(&cluster.path(writer).join(&after), case.as_bytes());
    cluster.nodes[writer].wait_for(&format!("{case}: the replica is copied again"), || {
        let record = cluster.nodes[writer].status().record;
        record.epoch > epoch && record.chain.len() == 3
    });
    cluster.nodes[node].wait_until_mounted();
    let tree = cluster.published_tree();
    for name in [before, after] {
        assert_eq!(tree[Path::new(&name)].1, case.as_bytes(), "{name}");
        assert_eq!(fs::read(cluster.path(node).join(&name)).unwrap(), case.as_bytes(), "{name}");
    }
    assert_eq!(compare(&cluster.nodes[writer], |_| {}).differences, [], "{case}");
}

fn a_lost_part() {
    let cluster = VolumeCluster::three_replicas();
    for (node, part) in [(1, "shared/inodes"), (2, "shared/tree"), (1, "shared/published/0"), (2, "shared/orphans")] {
        damage(&cluster, node, &part.replace('/', "-"), |replica| remove(&replica.join(part)).unwrap());
    }
    // Node 0 has written log 0 just before.
    for node in [2, 0] {
        damage(&cluster, node, &format!("log-of-{node}"), |replica| remove(&replica.join("logs/0")).unwrap());
    }
    // No record of log 0 is published meanwhile, so no process writes the mark.
    damage(&cluster, 1, "mark", |replica| damage_mark(&replica.join("shared/published/0")).unwrap());
    damage(&cluster, 1, "empty-log", |replica| empty(&replica.join("logs/0")).unwrap());
    damage(&cluster, 2, "log-header", |replica| damage_header(&replica.join("logs/0")).unwrap());
}

fn a_lost_part_and_process() {
    let cluster = VolumeCluster::three_replicas();
    for (part, cut) in
        [("shared/tree", remove as fn(&Path) -> io::Result<()>), ("shared/inodes/05", remove), ("logs/0", empty)]
    {
        damage(&cluster, 2, &part.replace('/', "-"), |replica| {
            cut(&replica.join(part)).unwrap();
            cluster.nodes[2].kill(&[ProcessRole::Offload]);
        });
    }
}

fn a_part_of_another_type() {
    let cluster = VolumeCluster::three_replicas();
    let make_file = |path: &Path| fs::write(path, b"a file");
    let make_directory = |path: &Path| fs::create_dir(path);
    let make_link = |path: &Path| symlink(moved(path), path);
    let make_loop = |path: &Path| symlink(path, path);
    type Replacement<'a> = &'a dyn Fn(&Path) -> io::Result<()>;
    let cases: [(usize, &str, Replacement<'_>); 8] = [
        (1, "shared/inodes", &make_file),
        (2, "logs", &make_file),
        (1, "shared", &make_link),
        (2, "shared/tree", &make_loop),
        (1, "shared/published/0", &make_directory),
        (2, "logs/0", &make_directory),
        (1, "logs/0", &make_loop),
        (2, "volume", &make_directory),
    ];
    for (node, part, replace) in cases {
        damage(&cluster, node, &format!("{}-{node}", part.replace('/', "-")), |replica| {
            let path = replica.join(part);
            fs::rename(&path, moved(&path)).unwrap();
            replace(&path).unwrap();
        });
    }
    damage(&cluster, 1, "replica", |replica| {
        fs::rename(replica, moved(replica)).unwrap();
        make_file(replica).unwrap();
    });
}

fn moved(path: &Path) -> PathBuf {
    path.with_extension("moved")
}

fn an_older_copy_of_the_inodes() {
    let cluster = VolumeCluster::three_replicas();
    for (node, part) in [(1, "inodes"), (2, "inodes/00"), (1, "published")] {
        damage(&cluster, node, &part.replace('/', "-"), |replica| {
            let (path, copy) = (replica.join("shared").join(part), replica.join("copy"));
            assert!(Command::new("cp").arg("-a").args([&path, &copy]).status().unwrap().success());
            renameat_with(CWD, &path, CWD, &copy, RenameFlags::EXCHANGE).unwrap();
        });
    }
}

/// No look at the parts of the replica finds this, but publishing does.
fn a_lost_directory_of_the_tree() {
    let cluster = VolumeCluster::three_replicas();
    fs::create_dir(cluster.path(0).join("directory")).unwrap();
    damage(&cluster, 1, "directory", |replica| {
        remove(&replica.join("shared/tree/directory")).unwrap();
        write_synced(&cluster.path(0).join("directory/file"), b"file");
    });
    assert_eq!(fs::read(cluster.path(1).join("directory/file")).unwrap(), b"file");
}

fn an_older_copy() {
    let cluster = VolumeCluster::three_replicas();
    for node in [2, 1] {
        let replica = cluster.nodes[node].volume_path();
        let copy = replica.with_file_name("copy");
        cluster.published_tree();
        // The node replaces files, such as the result of the last check, while they are copied.
        cluster.nodes[node].wait_for("the replica is copied", || {
            remove(&copy).unwrap();
            Command::new("cp").arg("-a").args([&replica, &copy]).status().unwrap().success()
        });
        damage(&cluster, node, &format!("copy-{node}"), |replica| {
            renameat_with(CWD, replica, CWD, &copy, RenameFlags::EXCHANGE).unwrap();
            remove(&copy).unwrap();
        });
    }
}

/// The last live replica stays in the chain, so the check is the only way to learn of the damage from another node.
fn a_log_that_cannot_be_read() {
    let cluster = VolumeCluster::mounted(&["n1"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    write_synced(&cluster.path(0).join("file"), b"file");
    cluster.published_tree();
    damage_header(&cluster.nodes[0].volume_path().join("logs/0")).unwrap();
    let report = compare(&cluster.nodes[0], |_| {});
    let position = cluster.nodes[0].status().replicas[0].logs[0].published;
    let client = report.replicas[0].clone();
    let found: Vec<_> = report.differences.iter().map(|difference| &difference.subject).collect();
    assert_eq!(found, [&DifferenceSubject::Log { client, position }]);
    assert_eq!(report.differences[0].damaged, report.replicas);
}
