//! Calls that wait for other processes, while these other processes are stopped or killed.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_sys::process::SystemCall;
use farfork_volume::process::ProcessRole;
use fastrand::Rng;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::thread::gettid;

use super::crash::stop;
use super::mounted_volume::{LOG_BYTES, MountedVolume};
use super::test_node::{FUSE_SUPER_MAGIC, NO_DETECTION_MS, SetOnDrop, WAIT_LIMIT};
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_volume_is_unmounted_whose_client_cannot_return", a_volume_is_unmounted_whose_client_cannot_return),
    ("calls_end_when_the_offload_process_stays_away", calls_end_when_the_offload_process_stays_away),
    ("calls_that_wait_stop_no_other_call", calls_that_wait_stop_no_other_call),
    ("sync_returns_before_fsync_does", sync_returns_before_fsync_does),
    ("clients_killed_while_all_nodes_change_a_directory_are_replaced", || kill_clients(10)),
];

pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("many_clients_killed_while_all_nodes_change_a_directory_are_replaced", || kill_clients(300))];

/// Time after which a node without processes leaves the chain. Long enough for a busy machine.
const DETECTION_MS: u64 = 5_000;

/// More writers than the client has threads. Together they write more than fits into the log.
const WAITING_WRITERS: usize = 20;
const WRITE_BYTES: usize = 1 << 20;

/// The log is full and no fsync(2) is answered, because the offload process is stopped.
fn calls_that_wait_stop_no_other_call() {
    let volume = MountedVolume::create();
    fs::write(volume.path().join("known"), b"known").unwrap();
    let path = |writer: usize| volume.path().join(format!("file-{writer}"));
    let files: Vec<File> = (0..WAITING_WRITERS).map(|writer| File::create(path(writer)).unwrap()).collect();
    stop(volume.process_id(ProcessRole::Offload));
    let (written, synced) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (writing, writers) = mpsc::channel();
    thread::scope(|scope| {
        for (writer, mut file) in files.into_iter().enumerate() {
            let (written, synced, writing) = (&written, &synced, writing.clone());
            scope.spawn(move || {
                writing.send(gettid().as_raw_nonzero().get()).unwrap();
                file.write_all(&vec![writer as u8; WRITE_BYTES]).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
                file.sync_all().unwrap();
                synced.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (answer, answered) = mpsc::channel();
        let asked = volume.path();
        thread::spawn(move || {
            wait_for_calls(writers.iter().take(WAITING_WRITERS).collect());
            rustix::fs::statfs(&asked).unwrap();
            let known = fs::read(asked.join("known")).unwrap();
            let names = fs::read_dir(&asked).unwrap().count();
            answer.send((known, names, asked.join("absent").exists())).unwrap();
        });
        let answer = answered.recv_timeout(WAIT_LIMIT);
        let done = (written.load(Ordering::Relaxed), synced.load(Ordering::Relaxed));
        let offload = farfork_sys::pidfd::open(volume.process_id(ProcessRole::Offload).cast_signed()).unwrap();
        farfork_sys::pidfd::send_signal(&offload, Signal::CONT.as_raw()).unwrap();
        assert_eq!(answer.expect("other calls are answered"), (b"known".to_vec(), WAITING_WRITERS + 1, false));
        assert!(done.0 < WAITING_WRITERS && done.1 == 0, "{done:?}: the calls did not wait");
    });
    for writer in 0..WAITING_WRITERS {
        assert!(fs::read(path(writer)).unwrap() == vec![writer as u8; WRITE_BYTES], "file {writer}");
    }
}

/// The kernel does not send syncfs(2) to a FUSE file system, and sync(2) calls the same function.
fn sync_returns_before_fsync_does() {
    let volume = MountedVolume::create();
    let mut file = File::create(volume.path().join("file")).unwrap();
    file.sync_all().unwrap();
    stop(volume.process_id(ProcessRole::Offload));
    file.write_all(b"not replicated").unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let is_synced = AtomicBool::new(false);
    let (waiting, waits) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            waiting.send(gettid().as_raw_nonzero().get()).unwrap();
            file.sync_all().unwrap();
            is_synced.store(true, Ordering::Relaxed);
        });
        wait_for_calls(vec![waits.recv().unwrap()]);
        let waits_for_replicas = !is_synced.load(Ordering::Relaxed);
        let offload = farfork_sys::pidfd::open(volume.process_id(ProcessRole::Offload).cast_signed()).unwrap();
        farfork_sys::pidfd::send_signal(&offload, Signal::CONT.as_raw()).unwrap();
        assert!(waits_for_replicas, "fsync(2) did not wait");
    });
}

/// Waits until each thread is in write(2) or in fsync(2).
fn wait_for_calls(threads: Vec<i32>) {
    // <asm/unistd_64.h>
    const WRITE: u64 = 1;
    const FSYNC: u64 = 74;
    let deadline = Instant::now() + WAIT_LIMIT;
    let is_in_call = |thread: &i32| {
        let call = SystemCall::read(*thread).unwrap();
        call.is_some_and(|call| [WRITE, FSYNC].contains(&call.number))
    };
    while !threads.iter().all(is_in_call) {
        assert!(Instant::now() < deadline, "a writer makes no waiting call");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Kills clients while they invalidate entries of a directory. Programs of the node hold the lock of this directory while
/// they wait for the client.
fn kill_clients(rounds: usize) {
    let cluster = VolumeCluster::three_replicas();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for node in 0..THREE_NODES.len() {
            for program in 0..3 {
                let (root, is_over) = (cluster.path(node), &is_over);
                scope.spawn(move || {
                    let mut random = Rng::with_seed((node * 8 + program) as u64);
                    while !is_over.load(Ordering::Relaxed) {
                        let (name, other) = (random.u8(..20), random.u8(..20));
                        // Each call may fail while the client is replaced, or because another program has changed the name
                        // first.
                        let _ = fs::write(root.join(format!("file-{name}")), [node as u8; 100]);
                        let _ = fs::rename(root.join(format!("file-{name}")), root.join(format!("file-{other}")));
                        let _ = fs::remove_file(root.join(format!("file-{other}")));
                    }
                });
            }
        }
        let _end = SetOnDrop(&is_over);
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            let started = Instant::now();
            cluster.nodes[round % THREE_NODES.len()].kill(&[ProcessRole::Client]);
            longest = longest.max(started.elapsed());
        }
        println!("{rounds} clients are killed, and replaced within {:.1} s", longest.as_secs_f64());
    });
    let file = cluster.path(0).join("last");
    let mut last = OpenOptions::new().create(true).truncate(true).write(true).open(file).unwrap();
    last.write_all(b"last").unwrap();
    last.sync_all().unwrap();
    cluster.published_tree();
}

/// The offload process is not restarted, as after the death of a node's daemon.
fn calls_end_when_the_offload_process_stays_away() {
    let cluster = &mut VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, DETECTION_MS);
    let (known, data) = (cluster.path(0).join("known"), b"acknowledged".to_vec());
    fs::write(&known, &data).unwrap();
    File::open(&known).unwrap().sync_all().unwrap();
    cluster.nodes[0].stop_processes();
    let deadline = Instant::now() + WAIT_LIMIT;
    let error = loop {
        assert!(Instant::now() < deadline, "calls succeed without an offload process");
        // Each attempt waits for the offload process, until the first one fails without waiting.
        let written = File::create(cluster.path(0).join("new")).and_then(|file| file.sync_all());
        if let Err(error) = written {
            break error;
        }
    };
    let expected = [Some(Errno::CONNABORTED), Some(Errno::NOTCONN)];
    assert!(expected.contains(&Errno::from_io_error(&error)), "{error}");
    // Returns only after the supervisor has ended.
    cluster.nodes[0].unmount();
    assert_eq!(fs::read(cluster.path(1).join("known")).unwrap(), data);
    cluster.nodes[0].start_processes();
    cluster.nodes[0].mount();
    cluster.nodes[0].wait_until_mounted();
    assert_eq!(fs::read(&known).unwrap(), data);
}

/// Unmounting must end the supervisor, which would otherwise start clients until one mounts the volume.
fn a_volume_is_unmounted_whose_client_cannot_return() {
    let cluster = &mut VolumeCluster::mounted(&["n1"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let node = &mut cluster.nodes[0];
    node.stop_processes();
    node.signal(&[ProcessRole::Client], Signal::KILL);
    // Returns only after the supervisor has ended.
    node.unmount();
    node.start_processes();
    let is_mounted = || statfs(node.path()).unwrap().f_type == FUSE_SUPER_MAGIC;
    assert!(!is_mounted());
    node.mount();
    node.wait_until_mounted();
}
