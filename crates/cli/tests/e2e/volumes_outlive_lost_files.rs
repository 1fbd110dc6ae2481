//! The catalog, the replica of a node, or the process that serves a mount is lost. Nothing else is lost, and errors
//! name the next step.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Cluster, scratch, wait};
use crate::test::Test;
use crate::volumes_are_replicated::{VolumeMount, volume_processes, write_synced};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_missing_catalog_is_named", missing_catalog),
    Test::alone("a_lost_replica_is_copied_again", lost_replica),
    Test::alone("a_replica_that_is_removed_while_its_node_runs_is_copied_again", removed_replica),
    Test::alone("a_replica_that_lacks_a_part_is_copied_again", damaged_replica),
    Test::alone("a_dead_mount_is_mounted_over", dead_mount),
];

/// Longest wait until nodes have returned, and until changes are published.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// Longest duration of an fsync(2) while a replica is lost.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
const CONTENTS: &[u8] = b"acknowledged\n";

fn cluster_with_volume() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.first().json(&["volume", "create", "data", "--replicas", &cluster.names(&[0, 1])]);
    cluster
}

fn restart_daemons(cluster: &Cluster, while_stopped: impl FnOnce()) {
    for node in 0..2 {
        cluster.stop_daemon(node);
    }
    while_stopped();
    for node in 0..2 {
        cluster.restart_daemon(node);
    }
    cluster.wait_until_all_are_alive();
}

fn has_contents(cluster: &Cluster, node: usize, name: &str) -> bool {
    fs::read(cluster.run_dir(node).join("volumes/data/shared/tree").join(name)).is_ok_and(|found| found == CONTENTS)
}

/// The catalog is missing when the nodes start, for example because its file system is not mounted yet.
fn missing_catalog() {
    let (cluster, directory) = (cluster_with_volume(), scratch::directory());
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("file"), CONTENTS);
    mount.end();
    let is_published = || (has_contents(&cluster, 0, "file") && has_contents(&cluster, 1, "file")).then_some(());
    wait::wait_until("the file is published", SETTLE_LIMIT, is_published);

    let catalog = cluster.run_dir(0).parent().expect("a directory for each node").join("volumes/catalog");
    let away = catalog.with_extension("away");
    restart_daemons(&cluster, || fs::rename(&catalog, &away).expect("the cluster has a catalog"));
    for arguments in [&["volume", "create", "data", "--replicas", "n1,n2"][..], &["volume", "ls"]] {
        let refused = cluster.first().run_failing(arguments);
        refused.require_mentions(&["catalog", "is missing", "data", "bring the file back"]);
    }
    assert!(!catalog.exists(), "a new catalog was created");

    fs::rename(&away, &catalog).expect("the catalog can be moved back");
    let is_live = || cluster.first().run(&["volume", "ls"]).stdout.contains("n1,n2").then_some(());
    wait::wait_until("the nodes serve the volume again", SETTLE_LIMIT, is_live);
    assert!(has_contents(&cluster, 0, "file") && has_contents(&cluster, 1, "file"));
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// The replica of a node is missing when the node starts, for example because its disk was replaced.
fn lost_replica() {
    let (cluster, directory) = (cluster_with_volume(), scratch::directory());
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("before"), CONTENTS);
    cluster.stop_daemon(1);
    let replica = cluster.run_dir(1).join("volumes/data");
    wait::wait_until("the processes of the node end", SETTLE_LIMIT, || {
        volume_processes(&cluster.run_dir(1).join("volumes")).is_empty().then_some(())
    });
    fs::remove_dir_all(&replica).expect("the node has a replica");
    cluster.restart_daemon(1);
    write_synced(&mount.path("after"), CONTENTS);
    wait::wait_until("the replica is copied again", SETTLE_LIMIT, || {
        let live = cluster.first().json(&["volume", "status", "data"])["live"].clone();
        let has_files = has_contents(&cluster, 1, "before") && has_contents(&cluster, 1, "after");
        (live == json!(["n1", "n2"]) && has_files).then_some(())
    });
    mount.end();
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Removes the replica of the chain's last node, and later the replica of its head. The mount of another node continues
/// to write.
fn removed_replica() {
    let (cluster, directory) = (Cluster::start(3), scratch::directory());
    cluster.first().json(&["volume", "create", "data", "--replicas", &cluster.names(&[0, 1, 2])]);
    let mounts = [0, 1].map(|node| VolumeMount::new(&cluster, node, "data", directory.path()));
    for (lost, writer) in [(2, 0), (0, 1)] {
        let name = |name: &str| format!("{name}-{lost}");
        write_synced(&mounts[writer].path(&name("before")), CONTENTS);
        remove_busy_directory(&cluster.run_dir(lost).join("volumes/data"));
        let mut count = 0;
        wait::wait_until("the replica is copied again", SETTLE_LIMIT, || {
            write_within(&mounts[writer].path(&format!("{}-{count}", name("during"))), WRITE_LIMIT);
            count += 1;
            let live = cluster.node(writer).json(&["volume", "status", "data"])["live"].clone();
            let is_copied = has_contents(&cluster, lost, &name("before"));
            (live.as_array().map(Vec::len) == Some(3) && is_copied).then_some(())
        });
        let equal = cluster.node(writer).json(&["volume", "check", "data"]);
        assert_eq!((&equal["differences"], &equal["replicas"].as_array().map(Vec::len)), (&json!([]), &Some(3)));
    }
    wait::wait_until("the mount of the head is back", SETTLE_LIMIT, || {
        fs::read(mounts[0].path("before-0")).is_ok_and(|found| found == CONTENTS).then_some(())
    });
    mounts.into_iter().for_each(VolumeMount::end);
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Removes the directory of a replica. Because a node's processes may make files there at the same time, tries again.
fn remove_busy_directory(directory: &Path) {
    wait::wait_until("a directory is removed", SETTLE_LIMIT, || match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => None,
        _ => Some(()),
    });
}

/// As `write_synced`. A thread that waits in fsync(2) cannot be killed, so the test does not wait for it.
fn write_within(path: &Path, limit: Duration) {
    let (sender, result) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || {
        write_synced(&path, CONTENTS);
        let _ = sender.send(());
    });
    result.recv_timeout(limit).expect("fsync(2) returns while a replica is lost");
}

/// A crash or an operator has left the directory without its id or its shared tree, or with a file in place of its logs.
fn damaged_replica() {
    let (cluster, directory) = (cluster_with_volume(), scratch::directory());
    cluster.first().json(&["volume", "create", "single", "--replicas", "n2"]);
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    let store = cluster.run_dir(1).join("volumes");
    let single = store.join("single/volume");
    for (part, aside) in [("volume", 1), ("shared", 2), ("logs", 3)] {
        let name = format!("before-{part}");
        write_synced(&mount.path(&name), CONTENTS);
        cluster.stop_daemon(1);
        wait::wait_until("the processes of the node end", SETTLE_LIMIT, || {
            volume_processes(&store).is_empty().then_some(())
        });
        let lost = store.join("data").join(part);
        remove(&lost);
        if part == "logs" {
            fs::write(&lost, CONTENTS).expect("the directory is still there");
        }
        let id = fs::read(&single).expect("the replica has an id");
        remove(&single);
        cluster.restart_daemon(1);
        wait::wait_until("the replica is copied again", SETTLE_LIMIT, || {
            let live = cluster.first().json(&["volume", "status", "data"])["live"].clone();
            (live == json!(["n1", "n2"]) && has_contents(&cluster, 1, &name)).then_some(())
        });
        let names = fs::read_dir(&store).expect("the store is a directory").flatten().map(|entry| entry.file_name());
        let count = names.filter(|name| name.to_string_lossy().starts_with("data.")).count();
        assert_eq!(count, aside, "the rest of the replica is kept");
        // Nothing takes the place of the last live replica.
        let table = cluster.node(1).run(&["volume", "status", "single"]).stdout;
        for text in ["volumes/single has no usable `volume`", "no other replica is live", "bring `volume` back"] {
            assert!(table.contains(text), "no {text} in\n{table}");
        }
        fs::write(&single, id).expect("the directory is still there");
    }
    let is_back = || cluster.node(1).json(&["volume", "status", "single"])["replica_states"][0]["failure"].is_null();
    wait::wait_until("the last replica is back", SETTLE_LIMIT, || is_back().then_some(()));
    let equal = cluster.first().json(&["volume", "check", "data"]);
    assert_eq!((&equal["differences"], &equal["replicas"]), (&json!([]), &json!(["n1", "n2"])));
    mount.end();
    cluster.first().json(&["volume", "drop", "data"]);
    cluster.first().json(&["volume", "drop", "single"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.expect("the replica has this part");
}

fn dead_mount() {
    let (cluster, directory) = (cluster_with_volume(), scratch::directory());
    let mount = VolumeMount::new(&cluster, 0, "data", directory.path());
    write_synced(&mount.path("file"), CONTENTS);
    let point = mount.path("");
    kill_supervisor(&point);
    // stat(2) may be answered from a cache, so this reads the directory.
    wait::wait_until("the mount is dead", SETTLE_LIMIT, || fs::read_dir(&point).is_err().then_some(()));
    let mount_again = || cluster.first().run(&["volume", "mount", "data", &point.to_string_lossy()]);
    wait::wait_until("the volume is mounted again", SETTLE_LIMIT, || {
        // The client of the dead mount may not have ended yet.
        let mounted = mount_again();
        let is_known = mounted.status.success() || mounted.stderr.contains("mounted on this node already");
        assert!(is_known, "{}", mounted.stderr);
        mounted.status.success().then_some(())
    });
    assert_eq!(fs::read(mount.path("file")).expect("the file is still there"), CONTENTS);
    mount.end();
    cluster.first().json(&["volume", "drop", "data"]);
    assert_eq!(cluster.stop(), [""; 0]);
}

/// Kills the supervisor of a mount: the background process of `farfork volume mount`, which is the client's parent.
fn kill_supervisor(point: &Path) {
    let argument = point.to_string_lossy();
    let point = Path::new(argument.trim_end_matches('/'));
    let is_supervisor = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|argument| argument == "mount")
    };
    let supervisor = volume_processes(point).into_iter().find(is_supervisor).and_then(Pid::from_raw);
    kill_process(supervisor.expect("the mount has a supervisor"), Signal::KILL).expect("the supervisor runs");
}
