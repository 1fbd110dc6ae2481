//! Messages between the processes of a volume.

use serde::{Deserialize, Serialize};

use crate::change::ChangeSet;
use crate::publish::PublishedMark;

/// From the client to the offload process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientMessage {
    /// A new client: publish everything that the log has, and drop unlinked inodes.
    Recover,
    /// The log has more. A hint: the offload process looks by itself, too.
    Appended,
}

/// From the offload process to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OffloadMessage {
    /// The answer to `Recover`: the log ends here.
    Recovered(PublishedMark),
    /// The log is published up to here.
    Published(PublishedMark),
}

/// From the offload process to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WorkerRequest {
    /// Apply a change set.
    Publish(Box<ChangeSet>),
    /// Drop inodes without entries. No client runs.
    DropUnlinked,
}

/// From the worker to the offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WorkerAnswer {
    /// Done: the mark after it.
    Done(PublishedMark),
    /// The shared tree refused; the request may be repeated.
    Failed(String),
}
