//! Three replicas whose links are slow: a log that needs longer than any time limit is sent, and no replica leaves the chain.

use std::fs::{self, File};
use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use super::test_network::TestNetwork;
use super::test_node::WAIT_LIMIT;
use super::volume_cluster::{THREE_NODES, VolumeCluster};

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[(
    "a_backlog_longer_than_an_attempt_is_sent_over_slow_links",
    a_backlog_longer_than_an_attempt_is_sent_over_slow_links,
)];

/// Longer than an attempt, so that a pause of a process on a busy machine does not count as silence.
const DETECTION_MS: u64 = 2_500;
/// About 1 MB in a second.
const LINK_RATE: &str = "8mbit";
/// Takes 3 s. An attempt ends after 2 s.
const BACKLOG_BYTES: usize = 3 << 20;

fn a_backlog_longer_than_an_attempt_is_sent_over_slow_links() {
    let network = TestNetwork::start(THREE_NODES.len() as u8);
    let cluster = VolumeCluster::networked(&network, DETECTION_MS);
    (0..THREE_NODES.len()).for_each(|node| network.limit_rate(node, LINK_RATE));
    let epoch = cluster.nodes[0].status().record.epoch;
    let (data, path) = (random_bytes(BACKLOG_BYTES), cluster.path(0).join("file"));
    let (synced, is_synced) = mpsc::channel();
    // In a thread of its own, because fsync(2) cannot be interrupted.
    let written = data.clone();
    thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        file.write_all(&written).unwrap();
        synced.send(file.sync_all()).unwrap();
    });
    match is_synced.recv_timeout(WAIT_LIMIT) {
        Ok(result) => result.unwrap(),
        Err(RecvTimeoutError::Timeout) => panic!("fsync(2) waits for more than {WAIT_LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => panic!("the file cannot be written"),
    }
    let record = cluster.nodes[0].status().record;
    assert_eq!((record.epoch, record.chain.len()), (epoch, THREE_NODES.len()), "no replica has left the chain");
    for node in &cluster.nodes {
        let published = node.volume_path().join("shared/tree/file");
        node.wait_for("the file is published", || fs::read(&published).is_ok_and(|found| found == data));
    }
}

/// Data that no compression shrinks.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(70);
    (0..count).map(|_| random.u8(..)).collect()
}
