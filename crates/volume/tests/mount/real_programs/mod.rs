//! Programs that others wrote, on volumes with three replicas: they write on one node, and other nodes read what they
//! wrote. `scripts/setup.sh` installs them.

mod archives;
mod fio;
mod postgresql;
mod rocksdb;
mod rsync;

use crate::programs::run;
use crate::volume_cluster::{THREE_NODES, VolumeCluster};

/// The tests of this folder.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("postgresql_keeps_committed_transactions", postgresql::keeps_committed_transactions),
    ("rsync_transfers_nothing_again", rsync::transfers_nothing_again),
    ("fio_verifies_what_it_wrote_on_each_node", fio::verifies_what_it_wrote_on_each_node),
    ("rocksdb_is_consistent_after_a_kill", rocksdb::is_consistent_after_a_kill),
    ("an_archive_is_extracted_on_one_node_and_compared_on_others", archives::small_archive_is_compared_on_each_node),
];

/// Tests of this folder that take minutes.
pub(crate) const LONG_TESTS: &[(&str, fn())] = &[
    ("postgresql_keeps_committed_transactions_in_many_kills", postgresql::keeps_committed_transactions_in_many_kills),
    ("fio_verifies_large_files_on_each_node", fio::verifies_large_files_on_each_node),
    ("rocksdb_is_consistent_after_many_kills", rocksdb::is_consistent_after_many_kills),
    ("an_archive_of_a_hundred_thousand_files", archives::large_archive_is_compared_on_each_node),
];

/// No failure of a node is to be detected.
const NO_DETECTION_MS: u64 = 60_000;

/// A volume with three replicas, mounted on each node.
fn three_replicas() -> VolumeCluster {
    VolumeCluster::mounted(
        &THREE_NODES,
        crate::mounted_volume::LOG_BYTES,
        farfork_cluster::catalog::Durability::Memory,
        NO_DETECTION_MS,
    )
}
