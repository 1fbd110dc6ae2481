//! The file system of a node's run directory is full. Running children continue and their ends are reported. New
//! children are refused with the reason. When there is free space again, forks succeed.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::harness::seed::EXIT_VERIFIED;
use crate::harness::{Cluster, Disk, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[Test::alone("while_children_fetch_pages", under_children)];

/// Memory of the parent in MiB. `DISK_MIB` is the size of the disk with the run directories of two nodes.
const PARENT_MIB: &str = "16";
const DISK_MIB: u64 = 64;

/// Number of bytes to free, so that a starting daemon can write its state file on the full disk.
const STATE_BYTES: u64 = 16 << 10;

/// Number of containers that each node keeps ready.
const POOL_SIZE: usize = 8;

/// Longest wait until the pool is full again.
const POOL_LIMIT: Duration = Duration::from_secs(60);

/// Minimum time for which children touch memory, in milliseconds.
const PAGING_MS: &str = "700";

fn under_children() {
    let disk = Disk::of_mib(DISK_MIB);
    let cluster = Cluster::start_on(&disk, 2, &["--pool", &POOL_SIZE.to_string()]);
    let mut parent = Parent::start(Program::Situation("paging"), &[PARENT_MIB]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = ["--to", cluster.name(1)];
    let payloads = [61, 62, 63].map(|number| format!("{number} {PAGING_MS} held"));
    let children = seed.fork_detached(&payloads, &to);
    // A container that could not be built would free the space of its files, and a fork could use that.
    wait_for_full_pool(&cluster);
    disk.fill();

    let directory = cluster.run_dir(1).join("children");
    let told = ["no space left", &directory.to_string_lossy().to_lowercase()];
    cluster.first().run_failing(&["fork", seed.id(), "--detach", to[0], to[1]]).require_mentions(&told);
    // The children are held until there is free space again. They must survive the death of the daemon.
    thread::sleep(Duration::from_millis(300));
    cluster.kill_daemon(1);
    disk.free(STATE_BYTES);
    cluster.restart_daemon(1);
    cluster.wait_until_all_are_alive();
    seed.release_children(&children);
    for child in &children {
        cluster.first().run(&["wait", &child.id]);
        let said = cluster.node(1).json(&["inspect", &child.id]);
        assert_eq!(said["exit_code"], EXIT_VERIFIED, "{said}");
    }

    disk.free_all();
    let later = seed.fork_detached(&["64 10".to_owned()], &to);
    seed.check_answers(&parent, &later, &[64]);
    parent.require_unharmed();
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Waits until the second node has built containers for those that children have taken.
fn wait_for_full_pool(cluster: &Cluster) {
    let directory = cluster.run_dir(1).join("containers");
    wait::wait_until("a full pool of containers", POOL_LIMIT, || {
        let records = fs::read_dir(&directory).expect("the node has started").flatten();
        let ready = records.filter(|record| record.path().extension().is_some_and(|kind| kind == "waiting"));
        (ready.count() == POOL_SIZE).then_some(())
    });
}
