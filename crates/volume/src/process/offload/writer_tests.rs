//! Clients that request the write permission while the chain or the catalog changes.

use std::thread;

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

/// The catalog gets an earlier record while the nodes run, as after an import of an old file. No term is given twice.
#[test]
fn an_earlier_record_of_the_catalog_is_replaced_by_the_later_one() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let (catalog, (volume, _)) = (cluster.catalog(), cluster.volume_key());
    let record = || -> VolumeRecord { catalog.read().unwrap().volumes[&volume.name].clone() };
    let mut one = TestClient::attach(&cluster.store("n1"));
    let mut other = TestClient::attach(&cluster.store("n3"));
    let earlier = record();
    one.acquire_write();
    one.create_file("one");
    for round in 0..2 {
        let releasing = thread::spawn(move || {
            one.answer_release();
            one
        });
        other.acquire_write();
        one = releasing.join().unwrap();
        other.create_file(&format!("other-{round}"));
        other.commit();
        let later = record();
        let go_back = |record: &mut VolumeRecord| {
            *record = VolumeRecord { revision: record.revision, ..earlier.clone() };
            true
        };
        update_volume(&*catalog, &volume.name, go_back).unwrap();
        wait_for("the later record", || VolumeRecord { revision: later.revision, ..record() } == later);
        let releasing = thread::spawn(move || {
            other.answer_release();
            other
        });
        one.acquire_write();
        other = releasing.join().unwrap();
        assert!(record().term > later.term, "{later:?}, then {:?}", record());
        one.create_file(&format!("one-{round}"));
        one.commit();
    }
    for node in NODES {
        let names = ["one", "one-0", "one-1", "other-0", "other-1"];
        wait_for("all files are published", || cluster.published_names(node) == names);
    }
}
