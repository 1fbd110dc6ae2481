//! Commands to the offload process of a node, from `farfork volume`: create, list, describe and drop volumes.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use farfork_cluster::catalog::{VolumeName, VolumeRecord};
use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

use super::channel::MessageChannel;
use super::store::VolumeStore;
use crate::publish::Durability;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Creates a volume and its replicas. The answer is `Done`.
    Create(NewVolume),
    /// All volumes of the cluster. The answer is `Volumes`, in the order of their names.
    List,
    /// One volume, with the state of its replicas. The answer is `Volumes` with one element.
    Status(VolumeName),
    /// Gives the place of a replica to another node, which then copies the volume. The answer is `Done`.
    Replace(ReplicaReplacement),
    /// Compares the live replicas of a volume. The answers are `Progress`, any number of times, and `Checked`.
    Check(VolumeCheck),
    /// Removes a volume with its replicas and everything that they have. The answer is `Done`.
    Drop(VolumeName),
}

/// A volume to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVolume {
    /// Its name.
    pub name: VolumeName,
    /// The nodes of its replicas; the first is the head.
    pub replicas: Vec<NodeName>,
    /// Size of each client's log.
    pub log_bytes: u64,
    /// How safe data is when fsync(2) returns.
    pub durability: Durability,
}

/// A replica that another node replaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReplacement {
    /// The volume.
    pub name: VolumeName,
    /// The node that loses its replica.
    pub old: NodeName,
    /// The node that gets one.
    pub new: NodeName,
}

/// A check of the replicas of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCheck {
    /// The volume.
    pub name: VolumeName,
    /// Replicas that are damaged are copied again from those that are not.
    pub should_repair: bool,
    /// The replica on this node is right wherever replicas differ. None: the majority is.
    pub good: Option<NodeName>,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckProgress {
    /// Bytes of files that are compared.
    pub compared_bytes: u64,
    /// Bytes of all files.
    pub data_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The nodes whose replicas were compared.
    pub replicas: Vec<NodeName>,
    /// Files, directories and other inodes of the volume.
    pub inodes: u64,
    /// Bytes of all files.
    pub data_bytes: u64,
    /// Where replicas differ. At most `DIFFERENCES_MAX` of each kind.
    pub differences: Vec<ReplicaDifference>,
    /// Damaged replicas that were copied again.
    pub repaired: Vec<NodeName>,
    /// Nodes among `repaired` whose mount was interrupted, and is not usable again yet.
    pub remounting: Vec<NodeName>,
    /// Why damaged replicas were not copied again, if that was tried.
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
    /// When it ended, in seconds since 1970.
    pub at_seconds: u64,
    /// How many differences it found.
    pub differences: u64,
    /// Damaged replicas that were copied again.
    pub repaired: Vec<NodeName>,
}

/// Most differences of each kind in a report.
pub const DIFFERENCES_MAX: usize = 1000;

/// One thing in which replicas differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDifference {
    /// The thing.
    pub subject: DifferenceSubject,
    /// Nodes whose replicas are damaged. Empty when there is no majority that could say so.
    pub damaged: Vec<NodeName>,
}

/// In what replicas differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DifferenceSubject {
    /// The shared tree of a replica cannot be read, or has a file that is none of the volume's.
    Tree {
        /// Why.
        reason: String,
    },
    /// Attributes, extended attributes or entries of an inode, or the inode is missing.
    Inode {
        /// Its number.
        inode: u64,
        /// A path of it, unless it has none.
        path: Option<String>,
    },
    /// Data of a file.
    Data {
        /// Its inode number.
        inode: u64,
        /// A path of it, unless it has none.
        path: Option<String>,
        /// The difference is somewhere in this range of bytes.
        range: Range<u64>,
    },
    /// The log of a client is damaged.
    Log {
        /// The client's node.
        client: NodeName,
        /// In the endless log, in bytes.
        position: u64,
    },
    /// The file that says how far the log of a client is published is damaged.
    Mark {
        /// The client's node.
        client: NodeName,
        /// Why it is not the mark that the replica has reported.
        reason: String,
    },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlAnswer {
    /// It is done.
    Done,
    /// Volumes.
    Volumes(Vec<VolumeStatus>),
    /// A check continues.
    Progress(CheckProgress),
    /// A check has ended.
    Checked(Box<CheckReport>),
    /// It failed; the text names the volume, the cause and the next step.
    Failed(String),
}

/// A volume and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: VolumeName,
    /// As the catalog has it.
    pub record: VolumeRecord,
    /// One for each of `record.replicas`, in that order. Empty in the answer to `List`.
    pub replicas: Vec<ReplicaStatus>,
}

impl VolumeStatus {
    /// Whether a check of the volume runs, on any node.
    pub fn is_checked(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_checked)
    }

    /// The newest check that a replica knows.
    pub fn last_check(&self) -> Option<&LastCheck> {
        self.replicas.iter().filter_map(|replica| replica.last_check.as_ref()).max_by_key(|check| check.at_seconds)
    }
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its node.
    pub node: NodeName,
    /// Why it did not answer; none if it did.
    pub failure: Option<String>,
    /// Its logs, by the client's number.
    pub logs: Vec<LogStatus>,
    /// Free space of the file system of its shared tree; less if it has few free inodes.
    pub free_bytes: Option<u64>,
    /// The file system is full, but for what a volume keeps free: writers get ENOSPC.
    pub is_full: bool,
    /// The last check that its node has made, or that was saved there.
    pub last_check: Option<LastCheck>,
    /// A check compares it now.
    pub is_checked: bool,
}

impl ReplicaStatus {
    /// Nothing is known of the replica, because of `reason`.
    pub fn unknown(node: NodeName, reason: String) -> Self {
        let failure = Some(reason);
        Self { node, failure, logs: Vec::new(), free_bytes: None, is_full: false, last_check: None, is_checked: false }
    }
}

/// The log of one client on one replica. Positions are in the endless log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The replica has the log up to here.
    pub logged: u64,
    /// Each live replica has the log up to here.
    pub committed: u64,
    /// The shared tree has the log up to here.
    pub published: u64,
    /// Bytes of data that the replica did not copy to its shared tree, because later records overwrite or drop them.
    pub coalesced: u64,
    /// Bytes of the log that the replica has sent to the next one since its process started, before compression.
    pub forwarded: u64,
    /// The bytes that were sent in their place. Without compression, as many.
    pub compressed: u64,
}

/// Sends one command to the offload process of the node with this store, and waits for the answer.
///
/// # Errors
/// When the process does not run, or ends before it answers.
pub fn send_control_request(store: &Path, request: &ControlRequest) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, request, None, |_| {})
}

/// Checks a volume. `report_progress` is called now and then.
///
/// # Errors
/// As `send_control_request`.
pub fn check_volume(
    store: &Path,
    check: VolumeCheck,
    report_progress: impl FnMut(CheckProgress),
) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, &ControlRequest::Check(check), None, report_progress)
}

/// As `send_control_request`, and waits for the answer at most `limit`.
///
/// # Errors
/// As `send_control_request`; `WouldBlock` when there is no answer in time.
pub fn send_control_request_within(
    store: &Path,
    request: &ControlRequest,
    limit: Duration,
) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, request, Some(limit), |_| {})
}

fn exchange_control_messages(
    store: &Path,
    request: &ControlRequest,
    limit: Option<Duration>,
    mut report_progress: impl FnMut(CheckProgress),
) -> io::Result<ControlAnswer> {
    let mut channel = MessageChannel::connect(&VolumeStore::new(store).control_socket())?;
    channel.set_receive_timeout(limit)?;
    channel.send(request)?;
    loop {
        match channel.receive()? {
            ControlAnswer::Progress(progress) => report_progress(progress),
            answer => return Ok(answer),
        }
    }
}
