//! A node whose certificate was revoked serves no volume: the other nodes refuse its connections, and it must not take them for
//! dead and continue alone.

use std::sync::Arc;

use farfork_cluster::catalog::CatalogContents;

use super::{OffloadNode, ReplicaError};
use crate::process::offload::volume::ReplicatedVolume;

impl OffloadNode {
    /// Whether the certificate of this node was revoked.
    pub(in crate::process::offload) fn is_revoked(&self) -> bool {
        self.peers.credentials().is_some_and(|credentials| credentials.is_revoked(&credentials.own_peer()))
    }

    /// Installs the roster of the catalog, if it is newer. The other nodes refuse a revoked node, which must not take them for
    /// dead.
    fn install_catalog_roster(&self) -> Result<(), ReplicaError> {
        let roster = self.catalog.read_cluster()?.roster;
        if let (Some(roster), Some(credentials)) = (roster, self.peers.credentials())
            && let Err(error) = credentials.install_roster(&roster.bytes)
        {
            tracing::warn!(%error, "the roster of the catalog is not used");
        }
        Ok(())
    }

    /// Leaves the chains of all volumes, so that the other nodes continue without waiting for this one.
    pub(super) fn leave_chains_if_revoked(&self, contents: &CatalogContents) {
        if !self.is_revoked() {
            return;
        }
        let is_member = |volume: &Arc<ReplicatedVolume>| {
            contents.volumes.get(&volume.key.name).is_some_and(|record| record.chain.contains(&self.name))
        };
        let volumes: Vec<_> = self.lock_volumes().values().filter(|volume| is_member(volume)).cloned().collect();
        for volume in volumes {
            match volume.leave_chain() {
                Ok(true) => tracing::warn!(volume = %volume.key.name, "this node was revoked, and has left the chain"),
                // The last live replica stays.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(volume = %volume.key.name, %error, "this node was revoked, and cannot leave the chain")
                }
            }
        }
    }
}

impl ReplicatedVolume {
    /// Checks that this node may remove another one from the chain. If its certificate was revoked, it leaves the chain itself.
    ///
    /// # Errors
    /// `Revoked`; the catalog cannot be read or changed.
    pub(in crate::process::offload) fn require_trust(&self) -> Result<(), ReplicaError> {
        self.node.install_catalog_roster()?;
        if !self.node.is_revoked() {
            return Ok(());
        }
        self.leave_chain()?;
        Err(ReplicaError::Revoked(self.node.name.clone()))
    }
}
