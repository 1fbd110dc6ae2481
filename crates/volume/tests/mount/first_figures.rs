//! Prints figures of a volume next to a floor: the same calls on the local file system. Run with `--ignored first_figures`
//! in a release build; nothing is asserted.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;

use super::mounted_volume::MountedVolume;
use super::replica_check;
use super::test_node::NO_DETECTION_MS;
use super::volume_cluster::{THREE_NODES, VolumeCluster};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("first_figures_are_printed_next_to_a_floor", first_figures_are_printed_next_to_a_floor),
    ("a_volume_holds_a_hundred_thousand_files", a_volume_holds_a_hundred_thousand_files),
];

const LOG_BYTES: u64 = 64 << 20;
const OPERATION_BYTES: usize = 16 << 10;
const SYNCED_WRITES: u64 = 2_000;
const STREAM_BYTES: u64 = 512 << 20;
const FILES: u32 = 5_000;

fn first_figures_are_printed_next_to_a_floor() {
    let (mean, p99) = measure_ping_pongs();
    println!("two round trips of {OPERATION_BYTES} bytes over a loopback socket: mean {mean:.1?}, p99 {p99:.1?}");
    for durability in [Durability::Memory, Durability::Disk] {
        let volume = MountedVolume::create_with(LOG_BYTES, durability);
        if durability == Durability::Memory {
            let floor = volume.local_path().join("local");
            fs::create_dir(&floor).unwrap();
            measure_side("local", &floor);
        }
        measure_side(&format!("one replica, {durability:?}"), &volume.path());
        drop(volume);
        let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, durability, NO_DETECTION_MS);
        measure_side(&format!("three replicas, {durability:?}"), &cluster.path(0));
        measure_check(&cluster);
    }
}

fn measure_side(name: &str, path: &Path) {
    let (mean, p99) = measure_synced_writes(path);
    println!("{name}: 16 KiB write + fsync: mean {mean:.1?}, p99 {p99:.1?}");
    println!(
        "{name}: sequential write {:.0} MiB/s, then read {:.0} MiB/s (page cache dropped)",
        measure_write(path),
        measure_read(path)
    );
    let (create, stat) = measure_files(path);
    println!("{name}: create {create:.1?}, stat {stat:.1?}");
}

/// Measures a check of all files that `measure_side` has written.
fn measure_check(cluster: &VolumeCluster) {
    let (started, mut compared_at) = (Instant::now(), None);
    let report = replica_check::compare(&cluster.nodes[0], |_| _ = compared_at.get_or_insert_with(Instant::now));
    let inodes_took = compared_at.unwrap_or(started) - started;
    let rate = rate(started.elapsed() - inodes_took);
    println!("check of three replicas: {} inodes in {inodes_took:.1?}, then data {rate:.0} MiB/s", report.inodes);
}

/// Measures the least time of two hops of a chain: the operation is sent and acknowledged twice.
fn measure_ping_pongs() -> (Duration, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    other.set_nodelay(true).unwrap();
    let echo = std::thread::spawn(move || {
        let mut buffer = vec![0; OPERATION_BYTES];
        while other.read_exact(&mut buffer).is_ok() {
            other.write_all(&[1]).unwrap();
        }
    });
    let (data, mut acknowledgement) = (vec![7; OPERATION_BYTES], [0]);
    let mut times: Vec<Duration> = (0..SYNCED_WRITES)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..2 {
                stream.write_all(&data).unwrap();
                stream.read_exact(&mut acknowledgement).unwrap();
            }
            started.elapsed()
        })
        .collect();
    drop(stream);
    echo.join().unwrap();
    times.sort();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    (mean, times[times.len() * 99 / 100])
}

/// Measures the times of creating, remounting and removing the files. A remount reads the whole namespace.
fn a_volume_holds_a_hundred_thousand_files() {
    const DIRECTORIES: u32 = 100;
    const FILES_PER_DIRECTORY: u32 = 1_000;
    let mut volume = MountedVolume::create_with(LOG_BYTES, Durability::Memory);
    let directory = |volume: &MountedVolume, index: u32| volume.path().join(format!("directory-{index}"));
    let started = Instant::now();
    for index in 0..DIRECTORIES {
        fs::create_dir(directory(&volume, index)).unwrap();
        for file in 0..FILES_PER_DIRECTORY {
            fs::write(directory(&volume, index).join(format!("file-{file}")), file.to_string()).unwrap();
        }
    }
    println!("100,000 files: written in {:.1?}", started.elapsed());
    let started = Instant::now();
    volume.unmount();
    volume.mount();
    println!("100,000 files: mounted again in {:.1?}", started.elapsed());
    let status = fs::read_to_string(format!("/proc/{}/status", volume.process_id(ProcessRole::Client))).unwrap();
    println!("100,000 files: memory of the client {}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap());
    let started = Instant::now();
    for index in 0..DIRECTORIES {
        assert_eq!(fs::read_dir(directory(&volume, index)).unwrap().count(), FILES_PER_DIRECTORY as usize);
        assert_eq!(fs::read_to_string(directory(&volume, index).join("file-7")).unwrap(), "7");
        fs::remove_dir_all(directory(&volume, index)).unwrap();
    }
    println!("100,000 files: removed in {:.1?}", started.elapsed());
}

fn measure_synced_writes(directory: &Path) -> (Duration, Duration) {
    let file = File::create(directory.join("synced")).unwrap();
    let data = vec![b'x'; OPERATION_BYTES];
    let mut times: Vec<Duration> = (0..SYNCED_WRITES)
        .map(|index| {
            let started = Instant::now();
            file.write_all_at(&data, index * OPERATION_BYTES as u64).unwrap();
            file.sync_all().unwrap();
            started.elapsed()
        })
        .collect();
    times.sort();
    (times.iter().sum::<Duration>() / SYNCED_WRITES as u32, times[times.len() * 99 / 100])
}

/// Measures the rate of a sequential write that ends with fsync(2), in MiB/s.
fn measure_write(directory: &Path) -> f64 {
    let mut file = File::create(directory.join("stream")).unwrap();
    let data = vec![b'x'; OPERATION_BYTES];
    let started = Instant::now();
    for _ in 0..STREAM_BYTES / OPERATION_BYTES as u64 {
        file.write_all(&data).unwrap();
    }
    file.sync_all().unwrap();
    rate(started.elapsed())
}

/// Measures the rate of a sequential read in MiB/s, after dropping the pages of the file from the page cache.
fn measure_read(directory: &Path) -> f64 {
    let mut file = OpenOptions::new().read(true).open(directory.join("stream")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut data = vec![0; OPERATION_BYTES];
    let started = Instant::now();
    while file.read(&mut data).unwrap() > 0 {}
    rate(started.elapsed())
}

fn rate(time: Duration) -> f64 {
    (STREAM_BYTES >> 20) as f64 / time.as_secs_f64()
}

/// Measures the mean times of creation and stat(2) per file.
fn measure_files(directory: &Path) -> (Duration, Duration) {
    let path = |index: u32| directory.join(format!("file-{index}"));
    let started = Instant::now();
    (0..FILES).for_each(|index| drop(File::create(path(index)).unwrap()));
    let created = started.elapsed() / FILES;
    let started = Instant::now();
    (0..FILES).for_each(|index| assert!(fs::metadata(path(index)).is_ok()));
    (created, started.elapsed() / FILES)
}
