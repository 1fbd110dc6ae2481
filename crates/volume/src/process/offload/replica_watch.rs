//! Watches the files of an open replica. A replica that has lost a part leaves the chain and is closed. Then the node opens
//! the replica again, with an empty directory in place of a damaged one.
//!
//! The thread of `rejoin` looks once a second, because no event reports lost files. It also replaces the shared tree, so it
//! never looks during the replacement.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::node::ReplicaError;
use super::volume::ReplicatedVolume;
use crate::process::replica_loss::{OpenLogFile, OpenReplica, ReplicaLoss};
use crate::publish::SharedTree;

/// The files that are compared with the ones at their paths. They stay open, so that their inode numbers are not reused.
pub(super) struct ReplicaWatch {
    volume: Arc<ReplicatedVolume>,
    /// The directory `tree` of the shared tree; none if it could not be opened.
    tree: Option<File>,
    /// The loss of the last live replica was logged.
    is_reported: bool,
}

impl ReplicaWatch {
    pub(super) fn new(volume: &Arc<ReplicatedVolume>) -> Self {
        let mut watch = Self { volume: Arc::clone(volume), tree: None, is_reported: false };
        watch.reopen_tree();
        watch
    }

    /// Opens the shared tree that has replaced the previous one. If this fails, `find_loss` finds the missing part.
    pub(super) fn reopen_tree(&mut self) {
        self.tree = File::open(SharedTree::tree_path(&self.volume.directory.shared_path())).ok();
    }

    /// Checks whether the replica has lost a part; none if it is complete.
    ///
    /// # Errors
    /// As `VolumeDirectory::find_loss_of_open`.
    pub(super) fn find_loss(&self) -> io::Result<Option<ReplicaLoss>> {
        let volume = &self.volume;
        let state = volume.lock();
        let logs = state.logs.iter().map(|(client, log)| OpenLogFile { client: *client, identity: log.file });
        let open = OpenReplica {
            id: volume.key.id,
            directory: &volume.opened,
            tree: self.tree.as_ref(),
            logs: logs.collect(),
            is_live: state.record.chain.contains(&volume.node.name) && !state.is_catching_up,
        };
        drop(state);
        volume.directory.find_loss_of_open(&open)
    }

    /// Closes the volume if a part of its directory is lost, and returns true. The node leaves the chain, and later opens
    /// the volume with an empty replica. The last live replica stays open: its open files may be the only copy.
    pub(super) fn close_lost_replica(&mut self) -> bool {
        let Ok(Some(loss)) = self.find_loss() else {
            self.is_reported = false;
            return false;
        };
        let volume = &self.volume;
        let name = &volume.key.name;
        // `drop` closes the volume before it removes the directory: this is not a loss.
        if volume.lock().is_closed {
            return true;
        }
        match volume.leave_chain() {
            Ok(true) | Err(ReplicaError::UnknownVolume(_)) => {}
            Ok(false) => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    let directory = volume.directory.path().display();
                    tracing::error!(volume = %name, %directory, ?loss, "the last live replica has lost files: bring them back");
                }
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, volume = %name, ?loss, "this node has lost its replica, and cannot leave the chain");
                return false;
            }
        }
        // Pauses publishing, so that no change set for the lost tree is applied to the next one.
        volume.lock().is_catching_up = true;
        if let Err(reason) = volume.wait_not_publishing() {
            tracing::warn!(reason, "a lost replica is closed later");
            return false;
        }
        tracing::warn!(volume = %name, ?loss, "this node has lost its replica, and has left the chain");
        volume.end_client("this node has lost its replica");
        volume.node.close_volume(&volume.key);
        true
    }
}
