//! Commands to the offload process of a node, from `farfork volume`: create, list, describe and drop volumes.

use std::io;
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

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlAnswer {
    /// It is done.
    Done,
    /// Volumes.
    Volumes(Vec<VolumeStatus>),
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

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its node.
    pub node: NodeName,
    /// Why it did not answer; none if it did.
    pub failure: Option<String>,
    /// Its logs, by the client's number.
    pub logs: Vec<LogStatus>,
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
}

/// Sends one command to the offload process of the node with this store, and waits for the answer.
///
/// # Errors
/// When the process does not run, or ends before it answers.
pub fn send_control_request(store: &Path, request: &ControlRequest) -> io::Result<ControlAnswer> {
    exchange_control_messages(store, request, None)
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
    exchange_control_messages(store, request, Some(limit))
}

fn exchange_control_messages(
    store: &Path,
    request: &ControlRequest,
    limit: Option<Duration>,
) -> io::Result<ControlAnswer> {
    let mut channel = MessageChannel::connect(&VolumeStore::new(store).control_socket())?;
    channel.set_receive_timeout(limit)?;
    channel.send(request)?;
    channel.receive()
}
