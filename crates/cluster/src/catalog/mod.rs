//! The catalog: what the nodes of a cluster must agree on about volumes. `farfork-volume` reads and changes it.
//!
//! A record changes only if it has the revision that was read (compare and swap), so two nodes that decide at the same
//! time cannot both succeed. [`FileCatalog`] is the embedded store.

mod file;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

pub use file::FileCatalog;

/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_BYTES_MAX: usize = 48;

/// Everything that a catalog has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogContents {
    /// The volumes of the cluster.
    pub volumes: BTreeMap<VolumeName, VolumeRecord>,
    /// The nodes that serve volumes. A node registers itself when its offload process starts.
    pub nodes: BTreeMap<NodeName, VolumeNode>,
}

impl CatalogContents {
    /// Whether there is a volume, or a node that serves volumes.
    pub fn is_in_use(&self) -> bool {
        !self.volumes.is_empty() || !self.nodes.is_empty()
    }
}

/// A store of records that all nodes of a cluster reach.
pub trait Catalog: fmt::Debug + Send + Sync {
    /// The present contents. Cheap while nothing has changed.
    ///
    /// # Errors
    /// When the store cannot be reached. A volume's writers must then stop.
    fn read(&self) -> Result<Arc<CatalogContents>, CatalogError>;

    /// Writes a record whose revision in the store is `record.revision` (0: there is none). The result is the new
    /// revision, which no record has had. The record survives a power failure when this returns.
    ///
    /// # Errors
    /// `Conflict` when another node was faster: read again.
    fn write_volume(&self, name: &VolumeName, record: &VolumeRecord) -> Result<u64, CatalogError>;

    /// Removes a record of this revision.
    ///
    /// # Errors
    /// As `write_volume`.
    fn remove_volume(&self, name: &VolumeName, revision: u64) -> Result<(), CatalogError>;

    /// Says where a node is reached. The last registration counts.
    ///
    /// # Errors
    /// As `read`.
    fn register_node(&self, name: &NodeName, node: &VolumeNode) -> Result<(), CatalogError>;
}

/// Changes the record of a volume, and reads it again when another node was faster. `change` says with `false` that the
/// record is to stay as it is. The result is the record after the change; none when there is no such volume.
///
/// # Errors
/// As `Catalog::read` and `Catalog::write_volume`, except for `Conflict`.
pub fn update_volume(
    catalog: &dyn Catalog,
    name: &VolumeName,
    mut change: impl FnMut(&mut VolumeRecord) -> bool,
) -> Result<Option<VolumeRecord>, CatalogError> {
    loop {
        let contents = catalog.read()?;
        let Some(present) = contents.volumes.get(name) else { return Ok(None) };
        let mut record = present.clone();
        if !change(&mut record) {
            return Ok(Some(present.clone()));
        }
        // The revision tells whether the record has changed since it was read.
        record.revision = present.revision;
        match catalog.write_volume(name, &record) {
            Ok(revision) => return Ok(Some(VolumeRecord { revision, ..record })),
            Err(CatalogError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The name of a volume: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks a name.
    ///
    /// # Errors
    /// `InvalidName`.
    pub fn new(text: &str) -> Result<Self, CatalogError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_valid = (1..=VOLUME_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed);
        if is_valid { Ok(Self(text.to_owned())) } else { Err(CatalogError::InvalidName(text.to_owned())) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeName {
    type Error = CatalogError;

    fn try_from(text: String) -> Result<Self, CatalogError> {
        Self::new(&text)
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The failures that an acknowledged change survives, besides the loss of all nodes but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of every process.
    Memory,
    /// Power failure, too.
    Disk,
}

/// How far the life of a volume has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Its replicas are being created.
    Creating,
    /// It can be mounted.
    Ready,
    /// Its replicas are being removed.
    Dropping,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Rises with each change of this record; 0: not written yet.
    pub revision: u64,
    /// Tells the volume from another one that had the same name.
    pub id: u64,
    /// How far its life has come.
    pub state: VolumeState,
    /// The nodes that have a replica, in the order in which they were given. The first is the head.
    pub replicas: Vec<NodeName>,
    /// The live replicas, in the order in which a log passes them.
    pub chain: Vec<NodeName>,
    /// A replica that catches up. It takes the logs as the last of the chain, and becomes a member when its shared tree
    /// equals the others.
    pub joining: Option<NodeName>,
    /// Rises with each change of `chain` and `joining`. A node of an earlier epoch cannot acknowledge.
    pub epoch: u64,
    /// Size of each client's log.
    pub log_bytes: u64,
    /// How safe data is when fsync(2) returns.
    pub durability: Durability,
    /// The nodes that have mounted the volume at least once. The index is the number of the client, and of its log.
    pub clients: Vec<NodeName>,
    /// The last term of each client; 0 for one that has never written.
    pub client_terms: Vec<u32>,
    /// The client that may write. Its records have the epoch `term`.
    pub writer: Option<u16>,
    /// The node of the writer does not answer: nothing more of its log is accepted from it, and the head publishes what the
    /// chain has of it.
    pub is_writer_fenced: bool,
    /// Rises each time that a client becomes the writer.
    pub term: u32,
}

impl VolumeRecord {
    /// The record of a volume that is being created: each replica is live, and no client has mounted it.
    pub fn new(id: u64, replicas: Vec<NodeName>, log_bytes: u64, durability: Durability) -> Self {
        Self {
            revision: 0,
            id,
            state: VolumeState::Creating,
            chain: replicas.clone(),
            replicas,
            joining: None,
            epoch: 1,
            log_bytes,
            durability,
            clients: Vec::new(),
            client_terms: Vec::new(),
            writer: None,
            is_writer_fenced: false,
            term: 0,
        }
    }
}

/// Where the offload process of a node is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeNode {
    /// One-sided writes of logs.
    pub fabric: SocketAddr,
    /// Calls.
    pub rpc: SocketAddr,
}

/// Why a catalog refused.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The store cannot be reached.
    #[error("cannot {operation} the catalog {store}: {source}")]
    Store {
        /// The operation that failed.
        operation: &'static str,
        /// Which store.
        store: String,
        /// Why.
        source: io::Error,
    },
    /// The store has something else than a catalog of this version.
    #[error("{store} is no catalog of this version: {reason}")]
    Format {
        /// Which store.
        store: String,
        /// Why not.
        reason: String,
    },
    /// Another node has changed the record.
    #[error("another node has changed volume {0}")]
    Conflict(VolumeName),
    /// A name with other characters, or of another length.
    #[error("the name {0:?} is no volume name: use 1 to {VOLUME_NAME_BYTES_MAX} letters, digits, - and _")]
    InvalidName(String),
}
