//! State that all volumes of a node share: the catalog, the connections to other nodes, and the table of its replicas.

mod replica_directory;
mod revocation;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_cluster::catalog::{
    Catalog, CatalogContents, CatalogError, Durability, VolumeName, VolumeNode, VolumeRecord, VolumeState,
    update_volume,
};
use farfork_fabric::RegionRegistry;
use farfork_wire::NodeName;

use super::OffloadOptions;
use super::log_copier;
use super::publishing::{self, WorkerLink};
use super::rejoin;
use super::volume::ReplicatedVolume;
use crate::chain::calls::VolumeKey;
use crate::chain::copier::ReplicaRate;
use crate::chain::{LogCompression, PeerClients, membership};
use crate::process::data_copier::CopyMethod;
use crate::process::message::OffloadMessage;
use crate::process::replica_loss::ReplicaLoss;
use crate::process::store::VolumeStore;
use crate::process::volume_directory::CreateError;
use crate::process::work_priority::WorkPriority;

/// Interval between two attempts to open replicas that are not open.
const OPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait for one reply. It is short because the called process may have restarted at another address, or may
/// itself wait for another node.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// The shared part of an offload process.
pub(super) struct OffloadNode {
    pub(super) name: NodeName,
    pub(super) store: VolumeStore,
    pub(super) catalog: Arc<dyn Catalog>,
    /// Why the last read of `watch_catalog` has failed.
    catalog_failure: Mutex<Option<String>>,
    pub(super) peers: PeerClients,
    pub(super) regions: Arc<RegionRegistry>,
    pub(super) worker: Mutex<WorkerLink>,
    /// A node that does not answer for this time is removed from the chain.
    pub(super) detection_time: Duration,
    pub(super) replica_rate: ReplicaRate,
    pub(super) copy_method: CopyMethod,
    pub(super) compression: LogCompression,
    /// The priority of all threads except those of the RPC server.
    pub(super) priority: WorkPriority,
    /// Locked while a replica is created or removed. May be locked for long, because a removed tree may be large.
    replica_change_lock: Mutex<()>,
    /// The open replicas. Locked while a replica is opened.
    volumes: Mutex<OpenVolumes>,
}

type OpenVolumes = HashMap<VolumeName, Arc<ReplicatedVolume>>;

/// Why a replica cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplicaError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("volume {0} does not exist: list volumes with `farfork volume ls`")]
    UnknownVolume(VolumeName),
    #[error("volume {0} is being dropped: finish this with `farfork volume drop {0}`")]
    BeingDropped(VolumeName),
    #[error(
        "node {node} has no replica of volume {volume}: `farfork volume status {volume}` names the nodes that have one"
    )]
    NoReplica { node: NodeName, volume: VolumeName },
    #[error("node {node} has the replica of volume {volume} that the catalog names: it is not removed")]
    InUse { node: NodeName, volume: VolumeName },
    #[error("node {node} has lost its replica of volume {volume}, which was the last live one: bring its disk back")]
    LastLost { node: NodeName, volume: VolumeName },
    #[error(
        "volume {volume} on node {node}: {directory} has no usable `{part}`, and no other replica is live: bring `{part}` back, or \
         start the node of another replica"
    )]
    LastDamaged { node: NodeName, volume: VolumeName, directory: String, part: String },
    #[error("volume {volume} on node {node}: cannot set aside {directory}, which lacks a part: {source}")]
    SetAside { node: NodeName, volume: VolumeName, directory: String, source: io::Error },
    #[error("volume {volume} on node {node}: {source}")]
    Create { node: NodeName, volume: VolumeName, source: CreateError },
    #[error("volume {volume} on node {node}: {source}")]
    Open { node: NodeName, volume: VolumeName, source: io::Error },
    #[error("node {0} was revoked, and serves no volume: let it join the cluster again (`farfork cluster join`)")]
    Revoked(NodeName),
}

impl OffloadNode {
    pub(super) fn new(
        options: &OffloadOptions,
        store: VolumeStore,
        catalog: Arc<dyn Catalog>,
        peers: PeerClients,
        regions: Arc<RegionRegistry>,
    ) -> io::Result<Self> {
        let replica_rate = ReplicaRate { bytes_min: options.replica_rate_min, detection_time: options.detection_time };
        let worker = Mutex::new(WorkerLink::new(store.clone(), options)?);
        let OffloadOptions { node: name, detection_time, copy_method, compression, priority, .. } = options.clone();
        Ok(Self {
            name,
            store,
            catalog,
            catalog_failure: Mutex::default(),
            peers,
            regions,
            worker,
            detection_time,
            replica_rate,
            copy_method,
            compression,
            priority,
            replica_change_lock: Mutex::default(),
            volumes: Mutex::default(),
        })
    }

    /// Reads the catalog for a command. If it is known that the catalog does not answer, fails at once.
    ///
    /// # Errors
    /// Why the catalog cannot be read.
    pub(super) fn read_catalog(&self) -> Result<Arc<CatalogContents>, String> {
        match self.lock_catalog_failure().clone() {
            Some(failure) => Err(failure),
            None => self.catalog.read().map_err(|error| error.to_string()),
        }
    }

    fn lock_catalog_failure(&self) -> MutexGuard<'_, Option<String>> {
        self.catalog_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the record of a volume from the catalog.
    pub(super) fn record(&self, name: &VolumeName) -> Result<VolumeRecord, ReplicaError> {
        let contents = self.catalog.read()?;
        contents.volume(name)?.cloned().ok_or_else(|| ReplicaError::UnknownVolume(name.clone()))
    }

    /// Longest wait for one reply of a node. A node that does not reply in time may still be alive: `silent_nodes` checks this.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.detection_time.min(ATTEMPT_TIMEOUT)
    }

    /// Returns the replica of a volume on this node, and opens it if necessary. A replica of an earlier volume with the same
    /// name does not count.
    ///
    /// A replica that has lost all or a part of its directory first leaves the chain, and an empty one is created.
    pub(super) fn volume(self: &Arc<Self>, name: &VolumeName) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        let contents = self.catalog.read()?;
        let id = contents.volume(name)?.ok_or_else(|| ReplicaError::UnknownVolume(name.clone()))?.id;
        let mut volumes = self.lock_volumes();
        if let Some(volume) = self.find_open(&volumes, name, id)? {
            return Ok(volume);
        }
        // Read again: `remove_replica` may have removed the volume from the table since.
        let record = self.record(name)?;
        self.open_replica(&mut volumes, name, &record)
    }

    /// Returns the open replica of a volume, if there is one.
    ///
    /// # Errors
    /// `NoReplica` if it is being removed.
    fn find_open(
        &self,
        volumes: &OpenVolumes,
        name: &VolumeName,
        id: u64,
    ) -> Result<Option<Arc<ReplicatedVolume>>, ReplicaError> {
        match volumes.get(name).filter(|volume| volume.key.id == id) {
            Some(volume) if volume.is_closed() => {
                Err(ReplicaError::NoReplica { node: self.name.clone(), volume: name.clone() })
            }
            volume => Ok(volume.cloned()),
        }
    }

    /// Opens a replica that is not open.
    fn open_replica(
        self: &Arc<Self>,
        volumes: &mut OpenVolumes,
        name: &VolumeName,
        record: &VolumeRecord,
    ) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        if record.state == VolumeState::Dropping {
            return Err(ReplicaError::BeingDropped(name.clone()));
        }
        let failed = |source| self.open_error(name, source);
        let record = match self.find_loss(name, record)? {
            None => record.clone(),
            Some(loss) => self.replace_lost_replica(name, record, loss)?,
        };
        let volume = Arc::new(ReplicatedVolume::new(Arc::clone(self), name.clone(), record).map_err(failed)?);
        volume.directory.finish_tree_exchange().map_err(failed)?;
        if volume.directory.has_restarted().map_err(failed)? {
            volume.leave_after_restart()?;
        }
        volume.directory.mark_start().map_err(failed)?;
        for client in volume.directory.log_clients().map_err(failed)? {
            log_copier::ensure_open(&volume, client).map_err(failed)?;
        }
        publishing::start(&volume).map_err(failed)?;
        rejoin::start(&volume).map_err(failed)?;
        if let Some(previous) = volumes.insert(name.clone(), Arc::clone(&volume)) {
            previous.close();
        }
        Ok(volume)
    }

    fn lock_volumes(&self) -> MutexGuard<'_, OpenVolumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the replica of this node, which is not open, has lost a part.
    fn find_loss(&self, name: &VolumeName, record: &VolumeRecord) -> Result<Option<ReplicaLoss>, ReplicaError> {
        let is_live = record.chain.contains(&self.name);
        let found = self.store.volume(name.as_str()).find_loss(record.id, is_live);
        found.map_err(|source| self.open_error(name, source))
    }

    fn open_error(&self, name: &VolumeName, source: io::Error) -> ReplicaError {
        ReplicaError::Open { node: self.name.clone(), volume: name.clone(), source }
    }

    /// The replica with this id, if it is open. Does not read the catalog.
    pub(super) fn open_volume_of(&self, key: &VolumeKey) -> Result<Option<Arc<ReplicatedVolume>>, ReplicaError> {
        self.find_open(&self.lock_volumes(), &key.name, key.id)
    }

    /// Whether the replica with this id is closed, and its directory is being removed. Does not wait while a replica is opened.
    pub(super) fn is_being_removed(&self, key: &VolumeKey) -> bool {
        let volumes = self.volumes.try_lock();
        volumes.is_ok_and(|volumes| self.find_open(&volumes, &key.name, key.id).is_err())
    }

    /// As `volume`, for a request of another node. The id in the request must match. Reads the catalog only if the replica is
    /// not open.
    pub(super) fn volume_of(self: &Arc<Self>, key: &VolumeKey) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        if let Some(volume) = self.open_volume_of(key)? {
            return Ok(volume);
        }
        let volume = self.volume(&key.name)?;
        let is_same = volume.key.id == key.id;
        if is_same { Ok(volume) } else { Err(ReplicaError::UnknownVolume(key.name.clone())) }
    }

    /// Ends the threads of a replica.
    pub(super) fn close_volume(&self, key: &VolumeKey) {
        let mut volumes = self.lock_volumes();
        if volumes.get(&key.name).is_some_and(|volume| volume.key.id == key.id)
            && let Some(volume) = volumes.remove(&key.name)
        {
            volume.close();
        }
    }

    /// Opens the replicas of this node that are not open, so that logs are received and published without a request for the
    /// volume. `failures` has the last failure of each volume, so that it is logged once.
    pub(super) fn open_replicas(
        self: &Arc<Self>,
        failures: &mut HashMap<VolumeName, String>,
    ) -> Result<(), CatalogError> {
        for (name, record) in &self.catalog.read()?.volumes {
            if self.has_replica(record) && !self.is_open(name) {
                self.open_again(name, failures);
            }
        }
        Ok(())
    }

    /// Opens replicas that could not be opened, or were closed because files are lost, until the process ends.
    pub(super) fn keep_replicas_open(self: &Arc<Self>, mut failures: HashMap<VolumeName, String>) -> io::Result<()> {
        let node = Arc::clone(self);
        thread::Builder::new().name("replicas".to_owned()).spawn(move || {
            loop {
                thread::sleep(OPEN_INTERVAL);
                // The thread of `watch_catalog` reports an error of the catalog.
                let _ = node.open_replicas(&mut failures);
            }
        })?;
        Ok(())
    }

    /// Whether this node should have a replica of a volume.
    fn has_replica(&self, record: &VolumeRecord) -> bool {
        record.state == VolumeState::Ready && record.replicas.contains(&self.name)
    }

    fn is_open(&self, name: &VolumeName) -> bool {
        self.lock_volumes().contains_key(name)
    }

    /// Opens a replica. Logs a failure unless it is the last one of the volume in `failures`.
    fn open_again(self: &Arc<Self>, name: &VolumeName, failures: &mut HashMap<VolumeName, String>) {
        let error = match self.volume(name) {
            // The volume was dropped after the caller has read the catalog.
            Ok(_) | Err(ReplicaError::BeingDropped(_) | ReplicaError::UnknownVolume(_)) => {
                failures.remove(name);
                return;
            }
            Err(error) => error,
        };
        let reason = error.to_string();
        if failures.get(name) != Some(&reason) {
            tracing::error!(reason, %name, "a replica cannot be opened, and is tried again");
            failures.insert(name.clone(), reason);
        }
    }

    /// Starts a thread that passes changes of the catalog to the volumes.
    ///
    /// `address` is the address of this node. The thread registers it again if the catalog has another one, as after the
    /// restore of an older catalog.
    pub(super) fn watch_catalog(self: &Arc<Self>, address: VolumeNode) -> io::Result<()> {
        let node = Arc::clone(self);
        thread::Builder::new().name("catalog".to_owned()).spawn(move || {
            loop {
                let read = node.catalog.read();
                let failure = read.as_ref().err().map(ToString::to_string);
                let earlier = std::mem::replace(&mut *node.lock_catalog_failure(), failure);
                match read {
                    Ok(contents) => {
                        node.apply_catalog(&contents);
                        node.leave_chains_if_revoked(&contents);
                        node.register_again(&contents, &address);
                        if earlier.is_some() {
                            tracing::info!("the catalog can be read again, and waiting calls continue");
                        }
                    }
                    Err(error) if earlier.is_none() => {
                        tracing::warn!(%error, "calls that open files or need another writer wait for the catalog");
                    }
                    Err(_) => {}
                }
                node.catalog.wait_for_change();
            }
        })?;
        Ok(())
    }

    fn register_again(&self, contents: &CatalogContents, address: &VolumeNode) {
        // A catalog without nodes is a missing file, which must not be created here.
        if contents.nodes.is_empty() || contents.nodes.get(&self.name) == Some(address) {
            return;
        }
        if let Err(error) = self.catalog.register_node(&self.name, address) {
            tracing::warn!(%error, "this node cannot write its address into the catalog: it is tried again");
        }
    }

    fn apply_catalog(&self, contents: &CatalogContents) {
        let volumes: Vec<_> = self.lock_volumes().values().cloned().collect();
        for volume in volumes {
            let Some(record) = contents.volumes.get(&volume.key.name).filter(|record| record.id == volume.key.id)
            else {
                continue;
            };
            // An error means that the next change of the catalog, or the next call, tries it again.
            let _ = volume.apply_record(record.clone());
        }
    }
}

impl ReplicatedVolume {
    /// Applies a record of the catalog, unless this node has the same or a later one. Ends the client of this node if it is
    /// fenced, or if the node has left the chain.
    pub(super) fn update_record(&self, record: &VolumeRecord) {
        let mut state = self.lock();
        let is_newer = record.revision > state.record.revision && !state.record.is_later_than(record);
        // Revisions begin again in a store that was restored.
        if !is_newer && !record.is_later_than(&state.record) {
            return;
        }
        state.is_catching_up |= membership::outdates_tree(&state.record, record, &self.node.name);
        state.record = Arc::new(record.clone());
        let must_end = state.client.as_ref().is_some_and(|client| {
            let is_fenced = record.writer == Some(client.number) && record.is_writer_fenced;
            is_fenced || !record.chain.contains(&self.node.name)
        });
        drop(state);
        self.notify();
        if must_end {
            self.end_client("this node has left the chain");
        }
    }

    /// Ends the client of this node. Its supervisor starts the next one.
    pub(super) fn end_client(&self, reason: &str) {
        if let Some(client) = self.lock().client.take() {
            client.sender.send(&OffloadMessage::Refused(format!("volume {}: {reason}", self.key.name)));
            client.sender.close();
        }
        self.notify();
    }

    /// Removes this node from the chain, so that it copies the tree of another replica. Returns false for the last live
    /// replica, which stays.
    pub(super) fn leave_chain(&self) -> Result<bool, ReplicaError> {
        let own_name = &self.node.name;
        let record = self.update_catalog(|record| {
            let epoch = record.epoch;
            membership::remove_member(record, own_name, epoch)
        })?;
        Ok(!record.chain.contains(own_name))
    }

    /// Leaves the chain after a reboot with `--durability memory`: a log may lack acknowledged records, which the other
    /// replicas have. The last live replica stays, because there is no other replica to copy.
    fn leave_after_restart(&self) -> Result<(), ReplicaError> {
        if self.read_record()?.durability == Durability::Memory {
            self.leave_chain()?;
        }
        Ok(())
    }

    /// Reads the record of the volume from the catalog, and applies it.
    pub(super) fn read_record(&self) -> Result<VolumeRecord, ReplicaError> {
        let record = self.node.record(&self.key.name)?;
        if record.id != self.key.id {
            return Err(ReplicaError::UnknownVolume(self.key.name.clone()));
        }
        self.apply_record(record)
    }

    /// Applies a record of the catalog. If this node has a later one, the catalog was restored to an earlier state: then the
    /// later one is written into the catalog. A term that was given before must not be given again, because the logs have its
    /// records.
    fn apply_record(&self, record: VolumeRecord) -> Result<VolumeRecord, ReplicaError> {
        let known = Arc::clone(&self.lock().record);
        if !known.is_later_than(&record) {
            self.update_record(&record);
            return Ok(record);
        }
        // Not if another thread has just changed the record.
        let restored = self.update_catalog(|record| {
            let is_earlier = known.is_later_than(record);
            if is_earlier {
                let (epoch, term) = (record.epoch, record.term);
                tracing::warn!(volume = %self.key.name, epoch, term, "the catalog has an earlier record than this node, which writes its own");
                *record = VolumeRecord { revision: record.revision, ..VolumeRecord::clone(&known) };
            }
            is_earlier
        })?;
        Ok(restored)
    }

    /// Changes the record in the catalog, unless `change` returns false. Returns the resulting record.
    pub(super) fn update_catalog(
        &self,
        mut change: impl FnMut(&mut VolumeRecord) -> bool,
    ) -> Result<VolumeRecord, ReplicaError> {
        let id = self.key.id;
        let record = update_volume(&*self.node.catalog, &self.key.name, |record| record.id == id && change(record))?;
        let record = record.filter(|record| record.id == id);
        let record = record.ok_or_else(|| ReplicaError::UnknownVolume(self.key.name.clone()))?;
        self.update_record(&record);
        Ok(record)
    }
}

#[cfg(test)]
pub(super) mod tests;
