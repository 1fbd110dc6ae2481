//! Creates, replaces and removes the replicas of a node.

use std::fs;
use std::io;
use std::sync::{Arc, PoisonError};

use farfork_cluster::catalog::{VolumeName, VolumeRecord, VolumeState, update_volume};

use super::{OffloadNode, ReplicaError};
use crate::chain::calls::VolumeKey;
use crate::chain::membership;
use crate::process::replica_loss::ReplicaLoss;
use crate::process::volume_directory::VolumeDirectory;

impl OffloadNode {
    /// Creates a replica and opens it. The record of its volume is already in the catalog, but may not name this node yet.
    ///
    /// A replica that is not in the catalog may be incomplete after a crash, or left over from a drop that did not reach this
    /// node, or the catalog may be the wrong one. Its data is set aside, and not removed. Calls of several nodes may arrive at
    /// the same time: the second one waits, and finds the replica of the first.
    pub(in crate::process::offload) fn create_replica(self: &Arc<Self>, key: &VolumeKey) -> Result<(), ReplicaError> {
        let _change = self.replica_change_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut volumes = self.lock_volumes();
        if volumes.get(&key.name).is_some_and(|volume| volume.key.id == key.id) {
            return Ok(());
        }
        let record = self.record(&key.name)?;
        if record.id != key.id {
            return Err(ReplicaError::UnknownVolume(key.name.clone()));
        }
        if record.state == VolumeState::Dropping {
            return Err(ReplicaError::BeingDropped(key.name.clone()));
        }
        // `open_replica` replaces a lost replica that the catalog names.
        if !self.has_replica(&record) && self.find_loss(&key.name, &record)?.is_some() {
            let directory = self.store.volume(key.name.as_str());
            self.set_aside(&key.name, directory.id().unwrap_or(key.id))?;
            if let Err(source) = VolumeDirectory::create(directory.path(), key.id) {
                let _ = fs::remove_dir_all(directory.path());
                return Err(ReplicaError::Create { node: self.name.clone(), volume: key.name.clone(), source });
            }
        }
        self.open_replica(&mut volumes, &key.name, &record).map(drop)
    }

    /// Replaces a replica that is in the catalog, but missing or incomplete on the disk: the disk is new, or files were
    /// removed. This node leaves the chain, and creates an empty replica, which then copies another one. Returns the changed
    /// record.
    pub(super) fn replace_lost_replica(
        &self,
        name: &VolumeName,
        record: &VolumeRecord,
        loss: ReplicaLoss,
    ) -> Result<VolumeRecord, ReplicaError> {
        let (node, volume) = (self.name.clone(), name.clone());
        let no_replica = || ReplicaError::NoReplica { node: self.name.clone(), volume: name.clone() };
        if !self.has_replica(record) || loss == ReplicaLoss::OtherVolume {
            return Err(no_replica());
        }
        let left = update_volume(&*self.catalog, name, |present| {
            present.id == record.id && membership::remove_member(present, &self.name, present.epoch)
        })?;
        let left = left.filter(|left| left.id == record.id && self.has_replica(left)).ok_or_else(no_replica)?;
        let directory = self.store.volume(name.as_str());
        if left.chain.contains(&self.name) {
            let directory = directory.path().display().to_string();
            return Err(match loss {
                ReplicaLoss::Part(part) => ReplicaError::LastDamaged { node, volume, directory, part },
                _ => ReplicaError::LastLost { node, volume },
            });
        }
        tracing::warn!(volume = %name, ?loss, "the replica of this node is lost: it is copied from another node");
        self.set_aside(name, record.id)?;
        match VolumeDirectory::create(directory.path(), record.id) {
            Ok(_) => Ok(left),
            Err(source) => Err(ReplicaError::Create { node, volume, source }),
        }
    }

    /// Renames the directory of a replica that cannot be used, so that an operator can inspect it.
    fn set_aside(&self, name: &VolumeName, id: u64) -> Result<(), ReplicaError> {
        let directory = self.store.volume(name.as_str());
        match directory.set_aside(id) {
            Ok(Some(aside)) => {
                tracing::warn!(volume = %name, aside = %aside.display(), "an earlier replica was set aside: remove it if it is not needed");
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(source) => {
                let (node, volume) = (self.name.clone(), name.clone());
                let directory = directory.path().display().to_string();
                Err(ReplicaError::SetAside { node, volume, directory, source })
            }
        }
    }

    /// Closes a replica, and removes its directory with `remove` when no thread uses it. Until then, the closed volume stays
    /// in the table: a call that opened it again would report the removed files as lost.
    pub(in crate::process::offload) fn remove_replica(
        &self,
        key: &VolumeKey,
        remove: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let _change = self.replica_change_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let volume = self.lock_volumes().get(&key.name).filter(|volume| volume.key.id == key.id).cloned();
        let is_idle = volume.map_or(Ok(()), |volume| {
            volume.close();
            volume.wait_idle()
        });
        let removed = is_idle.map_err(io::Error::other).and_then(|()| remove());
        self.close_volume(key);
        removed
    }

    /// Checks that the catalog does not give a replica to this node. A late call must not remove the replica that a later
    /// `replace` has given to this node.
    pub(in crate::process::offload) fn check_unused(&self, key: &VolumeKey) -> Result<(), ReplicaError> {
        match self.record(&key.name) {
            Ok(record) if record.id == key.id && self.has_replica(&record) => {
                Err(ReplicaError::InUse { node: self.name.clone(), volume: key.name.clone() })
            }
            Ok(_) | Err(ReplicaError::UnknownVolume(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
