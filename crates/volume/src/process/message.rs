//! Messages between the processes of one node.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::chain::TreeSpace;
use crate::change::ChangeSet;
use crate::log::LogPoint;
use crate::publish::{Durability, PublishedMark};
use crate::record::InodeNumber;
use crate::replica_file::is_lost;

/// A message from a client to the offload process of its node. The first message of a connection is `Attach` or `Reattach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ClientMessage {
    /// Attaches a new client. The reply is `Attached` or `Refused`.
    Attach {
        /// The volume.
        volume: String,
    },
    /// Attaches a client again after its offload process has died. The reply is `Reattached` or `Refused`.
    Reattach {
        /// The volume.
        volume: String,
        /// The client's number, from `Attached`.
        client: u16,
        /// The term in which the client may write; none if it may not.
        term: Option<u32>,
        /// Identity of the shared tree that the client has open.
        tree: u64,
        /// The point up to which the client has applied the log of each client, by client number.
        applied: Vec<LogPoint>,
    },
    /// The client has read the namespace from the shared tree, so publishing may continue. Follows `Attached` and
    /// `Reattached`.
    Loaded,
    /// The volume is mounted. A new client sends this after `Loaded`.
    Mounted,
    /// The log has new records. Only a hint: the offload process also looks for them by itself.
    Appended,
    /// Requests `Committed` when each live replica has the log up to this point, for fsync(2).
    Commit(LogPoint),
    /// Requests `SpaceChecked` when each live replica has published the log up to this point, or when the file system of one
    /// is full.
    CheckSpace(LogPoint),
    /// Requests the write permission. The reply is `WriteGranted`, after every `Changed` of earlier writers.
    AcquireWrite,
    /// The reply to `ReleaseWrite`: the client appends nothing before the next `WriteGranted`.
    Released,
    /// Requests `Refreshed`, for open(2). It follows every `Changed` with records that other clients had logged before this
    /// request.
    Refresh {
        /// Number of the request, repeated in the reply.
        request: u64,
    },
}

/// A message from the offload process to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum OffloadMessage {
    /// The reply to `Attach`. Nothing is published until `Loaded` arrives.
    Attached(Box<AttachedClient>),
    /// The reply to `Reattach`: the published mark of each client's log on this node, by client number. If the client has
    /// not applied another client's log exactly up to its mark, it reads the namespace again. Nothing is published until
    /// `Loaded` arrives.
    Reattached(Vec<PublishedMark>),
    /// The client may not use the volume, or may not use it any longer. The text has the reason, for the user.
    Refused(String),
    /// This client's log is published up to `mark` on each live replica.
    Published {
        /// End of the published part.
        mark: PublishedMark,
        /// The least free space of a live replica, measured after this part was published.
        space: TreeSpace,
    },
    /// The disk of a replica is full, so the client does not become the writer. It refuses the calls that wait for the
    /// permission.
    DiskFull,
    /// The reply to `CheckSpace`: the least free space of a live replica now.
    SpaceChecked(TreeSpace),
    /// A change set of another client was published on this node.
    Changed(Box<ForeignChange>),
    /// The reply to `Commit`. One reply is for all commits up to its point.
    Committed(LogPoint),
    /// The reply to `AcquireWrite`: the client may write.
    WriteGranted {
        /// The epoch of the next records.
        term: u32,
        /// The least free space of a live replica; none if the last report was ample, or if no report arrived in time.
        space: Option<TreeSpace>,
    },
    /// Another client wants to write. The reply is `Released`.
    ReleaseWrite,
    /// The reply to `Refresh`.
    Refreshed {
        /// Number of the request.
        request: u64,
    },
    /// An attempt to reply to `Refresh` has failed because the catalog cannot be read. Attempts continue.
    RefreshDelayed {
        /// Number of the request.
        request: u64,
    },
    /// An attempt to reply to `AcquireWrite` has failed because the catalog cannot be read. Attempts continue.
    GrantDelayed,
}

/// The state from which a new client starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachedClient {
    /// Number of the client and of its log.
    pub(super) client: u16,
    /// Path of the client's log, which ends at the point of its mark.
    pub(super) log_path: PathBuf,
    /// Published mark of each client's log on this node, by client number.
    pub(super) marks: Vec<PublishedMark>,
    /// Inodes without entries that no client has open: this client drops them when it may write.
    pub(super) unlinked: Vec<InodeNumber>,
    /// Whether the volume has one replica. Its number of replicas never changes.
    pub(super) is_only_replica: bool,
}

/// A change set of another client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForeignChange {
    /// The client that has made the changes.
    pub(super) client: u16,
    /// The changes, without data: the data is in the shared tree.
    pub(super) changes: ChangeSet,
}

/// A request from the offload process to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishRequest {
    /// The volume.
    pub(super) volume: String,
    /// Id of the volume, which distinguishes it from an earlier volume with this name.
    pub(super) volume_id: u64,
    /// Durability of the volume.
    pub(super) durability: Durability,
    /// The client of the log.
    pub(super) client: u16,
    /// The changes to apply.
    pub(super) changes: ChangeSet,
}

/// A message from the worker to the offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WorkerAnswer {
    /// The worker still executes the request. Sent once per `WORKER_ALIVE_INTERVAL` until the result follows.
    Working,
    /// The change set is published. This is the new mark of the log.
    Done(PublishedMark),
    /// The change set is not published. The request may be repeated.
    Failed {
        /// The cause.
        reason: String,
        /// The kind of the failure.
        kind: PublishFailureKind,
    },
}

/// The kinds of failures to publish a change set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PublishFailureKind {
    /// The file system of the shared tree is full.
    DiskFull,
    /// The shared tree lacks a part, or has another state than its mark says.
    DamagedTree,
    /// The request may succeed later.
    Other,
}

impl PublishFailureKind {
    /// The kind of an error of `PublisherTable::publish`.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull => Self::DiskFull,
            io::ErrorKind::InvalidData => Self::DamagedTree,
            _ if is_lost(error) => Self::DamagedTree,
            _ => Self::Other,
        }
    }

    /// The error of a worker that has reported this kind.
    pub(super) fn error(self, reason: String) -> io::Error {
        let kind = match self {
            Self::DiskFull => io::ErrorKind::StorageFull,
            Self::DamagedTree => io::ErrorKind::InvalidData,
            Self::Other => io::ErrorKind::Other,
        };
        io::Error::new(kind, reason)
    }
}
