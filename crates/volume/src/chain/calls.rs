//! The calls between the offload processes of different nodes.

use farfork_cluster::catalog::VolumeName;
use farfork_rpc::{DeferredReply, TypedCall};
use farfork_wire::token::TOKEN_BYTES;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::path::PathVersion;
use super::tree_space::TreeSpace;
use crate::log::LogPoint;
use crate::process::{LastCheck, LogStatus};
use crate::publish::{DataPart, Digest, InodeDigest, PublishedMark, TreeDigest, TreePart};
use crate::record::InodeNumber;

/// Names a volume, and tells it from an earlier one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeKey {
    /// Its name.
    pub name: VolumeName,
    /// Its id.
    pub id: u64,
}

/// Prepares a replica to receive a client's log from its predecessor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLog {
    /// The volume.
    pub volume: VolumeKey,
    /// Of the predecessor's record of the volume.
    pub revision: u64,
    /// The path as the predecessor knows it.
    pub path: PathVersion,
    /// The client of the log.
    pub client: u16,
    /// The predecessor has published the log up to here. A replica that catches up begins here.
    pub published: PublishedMark,
    /// The predecessor has the log up to here. What the replica has beyond was never acknowledged, and does not count.
    pub stored: LogPoint,
}

/// Whether the replica takes the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenAnswer {
    /// It does.
    Opened(OpenedLog),
    /// The log is new, and the disk has no space for it.
    DiskFull,
    /// The replica knows another path of the log.
    OtherPath,
    /// The replica has published what the predecessor does not have.
    PublishedAhead,
}

/// Where the replica takes the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedLog {
    /// Number of the region of the ring. A later `OpenLog` revokes it.
    pub region: u64,
    /// Opens the region.
    pub token: [u8; TOKEN_BYTES],
    /// The replica has the log up to here.
    pub stored: LogPoint,
}

/// The log has new bytes: validate them, and have them acknowledged by all later members. Without new bytes, it asks how far
/// they have published the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendLog {
    /// The volume.
    pub volume: VolumeKey,
    /// Of the predecessor's record of the volume.
    pub revision: u64,
    /// The path as the predecessor knows it.
    pub path: PathVersion,
    /// The client of the log.
    pub client: u16,
    /// Its new end.
    pub end: LogPoint,
    /// A thread waits until the log is published up to `end`.
    pub is_urgent: bool,
    /// The answer has the space of each later member as it is now, not as it was when the member said so last.
    pub needs_space: bool,
    /// The last bytes before `end`, if they are few. Others were written before.
    pub bytes: LogBytes,
    /// The parts of the new bytes that were sent compressed, as `encode_chunks` encodes them; empty if there are none. They are in
    /// the region of `bytes`. The replica expands them before it validates the log.
    #[serde(with = "serde_bytes")]
    pub chunks: Vec<u8>,
}

/// Bytes of a log that are sent with a call. They save the round trip of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBytes {
    /// From `OpenedLog`: bytes of an earlier predecessor are refused.
    pub region: u64,
    /// Where they begin.
    pub position: u64,
    /// The bytes; may be empty.
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
}

/// Whether the replica has taken the new bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    /// It has, and so have all later ones.
    Appended(AppendedLog),
    /// The replica knows another path of the log, or has to open it again.
    OtherPath,
}

/// This replica and all later ones have the log up to the requested end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendedLog {
    /// They have published it up to here.
    pub published: LogPoint,
    /// The least space of a shared tree, when at least this was published.
    pub space: TreeSpace,
}

/// Whether a term has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TermEnd {
    /// The log is published on each live replica, and the catalog has no writer.
    Ended,
    /// The disk of a replica is full, and the log is not published there.
    DiskFull,
}

/// The head publishes what the chain has of the log of a fenced writer, and ends its term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishTerm {
    /// The volume.
    pub volume: VolumeKey,
    /// The fenced term.
    pub term: u32,
}

/// Stops publishing on a replica while another one copies its shared tree. Publishing continues after the last part, or when
/// the copy stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendTree {
    /// The volume.
    pub volume: VolumeKey,
    /// The reader's epoch of the chain.
    pub epoch: u64,
    /// The tree must have each client's log at least up to here.
    pub at_least: Vec<LogPoint>,
}

/// A tree that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentTree {
    /// Names it in `ReadTree`.
    pub loan: u64,
    /// How far the tree has each client's log.
    pub marks: Vec<PublishedMark>,
}

/// The next part of a tree that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTree {
    /// The volume.
    pub volume: VolumeKey,
    /// From `LentTree`.
    pub loan: u64,
}

/// Stops publishing on a live replica at exactly these points, so that it can be compared with the others. Publishing continues
/// after `ReleaseTree`, or when no call has named the hold for a while. The answer is how far the replica has published each log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTree {
    /// The volume.
    pub volume: VolumeKey,
    /// The caller's epoch of the chain.
    pub epoch: u64,
    /// The caller has chosen this number.
    pub hold: u64,
    /// Publish up to here, and no further. Empty: no further than now.
    pub points: Vec<LogPoint>,
}

/// Computes the digest of each inode of a tree that is held. `ReadInodeDigests` reads them, also after `ReleaseTree`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestTree {
    /// The volume.
    pub volume: VolumeKey,
    /// From `HoldTree`.
    pub hold: u64,
}

/// The shared tree of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DigestedTree {
    /// It has this digest.
    Readable {
        /// Of all inodes.
        digest: TreeDigest,
        /// Paths of files next to `tree` that are none of the volume's. At most `DIFFERENCES_MAX`.
        foreign: Vec<String>,
    },
    /// It cannot be read.
    Unreadable {
        /// Why.
        reason: String,
    },
}

/// The next digests of `DigestTree`, by number. None follow an empty answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInodeDigests {
    /// The volume.
    pub volume: VolumeKey,
    /// From `HoldTree`.
    pub hold: u64,
    /// The number before the first one.
    pub after: u64,
}

/// Digests of parts of files, also while the replica publishes. One that cannot be read has none. The answer has at least one
/// digest, and may end before the last part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestData {
    /// The volume.
    pub volume: VolumeKey,
    /// From `HoldTree`.
    pub hold: u64,
    /// The parts.
    pub parts: Vec<DataPart>,
}

/// Validates each log from the end of its published part on, and the file of its mark, while the tree is held. The answer has an
/// element for each client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidateLogs {
    /// The volume.
    pub volume: VolumeKey,
    /// From `HoldTree`.
    pub hold: u64,
}

/// Damage of a client's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDamage {
    /// Where the valid part of the log ends, if that is before its end.
    pub valid_end: Option<LogPoint>,
    /// Why the file of the published mark does not have the mark, if it does not.
    pub mark: Option<String>,
}

/// Publishing continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseTree {
    /// The volume.
    pub volume: VolumeKey,
    /// From `HoldTree`.
    pub epoch: u64,
    /// From `HoldTree`.
    pub hold: u64,
    /// The check has ended, and another one may begin.
    pub is_end: bool,
}

/// Paths in the volume of inodes; none for one that no entry leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindPaths {
    /// The volume.
    pub volume: VolumeKey,
    /// The inodes.
    pub inodes: Vec<InodeNumber>,
}

/// Creates an empty replica. One of the same id that exists stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReplica(pub VolumeKey);

/// Removes a replica and everything that it has. One that does not exist is a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropReplica(pub VolumeKey);

/// How far the logs of a replica are, and the last check by its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribeReplica(pub VolumeKey);

/// The state of a node's replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDescription {
    /// By the client's number.
    pub logs: Vec<LogStatus>,
    /// Free space of the file system of the shared tree. None when there is no tree.
    pub free_bytes: Option<u64>,
    /// The file system is full: records are not published, or writers get ENOSPC. Never for a replica that is not live.
    pub is_full: bool,
    /// The last check of the volume that the node has made, or that was saved there.
    pub last_check: Option<LastCheck>,
    /// A check has a hold of the tree.
    pub is_checked: bool,
}

/// Keeps the result of a check that a node without a replica has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveLastCheck {
    /// The volume.
    pub volume: VolumeKey,
    /// The result.
    pub last: LastCheck,
}

/// Whether a client of the node has the volume mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HasClient(pub VolumeKey);

/// Whether programs of the node can use its mount of the volume now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HasMount(pub VolumeKey);

/// Ends the term of the node's client. A term that is over already has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseWriter {
    /// The volume.
    pub volume: VolumeKey,
    /// The term to end.
    pub term: u32,
}

/// The answer follows when everything that the node's client has logged until now is published on each live replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishLog(pub VolumeKey);

/// The answer follows when each live replica has everything that the node's client has logged until now, and is its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitLog(pub VolumeKey);

macro_rules! typed_calls {
    ($($request:ident = $id:literal -> $reply:ty),* $(,)?) => {$(
        impl TypedCall for $request {
            const ID: u32 = $id;
            type Request = Self;
            type Reply = $reply;
        }
    )*};
}

typed_calls! {
    OpenLog = 1 -> OpenAnswer,
    AppendLog = 2 -> AppendAnswer,
    CreateReplica = 3 -> (),
    DropReplica = 4 -> (),
    DescribeReplica = 5 -> ReplicaDescription,
    HasClient = 6 -> bool,
    ReleaseWriter = 7 -> TermEnd,
    PublishLog = 8 -> (),
    FinishTerm = 9 -> TermEnd,
    LendTree = 10 -> LentTree,
    ReadTree = 11 -> TreePart,
    HoldTree = 12 -> Vec<LogPoint>,
    DigestTree = 13 -> DigestedTree,
    ReadInodeDigests = 14 -> Vec<InodeDigest>,
    DigestData = 15 -> Vec<Option<Digest>>,
    ValidateLogs = 16 -> Vec<LogDamage>,
    ReleaseTree = 17 -> (),
    FindPaths = 18 -> Vec<Option<String>>,
    HasMount = 19 -> bool,
    SaveLastCheck = 20 -> (),
    CommitLog = 21 -> LogPoint,
}

/// A request about one volume.
pub trait VolumeRequest {
    /// The volume.
    fn volume(&self) -> &VolumeKey;
}

macro_rules! volume_requests {
    ($($request:ident.$key:tt),* $(,)?) => {$(
        impl VolumeRequest for $request {
            fn volume(&self) -> &VolumeKey {
                &self.$key
            }
        }
    )*};
}

volume_requests! {
    OpenLog.volume,
    DescribeReplica.0,
    ReleaseWriter.volume,
    PublishLog.0,
    CommitLog.0,
    FinishTerm.volume,
    LendTree.volume,
    ReadTree.volume,
    HoldTree.volume,
    DigestTree.volume,
    ReadInodeDigests.volume,
    DigestData.volume,
    ValidateLogs.volume,
    ReleaseTree.volume,
    FindPaths.volume,
    HasMount.0,
    SaveLastCheck.volume,
}

/// Decodes the request of a deferred handler.
///
/// # Errors
/// The text for the caller.
pub fn decode_request<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    postcard::from_bytes(payload).map_err(|error| format!("the request cannot be decoded: {error}"))
}

/// Answers a typed call later.
pub fn answer_call<C: TypedCall>(reply: DeferredReply, result: Result<C::Reply, String>) {
    match result.and_then(|answer| postcard::to_stdvec(&answer).map_err(|error| error.to_string())) {
        Ok(payload) => reply.answer(payload),
        Err(reason) => reply.refuse(&reason),
    }
}
