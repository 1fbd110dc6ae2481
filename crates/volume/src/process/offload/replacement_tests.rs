//! Replicas that are given to another node of three.

use std::fs;
use std::thread;

use farfork_cluster::catalog::{VolumeName, VolumeRecord, VolumeState, update_volume};
use farfork_wire::NodeName;

use super::tests::{NODES, TestCluster, wait_for};
use crate::process::{ControlAnswer, ControlRequest, ReplicaReplacement};

impl TestCluster {
    /// Gives the place of the replica of n2 to n3, which catches up.
    fn replace(&self, node: &str) -> ControlAnswer {
        let [old, new] = ["n2", "n3"].map(|name| NodeName::new(name).unwrap());
        let name = VolumeName::new("data").unwrap();
        self.control(node, &ControlRequest::Replace(ReplicaReplacement { name, old, new }))
    }

    fn wait_until_live(&self, node: &str) {
        let (volume, _) = self.volume_key();
        let node = NodeName::new(node).unwrap();
        wait_for("the replica is live", || self.catalog().read().unwrap().volumes[&volume.name].chain.contains(&node));
    }

    fn drop_volume(&self) {
        let name = VolumeName::new("data").unwrap();
        assert_eq!(self.control("n1", &ControlRequest::Drop(name)), ControlAnswer::Done);
        for node in NODES {
            assert!(!self.store(node).join("data").exists(), "{node}");
        }
    }
}

#[test]
fn two_nodes_may_replace_a_replica_at_the_same_time() {
    let cluster = TestCluster::start();
    for round in 0..10 {
        cluster.create_volume(&["n1", "n2"]);
        let answers = thread::scope(|scope| {
            ["n1", "n2"].map(|node| scope.spawn(|| cluster.replace(node))).map(|command| command.join().unwrap())
        });
        // A command may begin after the other one has ended.
        let is_late = |answer: &ControlAnswer| match answer {
            ControlAnswer::Failed(reason) => reason.contains("node n2 has no replica of it"),
            _ => false,
        };
        // The other command may remove the old replica at the same time.
        let is_done =
            |answer: &ControlAnswer| matches!(answer, ControlAnswer::Done | ControlAnswer::DoneExceptFiles(_));
        let is_expected = |answer: &ControlAnswer| is_done(answer) || is_late(answer);
        assert!(answers.iter().all(is_expected) && !answers.iter().all(is_late), "round {round}: {answers:?}");
        cluster.wait_until_live("n3");
        cluster.drop_volume();
    }
}

#[test]
fn a_replica_that_a_crash_has_left_incomplete_is_replaced() {
    let cluster = TestCluster::start();
    let path = cluster.store("n3").join("data");
    for has_id in [false, true] {
        cluster.create_volume(&["n1", "n2"]);
        fs::create_dir_all(path.join("logs")).unwrap();
        if has_id {
            fs::write(path.join("volume"), format!("{}\n", cluster.volume_key().0.id)).unwrap();
        }
        assert_eq!(cluster.replace("n1"), ControlAnswer::Done, "{has_id}");
        cluster.wait_until_live("n3");
        cluster.drop_volume();
    }
}

#[test]
fn a_refused_replacement_leaves_no_replica() {
    for state in [VolumeState::Creating, VolumeState::Dropping] {
        let cluster = TestCluster::start();
        cluster.create_volume(&["n1", "n2"]);
        let set_state = |record: &mut VolumeRecord| {
            record.state = state;
            true
        };
        update_volume(&*cluster.catalog(), &cluster.volume_key().0.name, set_state).unwrap();
        assert!(matches!(cluster.replace("n1"), ControlAnswer::Failed(_)), "{state:?}");
        assert!(!cluster.store("n3").join("data").exists(), "{state:?}");
        cluster.drop_volume();
    }
}
