//! Clients that request the write permission while the chain changes.

use farfork_cluster::catalog::{VolumeRecord, update_volume};
use farfork_wire::NodeName;

use super::tests::{NODES, TestClient, TestCluster, wait_for};
use crate::chain::membership;

/// A node leaves the chain while its client waits for the permission. If the client became the writer, other nodes would wait
/// for this node, which first has to copy the volume.
#[test]
fn a_client_whose_node_has_left_the_chain_does_not_become_the_writer() {
    const ROUNDS: u32 = 5;
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let (volume, _) = cluster.volume_key();
    let (catalog, node) = (cluster.catalog(), NodeName::new("n3").unwrap());
    let record = || -> VolumeRecord { catalog.read().unwrap().volumes[&volume.name].clone() };
    for round in 0..ROUNDS {
        let mut client = TestClient::attach(&cluster.store("n3"));
        let remove = |record: &mut VolumeRecord| membership::remove_member(record, &node, record.epoch);
        update_volume(&*catalog, &volume.name, remove).unwrap();
        // An error means that the client was ended before.
        let _ = client.request_write();
        client.wait_until_refused();
        wait_for("the node has returned", || record().chain.contains(&node));
        let found = record();
        assert_eq!((found.writer, found.term), (None, 0), "round {round}");
    }
}
