//! Commands to the offload process of a node, from `farfork volume`: create, list, describe, check and drop volumes, and
//! replace replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use farfork_cluster::catalog::{
    CatalogContents, DamagedRecord, DamagedRecordPolicy, ImportSummary, VolumeName, VolumeRecord,
};
use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

use super::channel::MessageChannel;
use super::store::VolumeStore;
use crate::publish::Durability;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Creates a volume and its replicas. The reply is `Done`.
    Create(NewVolume),
    /// Lists all volumes of the cluster. The reply is `Volumes`.
    List,
    /// Describes one volume and its replicas. The reply is `Status`.
    Status(VolumeName),
    /// Gives the place of a replica to another node, which then copies the volume. The reply is `Done`.
    Replace(ReplicaReplacement),
    /// Compares the live replicas of a volume. The replies are any number of `Progress`, then `Checked`.
    Check(VolumeCheck),
    /// Removes a volume, its replicas and all their files. The reply is `Done`.
    Drop(VolumeName),
    /// As `Drop`, but nodes that do not answer keep their files. The reply is `Done` or `DoneExceptFiles`.
    DropReachable(VolumeName),
    /// Lists the nodes that serve volumes. The reply is `Nodes`.
    ListNodes,
    /// Reads the catalog. The reply is `Catalog`.
    ExportCatalog,
    /// Writes the records of volumes into the catalog. The reply is `Imported`.
    ImportCatalog(CatalogImport),
}

/// Records to write into the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogImport {
    /// The records of volumes. Records of nodes are ignored.
    pub contents: CatalogContents,
    /// How the import treats records in the catalog that cannot be read.
    pub damaged: DamagedRecordPolicy,
}

/// All volumes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeList {
    /// The records of the volumes, by name.
    pub volumes: BTreeMap<VolumeName, VolumeRecord>,
    /// The volumes whose records cannot be read.
    pub damaged: BTreeMap<VolumeName, DamagedRecord>,
}

/// The contents of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedCatalog {
    /// The contents.
    pub contents: CatalogContents,
    /// The volumes whose records cannot be read. `contents` lacks them.
    pub damaged: BTreeMap<VolumeName, DamagedRecord>,
    /// Why the catalog cannot be read. The contents are then those that the node has read last.
    pub failure: Option<String>,
}

/// A volume to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its name.
    pub name: VolumeName,
    /// The nodes of its replicas; the first is the head.
    pub replicas: Vec<NodeName>,
    /// Size of each client's log, in bytes.
    pub log_bytes: u64,
    /// The failures that data survives after fsync(2) has returned.
    pub durability: Durability,
}

/// A replica that another node replaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReplacement {
    /// The volume.
    pub name: VolumeName,
    /// The node that loses its replica.
    pub old: NodeName,
    /// The node that gets a replica.
    pub new: NodeName,
}

/// A check of the replicas of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCheck {
    /// The volume.
    pub name: VolumeName,
    /// Whether to copy damaged replicas again from undamaged ones.
    pub should_repair: bool,
    /// The node whose replica is correct wherever replicas differ. None: the majority is correct.
    pub good: Option<NodeName>,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckProgress {
    /// Number of bytes of files that are compared already.
    pub compared_bytes: u64,
    /// Number of bytes of all files.
    pub data_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The nodes whose replicas were compared.
    pub replicas: Vec<NodeName>,
    /// Number of inodes of the volume.
    pub inodes: u64,
    /// Number of bytes of all files.
    pub data_bytes: u64,
    /// Differences between replicas, and damage. At most `DIFFERENCES_MAX` of each kind.
    pub differences: Vec<ReplicaDifference>,
    /// Damaged replicas that were copied again.
    pub repaired: Vec<NodeName>,
    /// Nodes of `repaired` whose mount was interrupted and is not usable yet.
    pub remounting: Vec<NodeName>,
    /// Why the repair of damaged replicas failed; none if it succeeded or was not requested.
    pub repair_failure: Option<String>,
}

impl CheckReport {
    /// The nodes whose replicas are damaged.
    pub fn damaged_nodes(&self) -> BTreeSet<NodeName> {
        self.differences.iter().flat_map(|difference| &difference.damaged).cloned().collect()
    }
}

/// The result of the last check that a node has made of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheck {
    /// Time when the check ended, in seconds since 1970.
    pub at_seconds: u64,
    /// Number of differences that the check found.
    pub differences: u64,
    /// Damaged replicas that were copied again.
    pub repaired: Vec<NodeName>,
}

/// Maximum number of differences of each kind in a report.
pub const DIFFERENCES_MAX: usize = 1000;

/// One difference between replicas, or one case of damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDifference {
    /// The object that differs or is damaged.
    pub subject: DifferenceSubject,
    /// Nodes whose replicas are damaged. Empty if no majority of replicas agrees.
    pub damaged: Vec<NodeName>,
}

/// An object that differs between replicas, or is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DifferenceSubject {
    /// The shared tree of a replica cannot be read, or has a file that does not belong to the volume.
    Tree {
        /// The cause.
        reason: String,
    },
    /// Attributes, extended attributes or entries of an inode differ, or the inode is missing.
    Inode {
        /// Number of the inode.
        inode: u64,
        /// One path of the inode; none if it has no entry.
        path: Option<String>,
    },
    /// The data of a file differs.
    Data {
        /// Number of the inode.
        inode: u64,
        /// One path of the inode; none if it has no entry.
        path: Option<String>,
        /// The difference is somewhere in this range of bytes.
        range: Range<u64>,
    },
    /// The log of a client is damaged.
    Log {
        /// The client's node.
        client: NodeName,
        /// Position in the endless log, in bytes, at which the valid part ends.
        position: u64,
    },
    /// The file with the published mark of a client's log is damaged.
    Mark {
        /// The client's node.
        client: NodeName,
        /// How the file differs from the mark that the replica uses, or why it cannot be read.
        reason: String,
    },
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlAnswer {
    /// The command has succeeded.
    Done,
    /// `Replace` has succeeded, but the files of the old replica remain. The text names them, the cause and the next step.
    DoneExceptFiles(String),
    /// All volumes.
    Volumes(VolumeList),
    /// The state of one volume.
    Status(Box<VolumeStatus>),
    /// The progress of a check that continues.
    Progress(CheckProgress),
    /// The result of a check.
    Checked(Box<CheckReport>),
    /// The nodes that serve volumes.
    Nodes(Vec<NodeName>),
    /// The contents of the catalog.
    Catalog(Box<ExportedCatalog>),
    /// The result of an import.
    Imported(ImportSummary),
    /// The command has failed. The text names the volume, the cause and the next step.
    Failed(String),
}

/// The state of a volume and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: VolumeName,
    /// The record of the volume in the catalog.
    pub record: VolumeRecord,
    /// The state of each of `record.replicas`, in that order.
    pub replicas: Vec<ReplicaStatus>,
    /// Why the catalog cannot be read. The record is then the one that the node has read last.
    pub catalog_failure: Option<String>,
    /// Why the store of the catalog refuses changes, although it can be read.
    pub catalog_alarm: Option<String>,
}

impl VolumeStatus {
    /// Whether a check of the volume runs, on any node.
    pub fn is_checked(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_checked)
    }

    /// Result of the newest check that any replica has saved.
    pub fn last_check(&self) -> Option<&LastCheck> {
        self.replicas.iter().filter_map(|replica| replica.last_check.as_ref()).max_by_key(|check| check.at_seconds)
    }
}

/// The state of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// The node of the replica.
    pub node: NodeName,
    /// Why the node did not describe its replica; none if it did.
    pub failure: Option<String>,
    /// State of each log, by client number.
    pub logs: Vec<LogStatus>,
    /// Free space of the file system of the shared tree, in bytes. Less if the file system has few free inodes.
    pub free_bytes: Option<u64>,
    /// The file system is full, except for the space that a volume keeps free: writers get ENOSPC.
    pub is_full: bool,
    /// Result of the last check that the node has made, or has saved for another node.
    pub last_check: Option<LastCheck>,
    /// A check of the replica is running.
    pub is_checked: bool,
}

impl ReplicaStatus {
    /// Creates the status of a replica that was not described, because of `reason`.
    pub fn unknown(node: NodeName, reason: String) -> Self {
        let failure = Some(reason);
        Self { node, failure, logs: Vec::new(), free_bytes: None, is_full: false, last_check: None, is_checked: false }
    }
}

/// The log of one client on one replica. Positions are in the endless log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// End of the log on this replica.
    pub logged: u64,
    /// End of the part that each live replica has.
    pub committed: u64,
    /// End of the part that is published in this replica's shared tree.
    pub published: u64,
    /// Number of bytes of data that the replica did not copy to its shared tree, because later records overwrite or drop
    /// them.
    pub coalesced: u64,
    /// Number of bytes of the log that the replica has sent to the next one since its process started, before compression.
    pub forwarded: u64,
    /// Number of bytes that were sent instead. Equal to `forwarded` without compression.
    pub compressed: u64,
}

/// Sends one command to the offload process of the node with this store, and waits for the reply.
///
/// # Errors
/// When the process does not run, or ends before it replies.
pub fn send_control_request(store: &Path, request: &ControlRequest) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, request, None, |_| true)
}

/// Checks a volume. Calls `report_progress` while the check runs, which returns false to end the comparison.
///
/// # Errors
/// As `send_control_request`; `Interrupted` after `report_progress` has returned false.
pub fn check_volume(
    store: &Path,
    check: VolumeCheck,
    report_progress: impl FnMut(CheckProgress) -> bool,
) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, &ControlRequest::Check(check), None, report_progress)
}

/// As `send_control_request`, but waits at most `limit` for each message of the reply.
///
/// # Errors
/// As `send_control_request`; `WouldBlock` when a message does not arrive in time.
pub fn send_control_request_within(
    store: &Path,
    request: &ControlRequest,
    limit: Duration,
) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, request, Some(limit), |_| true)
}

fn exchange_control_messages(
    store: &Path,
    request: &ControlRequest,
    limit: Option<Duration>,
    mut report_progress: impl FnMut(CheckProgress) -> bool,
) -> io::Result<ControlAnswer> {
    let mut channel = MessageChannel::connect(&VolumeStore::new(store).control_socket())?;
    channel.set_receive_timeout(limit)?;
    channel.send(request)?;
    loop {
        match channel.receive()? {
            // The offload process ends the comparison when the connection is closed.
            ControlAnswer::Progress(progress) if !report_progress(progress) => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            ControlAnswer::Progress(_) => {}
            answer => return Ok(answer),
        }
    }
}
