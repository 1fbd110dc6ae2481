//! Pages that the kernel has cached: calls that bypass the cache, and changes of another node, leave no wrong bytes in them.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use farfork_cluster::catalog::Durability;
use farfork_sys::shared_mapping::SharedMapping;
use farfork_volume::mount::abort_mount;
use rustix::fs::{OFlags, fcntl_setfl};

use super::mounted_volume::{LOG_BYTES, MountedVolume};
use super::test_node::{NO_DETECTION_MS, SetOnDrop, WAIT_LIMIT};
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_file_that_appends_since_fcntl_is_written", a_file_that_appends_since_fcntl_is_written),
    (
        "a_file_that_appends_since_fcntl_is_written_after_another_node",
        a_file_that_appends_since_fcntl_is_written_after_another_node,
    ),
    ("a_write_past_the_cache_is_read_from_the_cache", a_write_past_the_cache_is_read_from_the_cache),
    (
        "a_mapping_does_not_extend_a_file_that_another_node_has_cut",
        a_mapping_does_not_extend_a_file_that_another_node_has_cut,
    ),
];

const PAGE_BYTES: usize = 4096;

/// A volume with a replica on each of two nodes. Returns the paths of a file on both nodes.
fn mounted_pair() -> (VolumeCluster, [PathBuf; 2]) {
    let cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let paths = [0, 1].map(|node| cluster.path(node).join("file"));
    (cluster, paths)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Opens a file for writing with O_APPEND. Its writes bypass the kernel's cache.
fn open_appender(path: &Path) -> File {
    OpenOptions::new().append(true).open(path).unwrap()
}

/// Makes a call on a mount. If it does not return, the mount is aborted, so that the call fails and the test ends.
fn make_call(mount: &Path, call: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        call();
        let _ = done.send(());
    });
    if is_done.recv_timeout(WAIT_LIMIT).is_err() {
        abort_mount(mount).unwrap();
        panic!("the call does not return");
    }
}

/// The kernel caches the file, because open(2) had no O_APPEND. It keeps the page locked until the write is answered.
fn a_file_that_appends_since_fcntl_is_written() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    let mut file = open(&path);
    file.write_all(b"begin").unwrap();
    // The client drops pages after an append if the file is open twice.
    let other = File::open(&path).unwrap();
    fcntl_setfl(&file, OFlags::APPEND).unwrap();
    make_call(&volume.path(), move || file.write_all(b"end").unwrap());
    drop(other);
    assert_eq!(fs::read(&path).unwrap(), b"beginend");
}

/// As above. The kernel assumes the end of the file at a wrong offset.
fn a_file_that_appends_since_fcntl_is_written_after_another_node() {
    let (cluster, paths) = mounted_pair();
    let mut file = open(&paths[0]);
    file.write_all(b"begin").unwrap();
    fcntl_setfl(&file, OFlags::APPEND).unwrap();
    open_appender(&paths[1]).write_all(b"middle").unwrap();
    make_call(&cluster.path(0), move || file.write_all(b"end").unwrap());
    for path in &paths {
        assert_eq!(fs::read(path).unwrap(), b"beginmiddleend");
    }
}

/// A file is cached if it was opened before the first open(2) with O_APPEND. A file that is opened later bypasses the cache.
/// The kernel drops the written page before the write, and a reader may fill it again before the write is executed.
fn a_write_past_the_cache_is_read_from_the_cache() {
    const ROUNDS: u64 = 3_000;
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    fs::write(&path, [0; PAGE_BYTES]).unwrap();
    let cached = File::open(&path).unwrap();
    let _appender = open_appender(&path);
    let direct = open(&path);
    let must_stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&must_stop);
        scope.spawn(|| {
            while !must_stop.load(Ordering::Relaxed) {
                cached.read_exact_at(&mut [0; PAGE_BYTES], 0).unwrap();
            }
        });
        for round in 1..=ROUNDS {
            direct.write_all_at(&round.to_le_bytes(), 0).unwrap();
            let mut found = [0; 8];
            cached.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(u64::from_le_bytes(found), round);
        }
    });
}

/// The kernel of node 0 writes back stored bytes after the end of the file, because it does not know the present end.
fn a_mapping_does_not_extend_a_file_that_another_node_has_cut() {
    const FILE_BYTES: usize = 8 * PAGE_BYTES;
    let (_cluster, paths) = mounted_pair();
    for round in 0..20 {
        fs::write(&paths[0], [1; FILE_BYTES]).unwrap();
        let file = open(&paths[0]);
        let mapping = SharedMapping::map_file(&file, FILE_BYTES).unwrap();
        mapping.store(0, b"stored");
        mapping.store(5 * PAGE_BYTES, b"stored");
        let size = 100 + round % 2 * PAGE_BYTES;
        open(&paths[1]).set_len(size as u64).unwrap();
        // The mapping is written back before the pages are dropped, and open(2) waits for that.
        assert_eq!(fs::read(&paths[0]).unwrap().len(), size, "round {round}");
        drop((mapping, file));
        for path in &paths {
            let found = fs::read(path).unwrap();
            assert_eq!((found.len(), &found[..6]), (size, &b"stored"[..]), "round {round}");
        }
        open(&paths[1]).set_len(FILE_BYTES as u64).unwrap();
        for path in &paths {
            let found = fs::read(path).unwrap();
            assert!(found[size..].iter().all(|byte| *byte == 0), "round {round}");
        }
    }
}
