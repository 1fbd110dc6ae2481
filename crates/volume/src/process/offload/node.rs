//! State that all volumes of a node share: the catalog, the connections to other nodes, and the table of its replicas.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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
use crate::chain::calls::{HasClient, VolumeKey};
use crate::chain::{LogCompression, PeerClients, PeerError, membership};
use crate::process::data_copier::CopyMethod;
use crate::process::message::OffloadMessage;
use crate::process::store::VolumeStore;
use crate::process::volume_directory::{CreateError, ReplicaLoss, VolumeDirectory};

/// How often a replica that is not open is tried again.
const OPEN_INTERVAL: Duration = Duration::from_secs(1);
/// How often the catalog is read: another node may have changed it.
const CATALOG_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait for one answer. The process of the node may have been started again at another address, or wait itself.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// The shared part of an offload process.
pub(super) struct OffloadNode {
    pub(super) name: NodeName,
    pub(super) store: VolumeStore,
    pub(super) catalog: Arc<dyn Catalog>,
    pub(super) peers: PeerClients,
    pub(super) regions: Arc<RegionRegistry>,
    pub(super) worker: Mutex<WorkerLink>,
    /// A node that does not answer for so long leaves the chain.
    pub(super) detection_time: Duration,
    pub(super) copy_method: CopyMethod,
    pub(super) compression: LogCompression,
    volumes: Mutex<HashMap<VolumeName, Arc<ReplicatedVolume>>>,
}

/// Why a replica cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplicaError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("volume {0} does not exist: list volumes with `farfork volume ls`")]
    UnknownVolume(VolumeName),
    #[error("node {node} has no replica of volume {volume}")]
    NoReplica { node: NodeName, volume: VolumeName },
    #[error("node {node} has lost its replica of volume {volume}, which was the last live one: bring its disk back")]
    LastLost { node: NodeName, volume: VolumeName },
    #[error(
        "volume {volume} on node {node}: {directory} has no `{part}`, and no other replica is live: bring `{part}` back, or \
         start the node of another replica"
    )]
    LastDamaged { node: NodeName, volume: VolumeName, directory: String, part: &'static str },
    #[error("volume {volume} on node {node}: cannot set aside {directory}, which lacks a part: {source}")]
    SetAside { node: NodeName, volume: VolumeName, directory: String, source: io::Error },
    #[error("volume {volume} on node {node}: {source}")]
    Create { node: NodeName, volume: VolumeName, source: CreateError },
    #[error("volume {volume} on node {node}: {source}")]
    Open { node: NodeName, volume: VolumeName, source: io::Error },
}

impl OffloadNode {
    pub(super) fn new(
        options: &OffloadOptions,
        store: VolumeStore,
        catalog: Arc<dyn Catalog>,
        peers: PeerClients,
        regions: Arc<RegionRegistry>,
    ) -> io::Result<Self> {
        let OffloadOptions { node: name, detection_time, copy_method, compression, mode, .. } = options.clone();
        let worker = Mutex::new(WorkerLink::new(store.clone(), mode, copy_method)?);
        Ok(Self {
            name,
            store,
            catalog,
            peers,
            regions,
            worker,
            detection_time,
            copy_method,
            compression,
            volumes: Mutex::default(),
        })
    }

    /// The record of a volume.
    pub(super) fn record(&self, name: &VolumeName) -> Result<VolumeRecord, ReplicaError> {
        let contents = self.catalog.read()?;
        contents.volumes.get(name).cloned().ok_or_else(|| ReplicaError::UnknownVolume(name.clone()))
    }

    /// Longest wait for one answer of a node. It may be alive all the same, which `is_alive` finds out.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.detection_time.min(ATTEMPT_TIMEOUT)
    }

    /// Whether the offload process of a node answers within the time of failure detection. It counts as alive while this node
    /// cannot read the catalog, which has the address.
    pub(super) fn is_alive(&self, volume: &VolumeKey, node: &NodeName) -> bool {
        let answer = self.peers.call::<HasClient>(node, &HasClient(volume.clone()), self.detection_time);
        matches!(answer, Ok(_) | Err(PeerError::Catalog(_)))
    }

    /// The replica of a volume on this node, opened if need be. A replica of an earlier volume of that name is none.
    ///
    /// A replica that has lost all or a part of its directory leaves the chain first, and a new one is made.
    pub(super) fn volume(self: &Arc<Self>, name: &VolumeName) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        let contents = self.catalog.read()?;
        let record = contents.volumes.get(name).ok_or_else(|| ReplicaError::UnknownVolume(name.clone()))?;
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(volume) = volumes.get(name).filter(|volume| volume.key.id == record.id) {
            return Ok(Arc::clone(volume));
        }
        let failed = |source| ReplicaError::Open { node: self.name.clone(), volume: name.clone(), source };
        let record = match self.store.volume(name.as_str()).find_loss(record.id).map_err(failed)? {
            None => record.clone(),
            Some(loss) => self.replace_lost_replica(name, record, loss)?,
        };
        let volume = Arc::new(ReplicatedVolume::new(Arc::clone(self), name.clone(), record));
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

    /// The replica is not on the disk, or not all of it, though the catalog has this node: the disk is new, or files were removed.
    /// An empty replica takes its place, outside of the chain, and copies another one. The record of now.
    fn replace_lost_replica(
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
            return Err(match loss {
                ReplicaLoss::Part(part) => {
                    let directory = directory.path().display().to_string();
                    ReplicaError::LastDamaged { node, volume, directory, part }
                }
                ReplicaLoss::All | ReplicaLoss::OtherVolume => ReplicaError::LastLost { node, volume },
            });
        }
        tracing::warn!(volume = %name, ?loss, "the replica of this node is lost: it is copied from another node");
        if matches!(loss, ReplicaLoss::Part(_)) {
            self.set_aside(name, record.id)?;
        }
        match VolumeDirectory::create(directory.path(), record.id) {
            Ok(_) => Ok(left),
            Err(source) => Err(ReplicaError::Create { node, volume, source }),
        }
    }

    /// What cannot be used is kept under another name, for an operator to look at.
    pub(super) fn set_aside(&self, name: &VolumeName, id: u64) -> Result<(), ReplicaError> {
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

    /// As `volume`, for a request of another node that names the id.
    pub(super) fn volume_of(self: &Arc<Self>, key: &VolumeKey) -> Result<Arc<ReplicatedVolume>, ReplicaError> {
        let volume = self.volume(&key.name)?;
        let is_same = volume.key.id == key.id;
        if is_same { Ok(volume) } else { Err(ReplicaError::UnknownVolume(key.name.clone())) }
    }

    /// Ends the threads of a replica, so that it can be removed.
    pub(super) fn close_volume(&self, key: &VolumeKey) {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        if volumes.get(&key.name).is_some_and(|volume| volume.key.id == key.id)
            && let Some(volume) = volumes.remove(&key.name)
        {
            volume.close();
        }
    }

    /// Opens the replicas of this node that are not open, so that logs are received and published without a request for the volume.
    /// `failures` has the last failure of each volume, so that it is logged once.
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
                // The thread that passes on changes of the catalog reports an error.
                let _ = node.open_replicas(&mut failures);
            }
        })?;
        Ok(())
    }

    /// Whether this node has to have a replica of a volume.
    fn has_replica(&self, record: &VolumeRecord) -> bool {
        record.state == VolumeState::Ready && record.replicas.contains(&self.name)
    }

    fn is_open(&self, name: &VolumeName) -> bool {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Opens a replica. Logs a failure unless it is the last one of the volume in `failures`.
    fn open_again(self: &Arc<Self>, name: &VolumeName, failures: &mut HashMap<VolumeName, String>) {
        let Err(error) = self.volume(name) else {
            failures.remove(name);
            return;
        };
        let reason = error.to_string();
        if failures.get(name) != Some(&reason) {
            tracing::error!(reason, %name, "a replica cannot be opened, and is tried again");
            failures.insert(name.clone(), reason);
        }
    }

    /// Passes changes of the catalog to the volumes, until the process ends.
    ///
    /// `address` is the one of this node. An older catalog may have been restored, which has another one.
    pub(super) fn watch_catalog(self: &Arc<Self>, address: VolumeNode) -> io::Result<()> {
        let node = Arc::clone(self);
        thread::Builder::new().name("catalog".to_owned()).spawn(move || {
            loop {
                match node.catalog.read() {
                    Ok(contents) => {
                        node.apply_catalog(&contents);
                        node.register_again(&contents, &address);
                    }
                    Err(error) => tracing::warn!(%error, "the catalog is read again"),
                }
                thread::sleep(CATALOG_INTERVAL);
            }
        })?;
        Ok(())
    }

    fn register_again(&self, contents: &CatalogContents, address: &VolumeNode) {
        // A catalog without nodes is a file that is missing: it must not be created here.
        if contents.nodes.is_empty() || contents.nodes.get(&self.name) == Some(address) {
            return;
        }
        if let Err(error) = self.catalog.register_node(&self.name, address) {
            tracing::warn!(%error, "this node cannot write its address into the catalog: it is tried again");
        }
    }

    fn apply_catalog(&self, contents: &CatalogContents) {
        let volumes: Vec<_> = self.volumes.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for volume in volumes {
            let Some(record) = contents.volumes.get(&volume.key.name).filter(|record| record.id == volume.key.id)
            else {
                continue;
            };
            volume.update_record(record);
        }
    }
}

impl ReplicatedVolume {
    /// Takes a newer record of the catalog.
    pub(super) fn update_record(&self, record: &VolumeRecord) {
        let mut state = self.lock();
        if record.revision <= state.record.revision {
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

    /// This node leaves the chain, and copies a tree that is not damaged. False for the last live replica, which stays.
    pub(super) fn leave_chain(&self) -> Result<bool, ReplicaError> {
        let own_name = &self.node.name;
        let record = self.update_catalog(|record| {
            let epoch = record.epoch;
            membership::remove_member(record, own_name, epoch)
        })?;
        Ok(!record.chain.contains(own_name))
    }

    /// Without a disk that has everything, a log may lack what was acknowledged before the machine started anew. The other
    /// replicas have it; the last live replica has none to copy from.
    fn leave_after_restart(&self) -> Result<(), ReplicaError> {
        if self.read_record()?.durability == Durability::Memory {
            self.leave_chain()?;
        }
        Ok(())
    }

    /// The record that the catalog has now.
    pub(super) fn read_record(&self) -> Result<VolumeRecord, ReplicaError> {
        let record = self.node.record(&self.key.name)?;
        if record.id != self.key.id {
            return Err(ReplicaError::UnknownVolume(self.key.name.clone()));
        }
        self.update_record(&record);
        Ok(record)
    }

    /// Changes the record in the catalog, unless `change` returns false. The record after it.
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
