//! Watches the files of an open replica. A replica that has lost a part leaves the chain and is closed. Then the node opens
//! the replica again, with an empty directory in place of a damaged one.
//!
//! The thread of `rejoin` looks once a second, because no event reports lost files. It also replaces the shared tree, so it
//! never looks during the replacement.

use std::io;
use std::sync::Arc;

use super::node::ReplicaError;
use super::volume::{LogProgress, ReplicatedVolume};
use crate::process::open_tree::OpenTree;
use crate::process::replica_loss::{OpenLogFile, OpenReplica, ReplicaLoss};

/// Compares the files of a replica with the ones at their paths.
pub(super) struct ReplicaWatch {
    volume: Arc<ReplicatedVolume>,
    tree: OpenTree,
    /// The problem that was logged last; none if the last look has found none.
    reported: Option<String>,
}

impl ReplicaWatch {
    pub(super) fn new(volume: &Arc<ReplicatedVolume>) -> Self {
        let tree = OpenTree::open(&volume.directory.shared_path());
        Self { volume: Arc::clone(volume), tree, reported: None }
    }

    /// Opens the shared tree that has replaced the previous one.
    pub(super) fn reopen_tree(&mut self) {
        self.tree = OpenTree::open(&self.volume.directory.shared_path());
    }

    /// Checks whether the replica has lost a part; none if it is complete.
    ///
    /// # Errors
    /// As `VolumeDirectory::find_loss_of_open`.
    pub(super) fn find_loss(&self) -> io::Result<Option<ReplicaLoss>> {
        let volume = &self.volume;
        let state = volume.lock();
        let open_log = |(client, log): (&u16, &LogProgress)| OpenLogFile {
            client: *client,
            identity: log.file,
            published: log.copied.chain.published().point,
        };
        let logs = state.logs.iter().map(open_log);
        let clients = 0..state.record.clients.len() as u16;
        let open = OpenReplica {
            id: volume.key.id,
            directory: &volume.opened,
            tree: &self.tree,
            logs: logs.collect(),
            unopened_logs: clients.filter(|client| !state.logs.contains_key(client)).collect(),
            is_live: state.record.chain.contains(&volume.node.name) && !state.is_catching_up,
        };
        drop(state);
        volume.directory.find_loss_of_open(&open)
    }

    /// Closes the volume if a part of its directory is lost, and returns true. The node leaves the chain, and later opens
    /// the volume with an empty replica. The last live replica stays open: its open files may be the only copy.
    pub(super) fn close_lost_replica(&mut self) -> bool {
        let found = self.find_loss();
        // `drop` closes the volume before it removes the directory: this is not a loss.
        if self.volume.is_closed() {
            return true;
        }
        let loss = match found {
            Ok(Some(loss)) => loss,
            Ok(None) => {
                self.reported = None;
                return false;
            }
            Err(error) => {
                if self.is_new(format!("{error}")) {
                    let (name, directory) = (&self.volume.key.name, self.volume.directory.path().display());
                    tracing::error!(%error, volume = %name, %directory, "a replica cannot be examined, and is tried again");
                }
                return false;
            }
        };
        self.leave_with_loss(&loss) && self.close(&loss)
    }

    /// Whether a problem is not the one that was logged last. The watch finds a problem once a second until it ends.
    fn is_new(&mut self, problem: String) -> bool {
        let is_new = self.reported.as_ref() != Some(&problem);
        self.reported = Some(problem);
        is_new
    }

    /// Leaves the chain. Returns false if this node stays in it.
    fn leave_with_loss(&mut self, loss: &ReplicaLoss) -> bool {
        let name = self.volume.key.name.clone();
        match self.volume.leave_chain() {
            Ok(true) | Err(ReplicaError::UnknownVolume(_)) => true,
            Ok(false) => {
                if self.is_new(format!("{loss:?}")) {
                    let directory = self.volume.directory.path().display();
                    tracing::error!(volume = %name, %directory, ?loss, "the last live replica has lost files: bring them back");
                }
                false
            }
            Err(error) => {
                if self.is_new(format!("{loss:?}: {error}")) {
                    tracing::warn!(%error, volume = %name, ?loss, "this node has lost its replica, and cannot leave the chain");
                }
                false
            }
        }
    }

    /// Closes a volume that has left the chain. Returns false if it must be closed later.
    fn close(&self, loss: &ReplicaLoss) -> bool {
        let volume = &self.volume;
        // Pauses publishing, so that no change set for the lost tree is applied to the next one.
        volume.lock().is_catching_up = true;
        if let Err(reason) = volume.wait_not_publishing() {
            tracing::warn!(reason, "a lost replica is closed later");
            return false;
        }
        tracing::warn!(volume = %volume.key.name, ?loss, "this node has lost its replica, and has left the chain");
        volume.end_client("this node has lost its replica");
        volume.node.close_volume(&volume.key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::offload::node::tests::SingleReplica;

    #[test]
    fn a_problem_is_reported_once_until_it_ends() {
        let replica = SingleReplica::create();
        let volume = replica.open().unwrap();
        let mut watch = ReplicaWatch::new(&volume);
        let mut is_new = |problem: &str| watch.is_new(problem.to_owned());
        assert_eq!(["first", "first", "second", "second", "first"].map(&mut is_new), [true, false, true, false, true]);
        assert!(!watch.close_lost_replica(), "nothing is lost");
        assert!(watch.is_new("first".to_owned()));
    }
}
