//! A node that restarts while it publishes changes of another node shows each of them as a whole.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;
use fastrand::Rng;

use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, SetOnDrop};
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("renamed_directories_are_whole_after_a_restart", renamed_directories_are_whole_after_a_restart)];

/// Many, so that publishing their renames takes most of the time.
const DIRECTORIES: usize = 100;
const NAMES: [&str; 2] = ["one", "other"];
const RESTARTS: usize = 6;

fn rename_until(root: &Path, must_stop: &AtomicBool) {
    let path = |name: &str, number: usize| root.join(format!("{name}-{number}"));
    while !must_stop.load(Ordering::Relaxed) {
        for [from, to] in [NAMES, [NAMES[1], NAMES[0]]] {
            (0..DIRECTORIES).for_each(|number| fs::rename(path(from, number), path(to, number)).unwrap());
        }
    }
}

fn renamed_directories_are_whole_after_a_restart() {
    let cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let [writing, restarted] = [0, 1].map(|node| cluster.path(node));
    for number in 0..DIRECTORIES {
        let directory = writing.join(format!("{}-{number}", NAMES[0]));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), b"data").unwrap();
    }
    File::open(&writing).unwrap().sync_all().unwrap();
    let mut random = Rng::with_seed(5);
    for round in 0..RESTARTS {
        let must_stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let stop = SetOnDrop(&must_stop);
            scope.spawn(|| rename_until(&writing, &must_stop));
            thread::sleep(Duration::from_millis(random.u64(30..150)));
            cluster.nodes[1].kill(&[ProcessRole::Offload, ProcessRole::Worker, ProcessRole::Client]);
            drop(stop);
        });
        File::open(&writing).unwrap().sync_all().unwrap();
        for number in 0..DIRECTORIES {
            let directory = restarted.join(format!("{}-{number}", NAMES[0]));
            cluster.nodes[1].wait_for("the renames are published", || File::open(&directory).is_ok());
            let data = fs::read(directory.join("file"));
            assert!(data.as_ref().is_ok_and(|data| data == b"data"), "round {round}, directory {number}: {data:?}");
        }
    }
    cluster.published_tree();
}
