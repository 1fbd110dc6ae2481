//! Volumes with three replicas, mounted on each node. Nodes read data of other nodes, write in turns, fail and return.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_cluster::catalog::{Durability, VolumeName};
use farfork_volume::process::{
    ControlAnswer, ControlRequest, ProcessRole, ReplicaReplacement, VolumeList, send_control_request,
};
use farfork_wire::NodeName;
use rustix::io::Errno;
use rustix::process::Signal;

use super::mounted_volume::LOG_BYTES;
use super::test_node::{VOLUME, WAIT_LIMIT};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("written_data_is_read_on_other_nodes", written_data_is_read_on_other_nodes),
    ("a_file_that_changed_elsewhere_is_read_anew", a_file_that_changed_elsewhere_is_read_anew),
    ("names_that_changed_elsewhere_are_seen", names_that_changed_elsewhere_are_seen),
    ("nodes_write_in_turns", nodes_write_in_turns),
    ("a_killed_process_of_any_node_loses_nothing", a_killed_process_of_any_node_loses_nothing),
    ("a_stopped_replica_leaves_the_chain_and_returns", a_stopped_replica_leaves_the_chain_and_returns),
    ("a_returning_writer_drops_unreplicated_records", a_returning_writer_drops_unreplicated_records),
    (
        "a_writer_that_does_not_know_its_fence_shows_nothing_old",
        a_writer_that_does_not_know_its_fence_shows_nothing_old,
    ),
    ("a_client_whose_node_has_copied_the_volume_is_replaced", a_client_whose_node_has_copied_the_volume_is_replaced),
    ("a_replica_is_replaced_by_another_node", a_replica_is_replaced_by_another_node),
    ("a_volume_is_dropped_although_a_node_does_not_answer", a_volume_is_dropped_although_a_node_does_not_answer),
    ("another_node_continues_after_the_death_of_the_writers", another_node_continues_after_the_death_of_the_writers),
    ("the_last_node_continues_after_the_death_of_all_others", the_last_node_continues_after_the_death_of_all_others),
    ("a_node_that_was_stopped_itself_removes_no_other_node", a_node_that_was_stopped_itself_removes_no_other_node),
];

/// Long, so that a node on a busy machine is not considered failed.
const DETECTION_MS: u64 = 10_000;
/// For a test in which a node must leave the chain soon. Other nodes may also leave it and return.
const SHORT_DETECTION_MS: u64 = 1_000;

fn write_and_sync(path: &Path, bytes: &[u8]) {
    try_write_and_sync(path, bytes).unwrap();
}

fn try_write_and_sync(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Errors of calls on a mount whose client is replaced: a call that the death of the client has interrupted, and one that
/// no client has received. With `SHORT_DETECTION_MS`, a busy node may leave the chain, which replaces its client.
const INTERRUPTION_ERRORS: [Errno; 2] = [Errno::CONNABORTED, Errno::NOTCONN];

/// Returns the result of a call on a mount, or none if the client was being replaced. No other error is expected.
fn unless_interrupted<T>(result: io::Result<T>) -> Option<T> {
    let is_interruption =
        |error: &io::Error| INTERRUPTION_ERRORS.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    match result {
        Err(error) if is_interruption(&error) => None,
        result => Some(result.unwrap()),
    }
}

/// Repeats a write that the replacement of a client interrupts.
fn write_at_last(cluster: &VolumeCluster, node: usize, name: &str, bytes: &[u8]) {
    let path = cluster.path(node).join(name);
    cluster.nodes[node]
        .wait_for("a file is written", || unless_interrupted(try_write_and_sync(&path, bytes)).is_some());
}

/// Reads a file until the read is not interrupted, and the content is not an old one any more. `None` as an old content
/// means that the file does not exist.
fn wait_for_content(cluster: &VolumeCluster, node: usize, name: &str, old: &[Option<&[u8]>], bytes: &[u8]) {
    let path = cluster.path(node).join(name);
    cluster.nodes[node].wait_for("the content is as expected", || {
        let found = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            result => match unless_interrupted(result) {
                None => return false,
                found => found,
            },
        };
        let is_present = found.as_deref() == Some(bytes);
        assert!(is_present || old.contains(&found.as_deref()), "{name} on node {node}: {found:?}");
        is_present
    });
}

fn written_data_is_read_on_other_nodes() {
    let cluster = VolumeCluster::three_replicas();
    for round in 0..20_u8 {
        let (writer, name) = (usize::from(round) % 3, format!("file-{round}"));
        let data = vec![round; 1 + 7919 * usize::from(round)];
        fs::write(cluster.path(writer).join(&name), &data).unwrap();
        for reader in 0..3 {
            let found = fs::read(cluster.path(reader).join(&name)).unwrap();
            assert!(found == data, "round {round}, node {reader}: {} bytes", found.len());
        }
    }
    assert_eq!(cluster.published_tree().len(), 20);
}

fn a_file_that_changed_elsewhere_is_read_anew() {
    let cluster = VolumeCluster::three_replicas();
    let path = |node: usize| cluster.path(node).join("file");
    fs::write(path(0), vec![b'a'; 100_000]).unwrap();
    for round in 0..10_u8 {
        assert_eq!(fs::read(path(1)).unwrap().len(), 100_000 - usize::from(round));
        let writer = usize::from(round) % 2 * 2;
        let mut file = OpenOptions::new().write(true).open(path(writer)).unwrap();
        file.write_all(&[round; 50]).unwrap();
        file.set_len(100_000 - u64::from(round) - 1).unwrap();
        drop(file);
        let found = fs::read(path(1)).unwrap();
        assert_eq!((&found[..50], found.len()), (&[round; 50][..], 100_000 - usize::from(round) - 1));
    }
}

fn names_that_changed_elsewhere_are_seen() {
    let cluster = VolumeCluster::three_replicas();
    let path = |node: usize, name: &str| cluster.path(node).join(name);
    fs::create_dir_all(path(0, "one/inner")).unwrap();
    fs::write(path(0, "one/inner/file"), b"1").unwrap();
    let names = |node: usize, name: &str| {
        let entries = fs::read_dir(path(node, name)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(1, "one/inner"), ["file"]);
    fs::rename(path(1, "one/inner"), path(1, "two")).unwrap();
    assert_eq!((names(2, "."), names(2, "one").len()), (vec!["one".to_owned(), "two".to_owned()], 0));
    fs::write(path(2, "new"), b"2").unwrap();
    fs::rename(path(2, "new"), path(2, "two/file")).unwrap();
    assert_eq!(fs::read(path(0, "two/file")).unwrap(), b"2");
    fs::remove_file(path(0, "two/file")).unwrap();
    fs::remove_dir(path(0, "two")).unwrap();
    assert_eq!(names(1, "."), ["one"]);
    cluster.nodes[1].wait_for("the name is gone", || {
        fs::metadata(path(1, "two")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    });
}

fn nodes_write_in_turns() {
    let cluster = VolumeCluster::three_replicas();
    const FILES: usize = 15;
    thread::scope(|scope| {
        for node in 0..3 {
            let root = cluster.path(node);
            scope.spawn(move || {
                let directory = root.join(format!("of-{node}"));
                fs::create_dir(&directory).unwrap();
                for file in 0..FILES {
                    write_and_sync(&directory.join(format!("file-{file}")), &vec![node as u8; 5000 * file]);
                    write_and_sync(&root.join(format!("shared-{file}")), &[node as u8; 100]);
                }
            });
        }
    });
    let tree = cluster.published_tree();
    assert_eq!(tree.len(), 3 + 3 * FILES + FILES);
    for node in 0..3 {
        for (path, (mode, content)) in &tree {
            let metadata = fs::metadata(cluster.path(node).join(path)).unwrap();
            assert_eq!((metadata.mode(), &path), (*mode, &path));
            if metadata.is_file() {
                assert!(fs::read(cluster.path(node).join(path)).unwrap() == *content, "{}", path.display());
            }
        }
    }
}

/// Kills each process of each node while another node writes.
fn a_killed_process_of_any_node_loses_nothing() {
    let cluster = VolumeCluster::three_replicas();
    let mut round = 0;
    for victim in 0..3 {
        for role in [ProcessRole::Worker, ProcessRole::Offload, ProcessRole::Client] {
            let writer = (victim + 1) % 3;
            let name = |record: u32| format!("file-{round}-{record}");
            thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    for record in 0..20 {
                        write_and_sync(&cluster.path(writer).join(name(record)), name(record).as_bytes());
                    }
                });
                let is_writing = || cluster.path(writer).join(name(2)).exists();
                cluster.nodes[writer].wait_for("the node writes", is_writing);
                cluster.nodes[victim].kill(&[role]);
                writing.join().unwrap();
            });
            for node in 0..3 {
                for record in 0..20 {
                    let found = fs::read_to_string(cluster.path(node).join(name(record))).unwrap();
                    assert_eq!(found, name(record), "on node {node} after {role:?} of node {victim} was killed");
                }
            }
            round += 1;
        }
    }
    assert_eq!(cluster.published_tree().len(), 9 * 20);
}

fn a_stopped_replica_leaves_the_chain_and_returns() {
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    for victim in [2, 1] {
        write_and_sync(&cluster.path(0).join(format!("before-{victim}")), b"before");
        cluster.nodes[victim].signal(&[ProcessRole::Offload], Signal::STOP);
        write_and_sync(&cluster.path(0).join(format!("during-{victim}")), &vec![1; 300_000]);
        assert_eq!(cluster.nodes[0].status().record.chain.len(), 2);
        cluster.nodes[victim].signal(&[ProcessRole::Offload], Signal::CONT);
        write_and_sync(&cluster.path(0).join(format!("after-{victim}")), b"after");
        cluster.wait_for_chain(0, 3);
        cluster.nodes[victim].wait_until_mounted();
        // The client from before the return may still end.
        wait_for_content(&cluster, victim, &format!("during-{victim}"), &[], &vec![1; 300_000]);
        write_at_last(&cluster, victim, &format!("by-{victim}"), b"returned");
    }
    assert_eq!(cluster.published_tree().len(), 8);
}

fn another_node_continues_after_the_death_of_the_writers() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    for (round, victim) in [0, 1, 2].into_iter().enumerate() {
        let next = (victim + 1) % 3;
        write_and_sync(&cluster.path(victim).join(format!("acknowledged-{round}")), &vec![round as u8; 200_000]);
        cluster.stop_node(victim);
        let acknowledged = fs::read(cluster.path(next).join(format!("acknowledged-{round}"))).unwrap();
        assert!(acknowledged == vec![round as u8; 200_000], "round {round}");
        write_and_sync(&cluster.path(next).join(format!("continued-{round}")), b"by another node");
        assert_eq!(cluster.nodes[next].status().record.chain.len(), 2, "round {round}");
        cluster.nodes[victim].start_processes();
        cluster.wait_for_chain(next, 3);
        cluster.nodes[victim].mount();
        let continued = fs::read(cluster.path(victim).join(format!("continued-{round}"))).unwrap();
        assert_eq!(continued, b"by another node");
    }
    assert_eq!(cluster.published_tree().len(), 6);
}

/// All processes of the head and of the writer are killed at the same time. The last node has no successor, so it waits for
/// the head only to end the term of the writer.
fn the_last_node_continues_after_the_death_of_all_others() {
    const HEAD: usize = 0;
    const WRITER: usize = 1;
    const LAST: usize = 2;
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, SHORT_DETECTION_MS);
    write_at_last(&cluster, WRITER, "acknowledged", &[b'1'; 200_000]);
    cluster.kill_nodes(&[HEAD, WRITER]);
    let (answer, answered) = mpsc::channel();
    let [read, written] = ["acknowledged", "continued"].map(|name| cluster.path(LAST).join(name));
    thread::spawn(move || {
        let found = fs::read(read).unwrap();
        write_and_sync(&written, b"2");
        answer.send(found).unwrap();
    });
    let found = answered.recv_timeout(WAIT_LIMIT).expect("the last node continues");
    assert!(found == [b'1'; 200_000], "{} bytes", found.len());
    assert_eq!(cluster.nodes[LAST].status().record.chain.len(), 1);
    [HEAD, WRITER].iter().for_each(|node| cluster.nodes[*node].start_processes());
    cluster.wait_for_chain(LAST, 3);
    [HEAD, WRITER].iter().for_each(|node| cluster.nodes[*node].mount());
    wait_for_content(&cluster, WRITER, "continued", &[], b"2");
    assert_eq!(cluster.published_tree().len(), 2);
}

/// Node 1 waits for the answer of node 0, and is then stopped for longer than the time of failure detection. Node 0 answers
/// meanwhile.
fn a_node_that_was_stopped_itself_removes_no_other_node() {
    const DETECTION_MS: u64 = 3_000;
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    write_and_sync(&cluster.path(0).join("file"), b"1");
    let epoch = cluster.nodes[1].status().record.epoch;
    let offload = cluster.nodes[1].process_id(ProcessRole::Offload);
    let has_call = || {
        let threads = fs::read_dir(format!("/proc/{offload}/task")).unwrap();
        let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
        names.flatten().any(|name| name == "liveness\n")
    };
    thread::scope(|scope| {
        cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::STOP);
        let reading = scope.spawn(|| fs::read(cluster.path(1).join("file")).unwrap());
        cluster.nodes[1].wait_for("node 1 looks whether node 0 is alive", has_call);
        cluster.nodes[1].signal(&[ProcessRole::Offload], Signal::STOP);
        cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::CONT);
        thread::sleep(Duration::from_millis(DETECTION_MS + 500));
        cluster.nodes[1].signal(&[ProcessRole::Offload], Signal::CONT);
        assert_eq!(reading.join().unwrap(), b"1");
    });
    let record = cluster.nodes[1].status().record;
    assert_eq!((record.chain.len(), record.epoch), (3, epoch), "{record:?}");
}

/// The log of node 0 has valid records that the other nodes lack. Node 0 is no longer the writer, so it must drop these
/// records.
fn a_returning_writer_drops_unreplicated_records() {
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, SHORT_DETECTION_MS);
    for round in 0..3 {
        let name = |name: &str| format!("{name}-{round}");
        write_at_last(&cluster, 0, &name("synced"), b"1");
        // While the offload process is stopped, open(2) would wait.
        let unsynced = OpenOptions::new().append(true).open(cluster.path(0).join(name("synced")));
        let mut unsynced = unless_interrupted(unsynced);
        cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::STOP);
        // The node may have left the chain already, which ends its client.
        unsynced.as_mut().map(|file| unless_interrupted(file.write_all(&[b'2'; 5_000])));
        write_at_last(&cluster, 1, &name("other"), b"3");
        cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::CONT);
        drop(unsynced);
        cluster.wait_for_chain(0, 3);
        cluster.nodes[0].wait_until_mounted();
        write_at_last(&cluster, 0, &name("returned"), b"4");
        wait_for_content(&cluster, 2, &name("returned"), &[], b"4");
        (0..3).for_each(|node| wait_for_content(&cluster, node, &name("synced"), &[], b"1"));
        (0..3).for_each(|node| wait_for_content(&cluster, node, &name("other"), &[], b"3"));
    }
    let tree = cluster.published_tree();
    for round in 0..3 {
        assert_eq!(tree[Path::new(&format!("synced-{round}"))].1, b"1", "round {round}");
    }
}

/// Another node fences the writer and changes a file. The offload process of the writer is stopped, so nothing tells the
/// client of the writer that it is fenced.
fn a_writer_that_does_not_know_its_fence_shows_nothing_old() {
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, SHORT_DETECTION_MS);
    for (round, stopped) in
        [&[ProcessRole::Offload][..], &[ProcessRole::Client, ProcessRole::Offload]].iter().enumerate()
    {
        let name = format!("file-{round}");
        write_at_last(&cluster, 0, &name, b"old");
        wait_for_content(&cluster, 0, &name, &[], b"old");
        cluster.nodes[0].signal(stopped, Signal::STOP);
        write_at_last(&cluster, 1, &name, b"new");
        let path = cluster.path(0).join(&name);
        thread::scope(|scope| {
            let reading = scope.spawn(|| unless_interrupted(fs::read(&path)));
            if stopped.contains(&ProcessRole::Client) {
                cluster.nodes[0].signal(&[ProcessRole::Client], Signal::CONT);
            }
            // Enough time for an answer without the offload process. A slow machine answers later, and finds less.
            thread::sleep(Duration::from_millis(500));
            cluster.nodes[0].signal(&[ProcessRole::Offload], Signal::CONT);
            let found = reading.join().unwrap();
            assert!(found.as_ref().is_none_or(|found| found == b"new"), "round {round}: {found:?}");
        });
        cluster.wait_for_chain(1, 3);
        cluster.nodes[0].wait_until_mounted();
        wait_for_content(&cluster, 0, &name, &[], b"new");
    }
}

/// The client outlives the other processes of its node. The node leaves the chain, and returns with another tree.
fn a_client_whose_node_has_copied_the_volume_is_replaced() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, SHORT_DETECTION_MS);
    write_at_last(&cluster, 0, "before", b"precious");
    for round in 0..3 {
        let other = format!("other-{round}");
        // The client of node 0 must not be the writer, because a writer would be refused for another reason.
        write_at_last(&cluster, 1, "turn", b"2");
        cluster.nodes[0].stop_processes();
        write_at_last(&cluster, 1, &other, b"2");
        cluster.nodes[0].start_processes();
        cluster.wait_for_chain(0, 3);
        // The client that stays has the tree from before the node left the chain.
        wait_for_content(&cluster, 0, &other, &[None], b"2");
        wait_for_content(&cluster, 0, "before", &[], b"precious");
        cluster.nodes[0].wait_for("the file is extended", || {
            let file = OpenOptions::new().write(true).open(cluster.path(0).join(&other));
            let extended = file.and_then(|file| file.write_all_at(b"1", 1).and_then(|()| file.sync_all()));
            unless_interrupted(extended).is_some()
        });
        (0..3).for_each(|node| wait_for_content(&cluster, node, &other, &[], b"21"));
    }
    assert_eq!(cluster.published_tree().len(), 5);
}

fn a_volume_is_dropped_although_a_node_does_not_answer() {
    let mut cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, DETECTION_MS);
    write_and_sync(&cluster.path(0).join("file"), b"dropped");
    cluster.stop_node(1);
    cluster.nodes[0].unmount();
    let store = cluster.nodes[0].store();
    let drop = ControlRequest::DropReachable(VolumeName::new(VOLUME).unwrap());
    let answer = send_control_request(&store, &drop).unwrap();
    let ControlAnswer::DoneExceptFiles(remaining) = answer else {
        panic!("a dead node has removed its files: {answer:?}")
    };
    assert!(remaining.contains("remain on n2, which do not answer"), "{remaining}");
    let listed = send_control_request(&store, &ControlRequest::List).unwrap();
    assert_eq!(listed, ControlAnswer::Volumes(VolumeList::default()));
    assert_eq!([0, 1].map(|node| cluster.nodes[node].volume_path().exists()), [false, true]);
}

fn a_replica_is_replaced_by_another_node() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    write_and_sync(&cluster.path(0).join("before"), &vec![1; 3 * LOG_BYTES as usize]);
    std::os::unix::fs::symlink("before", cluster.path(1).join("link")).unwrap();
    write_and_sync(&cluster.path(2).join("by-the-last"), b"of the node that is lost");
    cluster.stop_node(2);
    let n4 = cluster.add_node("n4");
    let name = VolumeName::new(VOLUME).unwrap();
    let [old, new] = ["n3", "n4"].map(|name| NodeName::new(name).unwrap());
    let replace = ControlRequest::Replace(ReplicaReplacement { name, old, new });
    let answer = send_control_request(&cluster.nodes[0].store(), &replace).unwrap();
    let ControlAnswer::DoneExceptFiles(remaining) = answer else {
        panic!("the lost node has removed its files: {answer:?}")
    };
    assert!(remaining.contains("n3 keeps its files of volume"), "{remaining}");
    write_and_sync(&cluster.path(0).join("after"), b"while it is copied");
    cluster.wait_for_chain(0, 3);
    cluster.nodes[n4].mount();
    assert!(fs::read(cluster.path(n4).join("link")).unwrap() == vec![1; 3 * LOG_BYTES as usize]);
    write_and_sync(&cluster.path(n4).join("by-the-new"), b"of the new node");
    assert_eq!(fs::read(cluster.path(0).join("by-the-new")).unwrap(), b"of the new node");
    cluster.nodes.remove(2);
    assert_eq!(cluster.published_tree().len(), 5);
}
