//! One node changes the size of a file. Calls on the other node whose end is the size that the kernel has cached must use the
//! present size after open(2), although the reply to open(2) has no attributes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use rustix::fs::{copy_file_range, sendfile};

use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, SetOnDrop};
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_file_that_another_node_has_extended_is_copied_completely", extended_file),
    ("a_file_that_another_node_extends_all_the_time_is_copied_up_to_its_size_at_open", growing_file),
];

const ROUNDS: usize = 20;
const BYTES: usize = 20_000;

/// Number of attempts to copy the end of a growing file on a busy machine.
const ATTEMPTS_MAX: usize = 20;

/// Longest time that invalidations of a file wait for a repeated open(2).
const HOLD_TIME_MAX: Duration = Duration::from_millis(200);

fn mounted_pair() -> (VolumeCluster, PathBuf, PathBuf) {
    let cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let (here, there) = (cluster.path(0), cluster.path(1));
    (cluster, here, there)
}

fn append(path: &Path, bytes: usize) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
}

/// Number of bytes from an offset on that a call of the kernel copies from a newly opened file.
type CopyCall = (&'static str, fn(&Path, &Path, u64) -> usize);

const COPY_CALLS: [CopyCall; 2] = [
    ("copy_file_range", |source, target, offset| {
        let (source, target) = (File::open(source).unwrap(), File::create(target).unwrap());
        copy_file_range(&source, Some(&mut offset.clone()), &target, None, 10 * BYTES).unwrap()
    }),
    ("sendfile", |source, target, offset| {
        let (source, target) = (File::open(source).unwrap(), File::create(target).unwrap());
        sendfile(&target, &source, Some(&mut offset.clone()), 10 * BYTES).unwrap()
    }),
];

fn extended_file() {
    let (_cluster, here, there) = mounted_pair();
    for round in 0..ROUNDS {
        for (call_name, call) in COPY_CALLS {
            let name = format!("{call_name}-{round}");
            let (source, target) = (there.join(&name), there.join(format!("{name}-copy")));
            append(&here.join(&name), BYTES);
            assert_eq!(fs::metadata(&source).unwrap().len(), BYTES as u64);
            assert_eq!(fs::read(&source).unwrap().len(), BYTES);
            append(&here.join(&name), BYTES);
            assert_eq!(call(&source, &target, 0), 2 * BYTES, "{name}: extended");
            OpenOptions::new().write(true).open(here.join(&name)).unwrap().set_len(100).unwrap();
            assert_eq!(call(&source, &target, 0), 100, "{name}: truncated");
        }
    }
}

fn growing_file() {
    let (_cluster, here, there) = mounted_pair();
    let (source, target) = (there.join("file"), there.join("copy"));
    append(&here.join("file"), BYTES);
    let (written, must_stop) = (AtomicU64::new(BYTES as u64), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = SetOnDrop(&must_stop);
        scope.spawn(|| {
            let mut file = OpenOptions::new().append(true).open(here.join("file")).unwrap();
            while !must_stop.load(Ordering::Relaxed) {
                file.write_all(&[7; 100]).unwrap();
                file.sync_data().unwrap();
                written.fetch_add(100, Ordering::Release);
            }
        });
        let copy_end = || {
            let (last, began) = (written.load(Ordering::Acquire) - 1, Instant::now());
            let copied = COPY_CALLS[1].1(&source, &target, last);
            // Invalidations of the file do not wait longer for a thread that the machine delays.
            assert!(copied > 0 || began.elapsed() >= HOLD_TIME_MAX, "the file ends before {last}");
            assert!(fs::read(&target).unwrap() == vec![7; copied], "{copied} bytes from {last} on");
            copied > 0
        };
        for round in 0..5 * ROUNDS {
            let is_copied = (0..ATTEMPTS_MAX).any(|_| copy_end());
            assert!(is_copied, "round {round}: {ATTEMPTS_MAX} calls were late and copied nothing");
        }
    });
}
