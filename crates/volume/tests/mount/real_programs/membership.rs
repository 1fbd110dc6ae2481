//! Nodes leave the chain and return while programs write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;
use rustix::fs::Mode;
use rustix::process::Signal;

use super::postgresql::{DatabaseServer, create_database, data_directory};
use crate::model::{execute_random, wait_for_equal_trees};
use crate::mounted_volume::LOG_BYTES;
use crate::test_node::SetOnDrop;
use crate::volume_cluster::{THREE_NODES, VolumeCluster};

/// Long, so that a node on a busy machine is not considered failed.
const DETECTION_MS: u64 = 5_000;

/// Stops one replica after the other until it leaves the chain. Meanwhile, programs of the other two nodes change the same
/// few names.
pub(super) fn replicas_return_while_nodes_change_the_same_names() {
    const ROUNDS: usize = 6;
    rustix::process::umask(Mode::empty());
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    for round in 0..ROUNDS {
        let victim = 2 - round % 3;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for node in (0..3).filter(|node| *node != victim) {
                let (root, is_over) = (cluster.path(node), &is_over);
                scope.spawn(move || {
                    for seed in 0.. {
                        execute_random(&root, 3_000_000 + 1000 * round as u64 + 100 * node as u64 + seed, 400);
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            let _end = SetOnDrop(&is_over);
            let observer = (victim + 1) % 3;
            wait_for_writes(&cluster, observer);
            cluster.nodes[victim].signal(&[ProcessRole::Offload], Signal::STOP);
            cluster.wait_for_chain(observer, 2);
            wait_for_writes(&cluster, observer);
            cluster.nodes[victim].signal(&[ProcessRole::Offload], Signal::CONT);
            cluster.wait_for_chain(observer, 3);
        });
        cluster.nodes[victim].wait_until_mounted();
        cluster.published_tree();
        wait_for_equal_trees(&cluster);
    }
}

/// Waits until the programs have written again.
fn wait_for_writes(cluster: &VolumeCluster, observer: usize) {
    let logged = || {
        let replicas = cluster.nodes[observer].status().replicas;
        replicas.iter().map(|replica| replica.logs.iter().map(|log| log.logged).sum::<u64>()).max()
    };
    let before = logged();
    cluster.nodes[observer].wait_for("the programs write", || logged() > before);
}

/// The node of the server dies during transactions. A server on another node continues with all committed transactions, and
/// the dead node returns.
pub(super) fn postgresql_continues_when_nodes_die() {
    let mut cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, Durability::Memory, DETECTION_MS);
    let sockets = create_database(&cluster);
    let mut server = DatabaseServer::start(&data_directory(&cluster, 0), sockets.path());
    server.initialize();
    for node in [0, 1, 2, 0] {
        let next = (node + 1) % 3;
        let (clients, expected) = server.start_clients();
        cluster.stop_node(node);
        server.kill();
        drop(server);
        server = DatabaseServer::start(&data_directory(&cluster, next), sockets.path());
        server.check_clients(clients, expected);
        cluster.nodes[node].start_processes();
        cluster.wait_for_chain(next, 3);
        cluster.nodes[node].mount();
        cluster.nodes[node].wait_until_mounted();
    }
    server.stop();
}
