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

/// Identifies a volume. The id distinguishes it from an earlier volume with the same name.
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
    /// Revision of the predecessor's record of the volume.
    pub revision: u64,
    /// The path of the log in the predecessor's record.
    pub path: PathVersion,
    /// The client of the log.
    pub client: u16,
    /// The predecessor has published the log up to this mark. A replica that catches up begins at it.
    pub published: PublishedMark,
    /// End of the predecessor's log. Records of the replica after this point were never acknowledged, and are ignored.
    pub stored: LogPoint,
}

/// The reply to `OpenLog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenAnswer {
    /// The replica accepts the log.
    Opened(OpenedLog),
    /// The replica does not have the log yet, and its disk has no space for a new one.
    DiskFull,
    /// The path of the log in the replica's record differs from the requested one.
    OtherPath,
    /// The replica has published records that the predecessor does not have.
    PublishedAhead,
}

/// The memory region in which the replica receives the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedLog {
    /// Number of the region, which contains the ring. A later `OpenLog` revokes the region.
    pub region: u64,
    /// The secret that permits writes to the region.
    pub token: [u8; TOKEN_BYTES],
    /// End of the replica's log.
    pub stored: LogPoint,
}

/// Announces new bytes of a log. The replica validates them, and replies when all later members have them, too. Without new
/// bytes, the call only requests how far the members have published the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendLog {
    /// The volume.
    pub volume: VolumeKey,
    /// Revision of the predecessor's record of the volume.
    pub revision: u64,
    /// The path of the log in the predecessor's record.
    pub path: PathVersion,
    /// The client of the log.
    pub client: u16,
    /// The new end of the log.
    pub end: LogPoint,
    /// A thread waits until the log is published up to `end`.
    pub is_urgent: bool,
    /// The reply must use the current free space of each later member, not the last reported one.
    pub needs_space: bool,
    /// The last bytes before `end`, if they are few. Otherwise empty: the predecessor has already written them into the
    /// region.
    pub bytes: LogBytes,
    /// The parts of the new bytes that were sent compressed, as `encode_chunks` encodes them; empty if there are none. They
    /// are in the region of `bytes`. The replica expands them before it validates the log.
    #[serde(with = "serde_bytes")]
    pub chunks: Vec<u8>,
}

/// Bytes of a log that are sent within a call. This saves the round trip of a separate write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogBytes {
    /// The region from `OpenedLog`. If the replica has opened another region since, it refuses the bytes.
    pub region: u64,
    /// Position of the first byte in the endless log.
    pub position: u64,
    /// The bytes of the log; may be empty.
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
}

/// The reply to `AppendLog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    /// The replica and all later ones have the new bytes.
    Appended(AppendedLog),
    /// The path of the log in the replica's record differs, or the predecessor must send `OpenLog` again.
    OtherPath,
}

/// This replica and all later ones have the log up to the requested end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendedLog {
    /// All of these replicas have published the log up to this point.
    pub published: LogPoint,
    /// The least free space of their shared trees, measured after `published` was reached.
    pub space: TreeSpace,
}

/// As `AppendLog`, for logs that take long to send: the reply does not wait until all later members have the new bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreLog {
    /// The new bytes.
    pub append: AppendLog,
    /// The predecessor has more records after `append.end`. The reply waits only until this replica has validated the bytes.
    pub has_more: bool,
    /// Without `has_more`: longest wait for the later members, in milliseconds.
    pub wait_ms: u32,
}

/// The reply to `StoreLog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreAnswer {
    /// The replica has validated the new bytes.
    Stored(StoredLog),
    /// As `AppendAnswer::OtherPath`.
    OtherPath,
}

/// A replica has validated its log up to the requested end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLog {
    /// The replica and all later ones have the log up to this point.
    pub committed: LogPoint,
    /// All of these replicas have published the log up to this point.
    pub published: LogPoint,
    /// As in `AppendedLog`. None if a later member has never reported its space.
    pub space: Option<TreeSpace>,
    /// Whether all later members have the new bytes, and have reported their space if `needs_space` was set.
    pub is_complete: bool,
}

/// The reply to a request to end a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TermEnd {
    /// The log is published on each live replica, and the catalog has no writer.
    Ended,
    /// The disk of a replica is full, and the log is not published there.
    DiskFull,
}

/// Makes the head publish all records of a fenced writer that the chain has, and then end the term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishTerm {
    /// The volume.
    pub volume: VolumeKey,
    /// The fenced term.
    pub term: u32,
}

/// Stops publishing on a replica while another one copies its shared tree. Publishing continues after the last part is read,
/// or when no part was read for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendTree {
    /// The volume.
    pub volume: VolumeKey,
    /// Epoch of the chain in the reader's record.
    pub epoch: u64,
    /// Points, by client number: the tree must have each client's log at least up to its point.
    pub at_least: Vec<LogPoint>,
}

/// The reply to `LendTree`: a shared tree that the caller may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentTree {
    /// Number of the loan, for `ReadTree`.
    pub loan: u64,
    /// Published mark of each client's log in this tree, by client number.
    pub marks: Vec<PublishedMark>,
}

/// Reads the next part of a lent tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTree {
    /// The volume.
    pub volume: VolumeKey,
    /// Number of the loan, from `LentTree`.
    pub loan: u64,
}

/// Stops publishing on a live replica at exactly `points`, so that its tree can be compared with those of other replicas.
/// Publishing continues after `ReleaseTree`, or when no call has named the hold for some time. The reply is the published
/// point of each log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldTree {
    /// The volume.
    pub volume: VolumeKey,
    /// Epoch of the chain in the caller's record.
    pub epoch: u64,
    /// Number of the hold, which the caller chooses.
    pub hold: u64,
    /// The point at which to stop publishing each log, by client number. Empty: stop at the current points.
    pub points: Vec<LogPoint>,
}

/// Computes the digest of each inode of a held tree. `ReadInodeDigests` returns the digests until the check has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestTree {
    /// The volume.
    pub volume: VolumeKey,
    /// Number of the hold, from `HoldTree`.
    pub hold: u64,
}

/// The reply to `DigestTree`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DigestedTree {
    /// The shared tree was read.
    Readable {
        /// Digest of all inodes.
        digest: TreeDigest,
        /// Paths of files in `inodes` and `orphans` that do not belong to the volume. At most `DIFFERENCES_MAX`.
        foreign: Vec<String>,
    },
    /// The shared tree cannot be read.
    Unreadable {
        /// The cause.
        reason: String,
    },
}

/// Reads the next digests that `DigestTree` has computed, in the order of inode numbers. An empty reply marks the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInodeDigests {
    /// The volume.
    pub volume: VolumeKey,
    /// Number of the hold, from `HoldTree`.
    pub hold: u64,
    /// The reply begins after this inode number.
    pub after: u64,
}

/// Computes digests of parts of files, even while the replica publishes. A part that cannot be read has the digest `None`.
/// The reply has at least one element, and may end before the last part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestData {
    /// The volume.
    pub volume: VolumeKey,
    /// Number of the hold, from `HoldTree`.
    pub hold: u64,
    /// The parts to digest.
    pub parts: Vec<DataPart>,
}

/// Validates the unpublished part of each log and the file of its mark, while the tree is held. The reply has one element
/// per client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidateLogs {
    /// The volume.
    pub volume: VolumeKey,
    /// Number of the hold, from `HoldTree`.
    pub hold: u64,
}

/// Damage of a client's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDamage {
    /// End of the valid part of the log; none if the log is not damaged.
    pub valid_end: Option<LogPoint>,
    /// Why the file of the published mark is wrong; none if it is correct.
    pub mark: Option<String>,
}

/// Lets the replica publish again, and ends the hold if `is_end` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseTree {
    /// The volume.
    pub volume: VolumeKey,
    /// Epoch of the chain in the caller's record.
    pub epoch: u64,
    /// Number of the hold, from `HoldTree`.
    pub hold: u64,
    /// The check has ended, and another one may begin.
    pub is_end: bool,
}

/// Finds one path in the volume for each inode. An inode without a directory entry has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindPaths {
    /// The volume.
    pub volume: VolumeKey,
    /// The inodes.
    pub inodes: Vec<InodeNumber>,
}

/// Creates an empty replica. If a replica with the same id exists, it is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReplica(pub VolumeKey);

/// Removes a replica and all its files. Succeeds if the replica does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropReplica(pub VolumeKey);

/// Returns the state of a node's replica: its logs, its free space and the last check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribeReplica(pub VolumeKey);

/// The state of a node's replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDescription {
    /// State of each log, by client number.
    pub logs: Vec<LogStatus>,
    /// Free space of the file system of the shared tree, in bytes. None if statvfs(3) fails, as after the directory was
    /// removed.
    pub free_bytes: Option<u64>,
    /// The file system is full: records are not published, or writers get ENOSPC. Always false for a replica that is not
    /// live.
    pub is_full: bool,
    /// Result of the last check that the node has made, or has saved for another node.
    pub last_check: Option<LastCheck>,
    /// A check of the replica is running.
    pub is_checked: bool,
}

/// Saves the result of a check that a node without a replica has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveLastCheck {
    /// The volume.
    pub volume: VolumeKey,
    /// The result.
    pub last: LastCheck,
}

/// Returns whether a client of the node has the volume mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HasClient(pub VolumeKey);

/// Returns whether programs of the node can use its mount of the volume now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HasMount(pub VolumeKey);

/// Ends the term of the node's client. Succeeds if the term has already ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseWriter {
    /// The volume.
    pub volume: VolumeKey,
    /// The term to end.
    pub term: u32,
}

/// Waits until all records that the node's client has logged before this call are published on each live replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishLog(pub VolumeKey);

/// Returns the end of all records that the node's client has logged before this call. Each live replica has these records when
/// one of them has published them.
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
    // 22 was `StoreLog` whose reply had no `is_complete`.
    StoreLog = 23 -> StoreAnswer,
}

/// Whether a call that is executed twice has the same result as one execution. Not true of calls that begin, continue or end
/// the sending of a log or of a tree.
pub(super) fn is_idempotent(call: u32) -> bool {
    matches!(
        call,
        CreateReplica::ID
            | DropReplica::ID
            | DescribeReplica::ID
            | HasClient::ID
            | HasMount::ID
            | ReleaseWriter::ID
            | PublishLog::ID
            | FinishTerm::ID
            | SaveLastCheck::ID
            | CommitLog::ID
    )
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
/// An error text for the caller.
pub fn decode_request<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    postcard::from_bytes(payload).map_err(|error| format!("the request cannot be decoded: {error}"))
}

/// Sends the reply to a deferred typed call.
pub fn answer_call<C: TypedCall>(reply: DeferredReply, result: Result<C::Reply, String>) {
    match result.and_then(|answer| postcard::to_stdvec(&answer).map_err(|error| error.to_string())) {
        Ok(payload) => reply.answer(payload),
        Err(reason) => reply.refuse(&reason),
    }
}
