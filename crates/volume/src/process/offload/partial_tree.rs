//! A shared tree with a part of a change set, as after a crash or a failed attempt to publish. In between, for example, a
//! directory that is renamed has no entry. So the tree is read only after the whole change set is published.

use std::time::Duration;

use super::volume::{PublishWaitError, ReplicaState, ReplicatedVolume};

impl ReplicaState {
    /// Whether the shared tree may have a part of a change set. Each log that has records is open.
    pub(super) fn is_tree_partial(&self) -> bool {
        self.logs.values().any(|log| log.copied.chain.is_recovering())
    }
}

impl ReplicatedVolume {
    /// Waits until the shared tree has no part of a change set, at most for `limit`.
    pub(super) fn wait_whole_tree(&self, limit: Duration) -> Result<(), String> {
        let mut is_full = false;
        let has_ended = self.wait_until(limit, |state| {
            is_full = state.is_tree_partial() && state.is_full();
            is_full || !state.is_tree_partial()
        });
        match (has_ended, is_full) {
            (true, false) => Ok(()),
            (true, true) => Err(format!("{}: {}", self.partial_tree(), PublishWaitError::DiskFull)),
            (false, _) => Err(self.partial_tree()),
        }
    }

    /// The error for a reader of a shared tree that has a part of a change set.
    pub(super) fn partial_tree(&self) -> String {
        let (node, name) = (&self.node.name, &self.key.name);
        format!("node {node} has published only a part of a change set of volume {name}: try again")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use farfork_cluster::catalog::{VolumeRecord, update_volume};
    use farfork_wire::NodeName;

    use super::super::node::tests::SingleReplica;
    use super::super::rejoin::lend_tree;
    use super::super::tests::{TestClient, wait_for};
    use super::super::{client_session, tree_hold};
    use super::*;
    use crate::chain::calls::{HoldTree, LendTree};
    use crate::log::{LOG_BYTES_MIN, LogAppender, LogFile, LogHeader, LogPoint};
    use crate::process::channel::{MessageChannel, listen};
    use crate::process::worker::WORKER;
    use crate::record::{EntryName, FileKind, InodeAttributes, InodeNumber, RecordEffect};

    /// The client of a node that has no replica any more.
    const OTHER_CLIENT: u16 = 0;
    const OWN_CLIENT: u16 = 1;
    const TERM: u32 = 1;

    /// Makes a client the writer, and creates its log. The term of the other client is fenced: this node ends it.
    fn add_writer(replica: &SingleReplica, client: u16) -> LogAppender<LogFile> {
        let change = |record: &mut VolumeRecord| {
            record.clients = vec![NodeName::new("n2").unwrap(), NodeName::new("n1").unwrap()];
            (record.writer, record.term, record.is_writer_fenced) = (Some(client), TERM, client == OTHER_CLIENT);
            true
        };
        update_volume(&*replica.node.catalog, &replica.key.name, change).unwrap();
        let directory = replica.node.store.volume("data");
        directory.ensure_log(&LogHeader { volume: replica.key.id, client, ring_bytes: LOG_BYTES_MIN }).unwrap();
        LogAppender::new(directory.open_log(client).unwrap(), LOG_BYTES_MIN, TERM, LogPoint::START)
    }

    fn create_file(log: &mut LogAppender<LogFile>) {
        let (inode, name) = (InodeNumber(2), EntryName::new(b"file").unwrap());
        let effects = [
            RecordEffect::SetAttributes { inode, attributes: InodeAttributes::of_root(FileKind::Regular, 0o644) },
            RecordEffect::SetEntry { parent: InodeNumber::ROOT, name, inode: Some(inode) },
        ];
        log.append(&effects, &[]).unwrap();
    }

    /// Requires that `read`, which reads the shared tree, waits until the whole change set is published.
    fn require_waiting_reader(volume: &Arc<ReplicatedVolume>, prevented: File, read: impl FnOnce() + Send) {
        wait_for("publishing has failed", || volume.lock().is_tree_partial());
        let has_read = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                read();
                has_read.store(true, Ordering::Relaxed);
            });
            thread::sleep(Duration::from_millis(500));
            assert!(!has_read.load(Ordering::Relaxed), "a part of a change set was read");
            drop(prevented);
        });
        assert!(has_read.load(Ordering::Relaxed));
    }

    fn require_waiting_client(replica: &SingleReplica, volume: &Arc<ReplicatedVolume>, prevented: File) {
        let socket = listen(&replica.node.store.offload_socket()).unwrap();
        require_waiting_reader(volume, prevented, || {
            let client = thread::scope(|scope| {
                let attaching = scope.spawn(|| TestClient::attach(replica.node.store.path()));
                client_session::start(&replica.node, MessageChannel::accept(&socket).unwrap()).unwrap();
                attaching.join().unwrap()
            });
            assert!(client.has_file("file"));
        });
    }

    fn require_waiting_check(replica: &SingleReplica, volume: &Arc<ReplicatedVolume>, prevented: File, end: LogPoint) {
        let (volume_key, epoch) = (replica.key.clone(), volume.lock().record.epoch);
        require_waiting_reader(volume, prevented, || {
            let request = HoldTree { volume: volume_key, epoch, hold: 5, points: Vec::new() };
            assert!(tree_hold::hold(volume, &request).unwrap().contains(&end));
        });
    }

    /// Opens a replica after a restart: the log has an unpublished record. While another process has the lock of the worker,
    /// nothing is published.
    fn restart(replica: &SingleReplica) -> (Arc<ReplicatedVolume>, File, LogPoint) {
        let mut log = add_writer(replica, OTHER_CLIENT);
        create_file(&mut log);
        let prevented = replica.node.store.lock(WORKER).unwrap();
        (replica.open().unwrap(), prevented, log.ring().head())
    }

    #[test]
    fn a_client_reads_the_tree_after_a_restart_when_it_is_whole() {
        let replica = SingleReplica::create();
        let (volume, prevented, _) = restart(&replica);
        require_waiting_client(&replica, &volume, prevented);
    }

    #[test]
    fn a_check_reads_the_tree_after_a_failure_when_it_is_whole() {
        let replica = SingleReplica::create();
        let mut log = add_writer(&replica, OWN_CLIENT);
        let prevented = replica.node.store.lock(WORKER).unwrap();
        let volume = replica.open().unwrap();
        assert!(!volume.lock().is_tree_partial());
        create_file(&mut log);
        volume.lock().log(OWN_CLIENT).copied.request_look();
        volume.notify();
        require_waiting_check(&replica, &volume, prevented, log.ring().head());
    }

    #[test]
    fn a_check_and_another_node_read_the_tree_when_it_is_whole() {
        let replica = SingleReplica::create();
        let (volume, prevented, end) = restart(&replica);
        require_waiting_check(&replica, &volume, prevented, end);

        let replica = SingleReplica::create();
        let (volume, prevented, end) = restart(&replica);
        let (key, epoch) = (replica.key.clone(), volume.lock().record.epoch);
        require_waiting_reader(&volume, prevented, || {
            let request = LendTree { volume: key, epoch, at_least: vec![LogPoint::START; 2] };
            assert_eq!(lend_tree(&volume, &request).unwrap().marks[usize::from(OTHER_CLIENT)].point, end);
        });
    }
}
