//! Kills processes under load. Afterwards the volume has all acknowledged data, and no data that was not written.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_sys::mount::table::read_thread_mounts;
use farfork_volume::process::{ProcessRole, end_after_panic};
use fastrand::Rng;
use rustix::process::Signal;

use super::mounted_volume::{LOG_BYTES, MountedVolume};
use super::real_programs::ProcessMain;
use super::test_node::{WAIT_LIMIT, process_command};
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_killed_client_loses_nothing_acknowledged", || {
        kill_under_load(&[&[ProcessRole::Client]], 12, Durability::Memory)
    }),
    ("a_killed_worker_loses_nothing", || kill_under_load(&[&[ProcessRole::Worker]], 20, Durability::Memory)),
    ("a_killed_offload_process_loses_nothing", || kill_under_load(&[&[ProcessRole::Offload]], 20, Durability::Memory)),
    ("processes_killed_in_turns_and_together_lose_nothing", || kill_under_load(TURNS, 30, Durability::Memory)),
    ("all_processes_killed_at_once_lose_nothing", || kill_under_load(&[ALL_AT_ONCE], 20, Durability::Memory)),
    ("all_processes_killed_at_once_lose_nothing_on_disk", || kill_under_load(&[ALL_AT_ONCE], 8, Durability::Disk)),
    ("nothing_is_written_below_the_mount_of_a_killed_client", nothing_is_written_below_the_mount_of_a_killed_client),
    ("a_client_recovers_unpublished_records", a_client_recovers_unpublished_records),
    ("a_stopped_worker_is_replaced", a_stopped_worker_is_replaced),
    ("a_panic_of_a_thread_ends_its_process", a_panic_of_a_thread_ends_its_process),
];

/// Processes of this file.
pub(crate) const PROCESSES: &[(&str, ProcessMain)] = &[("panicking", run_panicking)];

/// The offload process is killed first, so that acknowledged records are unpublished when the client dies.
const ALL_AT_ONCE: &[ProcessRole] = &[ProcessRole::Offload, ProcessRole::Worker, ProcessRole::Client];
const TURNS: &[&[ProcessRole]] = &[
    &[ProcessRole::Worker],
    &[ProcessRole::Offload],
    &[ProcessRole::Client],
    &[ProcessRole::Offload, ProcessRole::Worker],
    &[ProcessRole::Offload, ProcessRole::Client],
    ALL_AT_ONCE,
];
const WRITERS: usize = 3;
/// Not a divisor of a page, so that records cross pages.
const RECORD_BYTES: usize = 3000;
const RECORDS_PER_FILE: u64 = 200;

/// Fewest records that must be acknowledged during a test.
const RECORDS_MIN: u64 = 100;
/// Even a slow machine acknowledges `RECORDS_MIN` records within this time.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(60);

/// Ends the writers, and counts their acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct WriterControl {
    must_stop: AtomicBool,
    acknowledged: AtomicU64,
}

impl WriterControl {
    /// Records that fsync(2) has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }
}

/// Ends the writers when it is dropped, also if the test fails: a thread scope waits for its threads.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a [WriterControl]);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|control| control.must_stop.store(true, Ordering::Relaxed));
    }
}

/// The acknowledgements of one writer.
#[derive(Debug, Default)]
pub(crate) struct WriterManifest {
    /// Number of records of each file that fsync(2) acknowledged.
    records: Vec<u64>,
    /// Number of files whose rename was acknowledged by fsync(2) of the directory.
    renamed: usize,
    errors: u64,
}

/// Returns random bytes that depend on writer, file and number of a record.
fn record_of(writer: usize, file: usize, record: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(((writer as u64) << 48) | ((file as u64) << 24) | record);
    std::iter::repeat_with(|| random.u8(..)).take(RECORD_BYTES).collect()
}

fn written_path(root: &Path, writer: usize, file: usize) -> PathBuf {
    root.join(format!("writer-{writer}")).join(format!("writing-{file}"))
}

fn renamed_path(root: &Path, writer: usize, file: usize) -> PathBuf {
    root.join(format!("writer-{writer}")).join(format!("written-{file}"))
}

/// Writes files of records. Each file is renamed when it is complete.
pub(crate) fn write_until_stopped(root: &Path, writer: usize, control: &WriterControl) -> WriterManifest {
    let mut manifest = WriterManifest::default();
    while !control.must_stop.load(Ordering::Relaxed) {
        let file = manifest.renamed;
        if manifest.records.len() == file {
            manifest.records.push(0);
        }
        if write_file(root, writer, file, &mut manifest.records[file], control).is_err() {
            // The client has died. The next client mounts the volume soon.
            manifest.errors += 1;
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        if manifest.records[file] == RECORDS_PER_FILE {
            manifest.renamed += 1;
        }
    }
    manifest
}

fn write_file(
    root: &Path,
    writer: usize,
    file: usize,
    acknowledged: &mut u64,
    control: &WriterControl,
) -> io::Result<()> {
    let (path, renamed) = (written_path(root, writer, file), renamed_path(root, writer, file));
    // Fails while nothing is mounted, so that nothing is written to the directory below the mount.
    let directory = File::open(path.parent().unwrap())?;
    if *acknowledged < RECORDS_PER_FILE || !renamed.exists() {
        let output = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        while *acknowledged < RECORDS_PER_FILE && !control.must_stop.load(Ordering::Relaxed) {
            output.write_all_at(&record_of(writer, file, *acknowledged), *acknowledged * RECORD_BYTES as u64)?;
            output.sync_data()?;
            *acknowledged += 1;
            control.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        if *acknowledged == RECORDS_PER_FILE {
            fs::rename(&path, &renamed)?;
        }
    }
    directory.sync_all()
}

pub(crate) fn verify(root: &Path, writer: usize, manifest: &WriterManifest) {
    for (file, acknowledged) in manifest.records.iter().enumerate() {
        let renamed = renamed_path(root, writer, file);
        if file < manifest.renamed {
            assert!(renamed.exists(), "the rename of file {file} of writer {writer} was acknowledged");
        }
        let written = written_path(root, writer, file);
        let data = fs::read(&renamed).or_else(|_| fs::read(&written)).unwrap_or_default();
        let found = data.len() / RECORD_BYTES;
        assert!(found as u64 >= *acknowledged, "{found} of {acknowledged} records of file {file} of writer {writer}");
        for (record, bytes) in (0_u64..).zip(data.chunks(RECORD_BYTES)) {
            let expected = record_of(writer, file, record);
            let is_torn_end = record >= *acknowledged;
            assert!(expected == bytes || is_torn_end, "record {record} of file {file} of writer {writer}");
        }
    }
}

/// Kills a random one of the groups each time.
fn kill_under_load(groups: &[&[ProcessRole]], kills: usize, durability: Durability) {
    let mut volume = MountedVolume::create_with(LOG_BYTES, durability);
    let root = volume.path();
    for writer in 0..WRITERS {
        fs::create_dir(root.join(format!("writer-{writer}"))).unwrap();
    }
    File::open(&root).unwrap().sync_all().unwrap();
    let control = WriterControl::default();
    let mut random = Rng::with_seed(kills as u64);
    let manifests: Vec<WriterManifest> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn({
                    let (root, control) = (&root, &control);
                    move || write_until_stopped(root, writer, control)
                })
            })
            .collect();
        let stop = StopOnDrop(std::slice::from_ref(&control));
        for _ in 0..kills {
            thread::sleep(Duration::from_millis(random.u64(5..150)));
            volume.kill(groups[random.usize(..groups.len())]);
        }
        let deadline = Instant::now() + RECORDS_TIMEOUT;
        while control.acknowledged() < RECORDS_MIN && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        drop(stop);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let check = || manifests.iter().enumerate().for_each(|(writer, manifest)| verify(&root, writer, manifest));
    check();
    volume.unmount();
    volume.mount();
    check();
    let records: u64 = manifests.iter().flat_map(|manifest| &manifest.records).sum();
    let errors: u64 = manifests.iter().map(|manifest| manifest.errors).sum();
    println!("{kills} kills of {groups:?}: {records} records acknowledged, {errors} calls failed");
    assert!(records >= RECORDS_MIN, "only {records} records: the test does too little");
    if !groups.iter().any(|group| group.contains(&ProcessRole::Client)) {
        assert_eq!(errors, 0, "programs do not notice the death of worker and offload process");
    }
}

/// Sends SIGSTOP to a process, and waits until all its threads are stopped.
pub(crate) fn stop(process_id: u32) {
    let pidfd = farfork_sys::pidfd::open(process_id as i32).unwrap();
    farfork_sys::pidfd::send_signal(&pidfd, Signal::STOP.as_raw()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_stopped = |thread: fs::DirEntry| {
        fs::read_to_string(thread.path().join("status")).is_ok_and(|status| status.contains("State:\tT"))
    };
    while !fs::read_dir(format!("/proc/{process_id}/task")).unwrap().all(|thread| is_stopped(thread.unwrap())) {
        assert!(Instant::now() < deadline, "process {process_id} is not stopped");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the offload process while a program writes. Continues the process while the next client waits for it.
fn a_client_recovers_unpublished_records() {
    let volume = MountedVolume::create();
    let offload = farfork_sys::pidfd::open(volume.process_id(ProcessRole::Offload) as i32).unwrap();
    for round in 0..3 {
        // Gives the client the write permission and a report of the free space: the client requests the report, because this
        // write is larger than `UNREPORTED_BYTES`. So the next writes need no answer of the stopped offload process.
        fs::write(volume.path().join("written-before"), vec![round; (1 << 20) + 1]).unwrap();
        stop(volume.process_id(ProcessRole::Offload));
        let name = format!("file-{round}");
        let data = vec![round; 1 << 20];
        fs::create_dir(volume.path().join(format!("directory-{round}"))).unwrap();
        let mut file = File::create(volume.path().join(&name)).unwrap();
        io::Write::write_all(&mut file, &data).unwrap();
        drop(file);
        assert!(!volume.volume_path().join("shared/tree").join(&name).exists(), "the file is not published");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(500));
                farfork_sys::pidfd::send_signal(&offload, Signal::CONT.as_raw()).unwrap();
            });
            volume.kill(&[ProcessRole::Client]);
        });
        for earlier in 0..=round {
            assert!(fs::read(volume.path().join(format!("file-{earlier}"))).unwrap() == vec![earlier; 1 << 20]);
            assert!(volume.path().join(format!("directory-{earlier}")).is_dir());
        }
    }
}

/// A stopped worker could later continue with an old change set, so it is killed before another process publishes. A worker
/// that is silent for less than the time of failure detection may just wait for a CPU, and stays.
fn a_stopped_worker_is_replaced() {
    const DETECTION_MS: u64 = 2_500;
    let cluster = VolumeCluster::mounted(&["n1"], LOG_BYTES, Durability::Memory, DETECTION_MS);
    let (node, file) = (&cluster.nodes[0], cluster.path(0).join("file"));
    let stopped = node.process_id(ProcessRole::Worker);
    stop(stopped);
    let started = Instant::now();
    let data = vec![7; 3 * LOG_BYTES as usize];
    fs::write(&file, &data).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    assert!(started.elapsed() >= Duration::from_millis(DETECTION_MS), "killed after {:?}", started.elapsed());
    node.wait_for("the worker is replaced", || node.process_id(ProcessRole::Worker) != stopped);
}

fn a_panic_of_a_thread_ends_its_process() {
    let status = process_command("panicking").arg("thread").status().unwrap();
    assert_eq!(status.code(), Some(101));
}

/// A process whose main thread waits for long.
fn run_panicking(_arguments: &[String]) {
    end_after_panic();
    thread::spawn(|| panic!("a panic of a test"));
    thread::sleep(WAIT_LIMIT);
}

/// While the client is replaced, a write of a program either fails or creates a file in the volume.
fn nothing_is_written_below_the_mount_of_a_killed_client() {
    let mut volume = MountedVolume::create();
    let path = volume.path();
    for round in 0..3 {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let _ = fs::write(path.join(format!("round-{round}-{file}")), b"x");
                    file += 1;
                }
            });
            volume.kill(&[ProcessRole::Client]);
            is_over.store(true, Ordering::Relaxed);
        });
        let mounts = read_thread_mounts().unwrap();
        assert_eq!(mounts.iter().filter(|mount| mount.point == path).count(), 1, "the dead mount is gone");
    }
    volume.unmount();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "files are in the directory below the mount");
}
