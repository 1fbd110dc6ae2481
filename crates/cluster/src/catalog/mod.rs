//! The catalog: the records of volumes, on which the nodes of a cluster must agree. `farfork-volume` reads and changes it. It
//! may also have the members of the cluster, for `farfork-node`.
//!
//! A record changes only if it has the revision that was read (compare and swap), so two nodes that decide at the same
//! time cannot both succeed. [`FileCatalog`] is the embedded store; [`EtcdCatalog`] keeps the records in etcd. [`CatalogLocation`]
//! selects one of them.

mod cluster_records;
#[cfg(test)]
mod conformance;
mod etcd;
mod file;
mod location;
mod reference;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use farfork_trust::DirectoryError;
use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

pub use cluster_records::{ClusterRecords, MemberRecord, RosterRecord, claim_catalog};
pub use etcd::EtcdCatalog;
pub use file::FileCatalog;
pub use location::{CatalogLocation, EtcdLocation};
pub use reference::{CatalogReference, require_own_catalog, reserve_catalog};
pub use transfer::{DamagedRecordPolicy, ImportError, ImportSummary, import_volumes};

/// Maximum length of a volume's name, in bytes.
pub const VOLUME_NAME_BYTES_MAX: usize = 48;
/// Maximum number of replicas of a volume.
pub const REPLICAS_MAX: usize = 16;
/// Smallest size of a client's log, in bytes.
pub const LOG_BYTES_MIN: u64 = 8 << 20;
/// Largest size of a client's log, in bytes.
pub const LOG_BYTES_MAX: u64 = 2 << 30;
/// A log has whole pages.
const LOG_PAGE_BYTES: u64 = 4096;
/// No volume reaches this epoch or this term. The next one of a larger value could not be represented.
const EPOCH_MAX: u64 = 1 << 62;
const TERM_MAX: u32 = 1 << 31;

/// All contents of a catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogContents {
    /// The volumes of the cluster.
    pub volumes: BTreeMap<VolumeName, VolumeRecord>,
    /// The nodes that serve volumes. A node registers itself when its offload process starts.
    pub nodes: BTreeMap<NodeName, VolumeNode>,
    /// The volumes whose records cannot be read, with the reasons. Someone has edited them, or a later build has written them.
    #[serde(skip)]
    pub damaged: BTreeMap<VolumeName, DamagedRecord>,
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRecord {
    /// The revision in the store. A record with this revision may replace the damaged one.
    pub revision: u64,
    /// The place of the record, and why it cannot be read.
    pub reason: String,
}

impl CatalogContents {
    /// Whether there is a volume, or a node that serves volumes.
    pub fn is_in_use(&self) -> bool {
        !self.volumes.is_empty() || !self.nodes.is_empty() || !self.damaged.is_empty()
    }

    /// Returns the record of a volume; none if there is no such volume.
    ///
    /// # Errors
    /// `Damaged` if its record cannot be read.
    pub fn volume(&self, name: &VolumeName) -> Result<Option<&VolumeRecord>, CatalogError> {
        match self.damaged.get(name) {
            Some(record) => Err(CatalogError::Damaged { volume: name.clone(), reason: record.reason.clone() }),
            None => Ok(self.volumes.get(name)),
        }
    }
}

/// A store of records that all nodes of a cluster reach.
pub trait Catalog: fmt::Debug + Send + Sync {
    /// Returns the current contents. Cheap if nothing has changed since the last call.
    ///
    /// # Errors
    /// `Store` or `Format`: the store cannot be read. A volume's writers must then stop.
    fn read(&self) -> Result<Arc<CatalogContents>, CatalogError>;

    /// Returns the contents that this process has read last, without a request over the network. They may be old: nothing may
    /// be decided from them that another node could have decided differently meanwhile.
    ///
    /// # Errors
    /// As `read`, if nothing was read yet.
    fn last_read(&self) -> Result<Arc<CatalogContents>, CatalogError> {
        self.read()
    }

    /// Why the store refuses changes although it can be read, with the next step. None if it accepts them, or does not say.
    fn alarm(&self) -> Option<String> {
        None
    }

    /// Writes a record if its revision in the store is `record.revision` (0: the store has no such record). Returns the new
    /// revision, which no record has had before. When this returns, the record survives a power failure.
    ///
    /// # Errors
    /// `Conflict` if another node has changed the record: read it again. Otherwise as `read`.
    fn write_volume(&self, name: &VolumeName, record: &VolumeRecord) -> Result<u64, CatalogError>;

    /// Removes a record if it has this revision.
    ///
    /// # Errors
    /// As `write_volume`.
    fn remove_volume(&self, name: &VolumeName, revision: u64) -> Result<(), CatalogError>;

    /// Registers the addresses of a node, and replaces an earlier registration.
    ///
    /// # Errors
    /// As `read`.
    fn register_node(&self, name: &NodeName, node: &VolumeNode) -> Result<(), CatalogError>;

    /// Waits until the contents may have changed.
    fn wait_for_change(&self);

    /// Returns the records of the cluster itself.
    ///
    /// # Errors
    /// As `read`.
    fn read_cluster(&self) -> Result<ClusterRecords, CatalogError>;

    /// Writes the identity of the cluster, if the store has none. Returns the identity that the store has then.
    ///
    /// # Errors
    /// As `read`.
    fn write_cluster(&self, cluster: &str) -> Result<String, CatalogError>;

    /// Writes the record of a member, and replaces an earlier one.
    ///
    /// # Errors
    /// As `read`.
    fn write_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError>;

    /// Removes the record of a member, if it is this one.
    ///
    /// # Errors
    /// As `read`.
    fn remove_member(&self, name: &NodeName, member: &MemberRecord) -> Result<(), CatalogError>;

    /// Writes the roster, if its revision in the store is `roster.revision`. Returns whether it was written.
    ///
    /// # Errors
    /// As `read`.
    fn write_roster(&self, roster: &RosterRecord) -> Result<bool, CatalogError>;
}

/// Changes the record of a volume. If another node changes the record at the same time, reads it again and repeats. If
/// `change` returns `false`, the record stays as it is. Returns the record after the change, or `None` if the volume does
/// not exist.
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
        let Some(present) = contents.volume(name)? else { return Ok(None) };
        let mut record = present.clone();
        if !change(&mut record) {
            return Ok(Some(present.clone()));
        }
        // By this revision, the store detects whether the record has changed since it was read.
        record.revision = present.revision;
        match catalog.write_volume(name, &record) {
            Ok(revision) => return Ok(Some(VolumeRecord { revision, ..record })),
            Err(CatalogError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The name of a volume: letters, digits, `-` and `_`. The first is not `-`, which would begin an option.
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
        let is_valid =
            (1..=VOLUME_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('-');
        if is_valid { Ok(Self(text.to_owned())) } else { Err(CatalogError::InvalidName(text.to_owned())) }
    }

    /// The name as text.
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

/// The failures that an acknowledged change survives, in addition to the loss of all replicas but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of every process.
    Memory,
    /// The death of every process, and power failure.
    Disk,
}

/// The stage in the life of a volume.
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
    /// Distinguishes the volume from an earlier one of the same name.
    pub id: u64,
    /// The stage in the volume's life.
    pub state: VolumeState,
    /// The nodes that have a replica, in the order in which they were given. The first is the head.
    pub replicas: Vec<NodeName>,
    /// The live replicas, in the order in which they pass on a log.
    pub chain: Vec<NodeName>,
    /// A replica that catches up. It receives the logs after the last node of the chain, and becomes a member when its
    /// shared tree equals the members' trees.
    pub joining: Option<NodeName>,
    /// Rises with each change of `chain` and `joining`. A node with an earlier epoch cannot acknowledge.
    pub epoch: u64,
    /// Size of each client's log, in bytes.
    pub log_bytes: u64,
    /// The failures that data survives once fsync(2) has returned.
    pub durability: Durability,
    /// The nodes that have mounted the volume at least once. The index is the number of the client, and of its log.
    pub clients: Vec<NodeName>,
    /// The last term of each client; 0 for one that has never written.
    pub client_terms: Vec<u32>,
    /// The client that may write. The records in its log have `term` as their epoch.
    pub writer: Option<u16>,
    /// Whether the writer is fenced, because its node was removed from the chain. No more of its log is accepted from it,
    /// and the head publishes the part that the chain has.
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

    /// Whether the chain, the writer or the clients are later than in another record of the same volume. Revisions of different
    /// stores cannot be compared. The epoch, the term and the number of clients only rise, and a term ends once. The state is
    /// not compared: a drop that fails takes it back.
    pub fn is_later_than(&self, other: &Self) -> bool {
        let order = |record: &Self| (record.epoch, record.term, record.writer.is_none(), record.clients.len());
        order(self) > order(other)
    }
}

/// Why a record contradicts itself; none for a valid one. No node writes an invalid record, but someone may edit one by hand.
fn record_damage(record: &VolumeRecord) -> Option<&'static str> {
    let has_replica = |node: &NodeName| record.replicas.contains(node);
    let joins_wrongly = |node: &NodeName| record.chain.contains(node) || !has_replica(node);
    let checks = [
        (record.replicas.is_empty() || has_duplicates(&record.replicas), "`replicas` is empty, or names a node twice"),
        (record.replicas.len() > REPLICAS_MAX, "`replicas` has more than 16 nodes"),
        (record.chain.is_empty() || has_duplicates(&record.chain), "`chain` is empty, or names a node twice"),
        (!record.chain.iter().all(has_replica), "`chain` names a node that is not in `replicas`"),
        (
            record.joining.as_ref().is_some_and(joins_wrongly),
            "`joining` names a node of `chain`, or one without a replica",
        ),
        (has_duplicates(&record.clients), "`clients` names a node twice"),
        (record.client_terms.len() > record.clients.len(), "`client_terms` has more values than `clients`"),
        (record.client_terms.iter().any(|term| *term > record.term), "`client_terms` has a value above `term`"),
        (
            record.writer.is_some_and(|writer| usize::from(writer) >= record.clients.len()),
            "`writer` is not in `clients`",
        ),
        (is_writer_off_chain(record), "`writer` is a client of a node that is not in `chain`, and is not fenced"),
        (
            !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&record.log_bytes)
                || !record.log_bytes.is_multiple_of(LOG_PAGE_BYTES),
            "`log_bytes` is not 8 MiB to 2 GiB in whole pages",
        ),
        (record.epoch > EPOCH_MAX || record.term > TERM_MAX, "`epoch` or `term` is larger than any volume reaches"),
    ];
    checks.into_iter().find_map(|(is_damaged, reason)| is_damaged.then_some(reason))
}

/// A node that leaves the chain fences its writer, because the writer's log would have no path.
fn is_writer_off_chain(record: &VolumeRecord) -> bool {
    let node = record.writer.and_then(|writer| record.clients.get(usize::from(writer)));
    !record.is_writer_fenced && node.is_some_and(|node| !record.chain.contains(node))
}

/// Logs the damaged records, unless the contents that were read before have the same.
fn warn_of_new_damage(earlier: Option<&CatalogContents>, contents: &CatalogContents) {
    let is_known = earlier.map_or(contents.damaged.is_empty(), |earlier| earlier.damaged == contents.damaged);
    if !is_known {
        tracing::warn!(damaged = ?contents.damaged, "the records of some volumes cannot be read");
    }
}

fn has_duplicates(names: &[NodeName]) -> bool {
    let mut seen = BTreeSet::new();
    !names.iter().all(|name| seen.insert(name))
}

/// The addresses of a node's offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeNode {
    /// Address for one-sided writes of logs.
    pub fabric: SocketAddr,
    /// Address for remote calls.
    pub rpc: SocketAddr,
}

/// Why an operation on a catalog failed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The store cannot be locked, read or written.
    #[error("cannot {operation} the catalog {store}: {source}")]
    Store {
        /// The operation that failed.
        operation: &'static str,
        /// The path or the URL of the store.
        store: String,
        /// The cause.
        source: io::Error,
    },
    /// The store does not contain a catalog of this version.
    #[error("{store} is not a catalog of this version: {reason}")]
    Format {
        /// The path or the URL of the store.
        store: String,
        /// The reason.
        reason: String,
    },
    /// The record of one volume cannot be read. Other volumes are not affected.
    #[error(
        "the record of volume {volume} in the catalog is damaged: {reason}; restore it with `farfork volume import-catalog FILE \
         {volume}`, or delete it to give up the volume"
    )]
    Damaged {
        /// The volume.
        volume: VolumeName,
        /// The place of the record, and the reason.
        reason: String,
    },
    /// The value of `--catalog` names no store.
    #[error("{text:?} is not the location of a catalog: {reason}")]
    InvalidLocation {
        /// The value.
        text: String,
        /// The reason.
        reason: &'static str,
    },
    /// Another cluster has reserved the catalog.
    #[error(
        "the catalog belongs to another cluster ({theirs}): choose another key prefix, or another file; if that cluster is gone, delete \
         the key `PREFIX/cluster`"
    )]
    OtherCluster {
        /// The identity of that cluster.
        theirs: String,
    },
    /// The trust directory, which identifies the cluster, cannot be read.
    #[error(transparent)]
    Trust(#[from] DirectoryError),
    /// Another node has changed the record.
    #[error("another node has changed volume {0}")]
    Conflict(VolumeName),
    /// The name is empty, too long, or has an invalid character.
    #[error(
        "{0:?} is not a valid volume name: use 1 to {VOLUME_NAME_BYTES_MAX} letters, digits, - and _, and no - first"
    )]
    InvalidName(String),
}
