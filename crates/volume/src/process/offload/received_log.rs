//! The receiving side of a log: the memory region that the predecessor writes, and its unanswered requests.

use std::io;
use std::sync::Arc;

use farfork_fabric::{Region, Registration};
use farfork_rpc::DeferredReply;
use farfork_wire::descriptor::ExtentId;

use super::volume::{LogProgress, ReplicatedVolume};
use crate::chain::calls::{
    AppendAnswer, AppendLog, AppendedLog, LogBytes, StoreAnswer, StoreLog, StoredLog, answer_call,
};
use crate::chain::{AnnouncedRange, ChunkBuffers, CompressedChunk, LogRegion, PathVersion, decode_chunks};
use crate::log::LogPoint;

/// The ring of a log, open for its predecessor.
pub(super) struct OpenRegion {
    pub(super) number: u64,
    pub(super) memory: Arc<LogRegion>,
    /// Lets the predecessor write to the region without a call, as long as this value exists.
    pub(super) registration: Registration,
}

impl OpenRegion {
    /// Writes bytes that were sent within a call to the ring.
    pub(super) fn write(&self, bytes: &LogBytes) -> io::Result<()> {
        let offset = bytes.position % self.memory.ring_bytes;
        let until_end = usize::try_from(self.memory.ring_bytes - offset).unwrap_or(usize::MAX);
        let (until_end, rest) = bytes.data.split_at(until_end.min(bytes.data.len()));
        self.memory.write(ExtentId(0), offset, until_end)?;
        if rest.is_empty() { Ok(()) } else { self.memory.write(ExtentId(0), 0, rest) }
    }
}

/// Chunks that the predecessor has sent compressed.
pub(super) struct PendingExpansion {
    region: Arc<LogRegion>,
    exported: Arc<dyn Region>,
    chunks: Vec<CompressedChunk>,
}

impl PendingExpansion {
    /// Expands the chunks in the log. If this fails, the copier finds the records invalid.
    pub(super) fn execute(&self, volume: &ReplicatedVolume, buffers: &mut ChunkBuffers) {
        if let Err(error) = self.region.expand(&self.chunks, &*self.exported, buffers) {
            tracing::warn!(%error, volume = %volume.key.name, "log data of the predecessor cannot be expanded");
        }
    }
}

/// Why bytes of a predecessor are refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AppendRefusal {
    /// The region is no longer open, so the sender has an old path of the log.
    OtherPath,
    /// The bytes or the list of chunks are invalid, or the log cannot be written. Contains the error text.
    Invalid(String),
}

/// An unanswered request of the predecessor.
pub(super) struct ReceivedRequest {
    /// Chunks to expand before the log is validated up to the announced end.
    pub(super) expansion: Option<PendingExpansion>,
    pub(super) reply: AppendReply,
}

/// The reply to a predecessor.
pub(super) enum AppendReply {
    /// To `AppendLog`.
    Append(DeferredReply),
    /// To `StoreLog`.
    Store(DeferredReply),
}

impl ReceivedRequest {
    /// Replies that this node has another path of the log.
    pub(super) fn refuse_path(self) {
        self.reply.refuse_path();
    }

    /// Refuses the bytes.
    pub(super) fn refuse(self, reason: &str) {
        self.reply.refuse(reason);
    }
}

impl AppendReply {
    /// Sends the progress of the log. `AppendLog` gets a reply only if all later nodes have the log, with their space.
    pub(super) fn send(self, progress: StoredLog) {
        match (self, progress.space) {
            (Self::Append(reply), Some(space)) if progress.is_complete => {
                let appended = AppendedLog { published: progress.published, space };
                answer_call::<AppendLog>(reply, Ok(AppendAnswer::Appended(appended)));
            }
            (Self::Append(reply), _) => reply.refuse("not all later members have the log"),
            (Self::Store(reply), _) => answer_call::<StoreLog>(reply, Ok(StoreAnswer::Stored(progress))),
        }
    }

    /// Replies that this node has another path of the log.
    pub(super) fn refuse_path(self) {
        match self {
            Self::Append(reply) => answer_call::<AppendLog>(reply, Ok(AppendAnswer::OtherPath)),
            Self::Store(reply) => answer_call::<StoreLog>(reply, Ok(StoreAnswer::OtherPath)),
        }
    }

    /// Refuses the bytes.
    pub(super) fn refuse(self, reason: &str) {
        match self {
            Self::Append(reply) | Self::Store(reply) => reply.refuse(reason),
        }
    }
}

impl LogProgress {
    /// Writes bytes that the predecessor has sent with a call. The copier validates them.
    pub(super) fn take_bytes(&self, bytes: &LogBytes) -> Result<(), AppendRefusal> {
        if bytes.data.is_empty() {
            return Ok(());
        }
        let region = self.region_of(bytes.region)?;
        region.write(bytes).map_err(|error| AppendRefusal::Invalid(format!("the log cannot be written: {error}")))
    }

    /// Decodes the list of chunks that are compressed in a region, up to an announced end. The copier expands them.
    pub(super) fn accept_chunks(
        &self,
        region: u64,
        list: &[u8],
        end: LogPoint,
    ) -> Result<Option<PendingExpansion>, AppendRefusal> {
        if list.is_empty() {
            return Ok(None);
        }
        let open = self.region_of(region)?;
        let (region, exported) = (Arc::clone(&open.memory), open.registration.region());
        let positions = self.copied.chain.stored().position..end.position;
        let announced = AnnouncedRange { positions, ring_bytes: region.ring_bytes };
        let chunks = decode_chunks(list, &announced).map_err(|error| AppendRefusal::Invalid(error.to_string()))?;
        Ok(Some(PendingExpansion { region, exported, chunks }))
    }

    /// Returns the open region, if it has this number.
    fn region_of(&self, number: u64) -> Result<&OpenRegion, AppendRefusal> {
        self.region.as_ref().filter(|region| region.number == number).ok_or(AppendRefusal::OtherPath)
    }

    /// Takes the pending expansions of a path, in the order of the log.
    pub(super) fn take_expansions(&mut self, path: PathVersion) -> Vec<PendingExpansion> {
        self.copied.requests_of(path).filter_map(|request| request.expansion.take()).collect()
    }
}
