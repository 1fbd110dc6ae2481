//! Volumes that are dropped while a client mounts them or a check compares them.

use std::fs::File;
use std::thread;
use std::time::Duration;

use farfork_cluster::catalog::VolumeState;
use farfork_wire::NodeName;
use rustix::fs::{FlockOperation, flock};

use super::node::ReplicaError;
use super::node::tests::{SingleReplica, begin_drop};
use super::tests::{NODES, TestClient, TestCluster, WAIT_LIMIT, wait_for};
use super::writer::register_client;
use crate::chain::calls::HoldTree;
use crate::process::channel::MessageChannel;
use crate::process::client::{ClientRunError, locked_reason};
use crate::process::control::VolumeCheck;
use crate::process::message::{ClientMessage, OffloadMessage};
use crate::process::store::VolumeStore;
use crate::process::{ControlAnswer, ControlRequest};

/// Enough time for `drop` to look for clients, and for a check to begin. On a busy machine, a later look finds the same.
const LOOK_TIME: Duration = Duration::from_secs(1);

const ATTEMPTS: usize = 20;

impl TestCluster {
    fn state(&self) -> Option<VolumeState> {
        self.catalog().read().unwrap().volumes.values().next().map(|record| record.state)
    }

    fn try_drop(&self) -> ControlAnswer {
        self.control("n1", &ControlRequest::Drop(self.volume_key().0.name))
    }
}

fn failure(answer: ControlAnswer) -> String {
    match answer {
        ControlAnswer::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// The client takes its lock after `drop` has looked for clients, and before the catalog says that the volume is dropped.
#[test]
fn a_volume_that_is_mounted_during_its_drop_stays() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    drop(TestClient::attach(&cluster.store("n2")));
    let catalog_lock = File::open(cluster.store("catalog.lock")).unwrap();
    flock(&catalog_lock, FlockOperation::LockExclusive).unwrap();
    thread::scope(|scope| {
        let dropping = scope.spawn(|| cluster.try_drop());
        thread::sleep(LOOK_TIME);
        let client = VolumeStore::new(&cluster.store("n2")).volume("data").lock_client(WAIT_LIMIT).unwrap();
        assert!(client.is_some());
        drop(catalog_lock);
        let reason = failure(dropping.join().unwrap());
        assert!(reason.contains("is mounted on n2"), "{reason}");
        assert_eq!(cluster.state(), Some(VolumeState::Ready));
        // The client attaches, and the replicas are complete.
        drop(TestClient::attach(&cluster.store("n2")));
    });
    assert_eq!(cluster.try_drop(), ControlAnswer::Done);
}

#[test]
fn a_client_is_refused_while_the_volume_is_dropped() {
    let cluster = TestCluster::start();
    cluster.create_volume(&NODES);
    let store = VolumeStore::new(&cluster.store("n2"));
    assert!(matches!(locked_reason(&store, "data"), ClientRunError::IsMounted(_)));
    begin_drop(&*cluster.catalog(), &cluster.volume_key().0.name);
    let reason = locked_reason(&store, "data").to_string();
    assert!(reason.contains("is being dropped"), "{reason}");
    let mut channel = MessageChannel::connect(&store.offload_socket()).unwrap();
    channel.set_receive_timeout(Some(WAIT_LIMIT)).unwrap();
    channel.send(&ClientMessage::Attach { volume: "data".to_owned() }).unwrap();
    match channel.receive().unwrap() {
        OffloadMessage::Refused(reason) => assert!(reason.contains("is being dropped"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// `drop` may have read already which nodes have clients.
#[test]
fn a_new_client_is_not_registered_while_the_volume_is_dropped() {
    let replica = SingleReplica::create();
    let volume = replica.open().unwrap();
    begin_drop(&*replica.node.catalog, &replica.key.name);
    assert!(matches!(register_client(&volume), Err(ReplicaError::BeingDropped(_))));
    assert!(volume.read_record().unwrap().clients.is_empty());
}

/// The check waits, because another one holds a replica. On a busy machine it may begin after the drop, and proves nothing.
#[test]
fn a_check_ends_when_its_volume_is_dropped() {
    let cluster = TestCluster::start();
    let found = (0..ATTEMPTS).map(|_| reason_of_check_during_drop(&cluster));
    let others: Vec<String> = found.take_while(|reason| !reason.contains("the check has ended")).collect();
    let is_late = |reason: &String| reason.contains("does not exist") || reason.contains("is being created or dropped");
    assert!(others.len() < ATTEMPTS && others.iter().all(is_late), "{others:?}");
}

fn reason_of_check_during_drop(cluster: &TestCluster) -> String {
    cluster.create_volume(&NODES);
    let (volume, epoch) = cluster.volume_key();
    let hold = HoldTree { volume: volume.clone(), epoch, hold: 1, points: Vec::new() };
    let head = NodeName::new("n1").unwrap();
    cluster.peers().call::<HoldTree>(&head, &hold, WAIT_LIMIT).unwrap();
    thread::scope(|scope| {
        let check = VolumeCheck { name: volume.name.clone(), should_repair: false, good: None };
        let checking = scope.spawn(|| cluster.control("n2", &ControlRequest::Check(check)));
        thread::sleep(LOOK_TIME);
        assert_eq!(cluster.try_drop(), ControlAnswer::Done);
        wait_for("the check ends", || checking.is_finished());
        failure(checking.join().unwrap())
    })
}

/// Both commands end with success, or the later one finds no volume. Nothing of the volume remains.
#[test]
fn two_drops_at_the_same_time_both_have_a_clear_result() {
    let cluster = TestCluster::start();
    for _ in 0..ATTEMPTS {
        cluster.create_volume(&NODES);
        drop(TestClient::attach(&cluster.store("n2")));
        let (cluster, request) = (&cluster, &ControlRequest::Drop(cluster.volume_key().0.name));
        let answers = thread::scope(|scope| {
            let dropping = NODES.map(|node| scope.spawn(move || cluster.control(node, request)));
            dropping.map(|dropping| dropping.join().unwrap())
        });
        let is_clear = |answer: &ControlAnswer| match answer {
            ControlAnswer::Done => true,
            ControlAnswer::Failed(reason) => reason.contains("volume data does not exist"),
            _ => false,
        };
        assert!(answers.iter().all(is_clear) && answers.contains(&ControlAnswer::Done), "{answers:?}");
        assert_eq!(cluster.state(), None);
        assert!(NODES.iter().all(|node| !cluster.store(node).join("data").exists()));
    }
}
