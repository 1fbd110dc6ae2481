//! Messages between the processes of one node.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::chain::TreeSpace;
use crate::change::ChangeSet;
use crate::log::LogPoint;
use crate::publish::{Durability, PublishedMark};
use crate::record::InodeNumber;

/// From a client to the offload process of its node. The first message of a connection is `Attach` or `Reattach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientMessage {
    /// A new client. The answer is `Attached` or `Refused`.
    Attach {
        /// The volume.
        volume: String,
    },
    /// A client whose offload process has died. The answer is `Reattached` or `Refused`.
    Reattach {
        /// The volume.
        volume: String,
        /// The number that it has from `Attached`.
        client: u16,
        /// The term in which it may write, if it may.
        term: Option<u32>,
        /// The shared tree that it has open.
        tree: u64,
    },
    /// The namespace is read from the shared tree: publishing may go on. Follows `Attached`, and a `Reattached` after
    /// which the client has read it again.
    Loaded,
    /// The volume is mounted. Follows `Loaded` of a new client.
    Mounted,
    /// The log has more. A hint: the offload process looks by itself, too.
    Appended,
    /// fsync(2): answer `Committed` when each live replica has the log up to this point.
    Commit(LogPoint),
    /// Answer `SpaceChecked` when each live replica has published the log up to this point, or when the file system of one is
    /// full.
    CheckSpace(LogPoint),
    /// The client wants to write. The answer is `WriteGranted`, after every `Changed` of the earlier writers.
    AcquireWrite,
    /// The answer to `ReleaseWrite`: nothing is appended before the next `WriteGranted`.
    Released,
    /// open(2): answer `Refreshed` after every `Changed` that has what other clients had logged until now.
    Refresh {
        /// Repeated in the answer.
        request: u64,
    },
}

/// From the offload process to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OffloadMessage {
    /// The answer to `Attach`. Nothing is published before `Loaded`.
    Attached(Box<AttachedClient>),
    /// The answer to `Reattach`: how far each client's log is published here, by the client's number. If a log of another
    /// client is not published exactly as far as this client has applied it, the client reads the namespace again. Nothing
    /// is published before `Loaded`.
    Reattached(Vec<PublishedMark>),
    /// The volume cannot be attached; the text says why, and what to do.
    Refused(String),
    /// This client's log is published up to here on each live replica.
    Published {
        /// Up to here.
        mark: PublishedMark,
        /// The least space of a live replica, when at least this was published.
        space: TreeSpace,
    },
    /// While the disk of a replica is full, the client does not become the writer: what waits for that is refused.
    DiskFull,
    /// The answer to `CheckSpace`: the least space of a live replica now.
    SpaceChecked(TreeSpace),
    /// A change set of another client was published on this node.
    Changed(Box<ForeignChange>),
    /// The answer to `Commit`, in order; one answers all commits up to its point.
    Committed(LogPoint),
    /// The answer to `AcquireWrite`: records have this epoch from now on.
    WriteGranted {
        /// The epoch of the next records.
        term: u32,
        /// The least space of a live replica; none where it was ample in the last report.
        space: Option<TreeSpace>,
    },
    /// Another client wants to write. The answer is `Released`.
    ReleaseWrite,
    /// The answer to `Refresh`.
    Refreshed {
        /// From the request.
        request: u64,
    },
}

/// The start of a new client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachedClient {
    /// Its number, and the number of its log.
    pub(super) client: u16,
    /// Its log, which ends at the point of its mark.
    pub(super) log_path: PathBuf,
    /// How far each client's log is published here, by the client's number.
    pub(super) marks: Vec<PublishedMark>,
    /// Inodes without entries that no client has open: this client drops them when it may write.
    pub(super) unlinked: Vec<InodeNumber>,
}

/// A change set of another client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForeignChange {
    /// The client that has made the changes.
    pub(super) client: u16,
    /// The changes. Data is in the shared tree.
    pub(super) changes: ChangeSet,
}

/// From the offload process to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishRequest {
    /// The volume.
    pub(super) volume: String,
    /// Tells it from an earlier volume of this name.
    pub(super) volume_id: u64,
    /// Of the volume.
    pub(super) durability: Durability,
    /// The client of the log.
    pub(super) client: u16,
    /// The changes to apply.
    pub(super) changes: ChangeSet,
}

/// From the worker to the offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WorkerAnswer {
    /// The request is still executed. Sent each `WORKER_ALIVE_INTERVAL` until another answer follows.
    Working,
    /// Done: the mark after it.
    Done(PublishedMark),
    /// The shared tree refused; the request may be repeated.
    Failed {
        /// Why.
        reason: String,
        /// Its file system is full.
        is_full: bool,
    },
}
