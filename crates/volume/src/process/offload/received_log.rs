//! The bytes of a log that the predecessor sends: the memory in which it writes them, and its requests that are not answered.

use std::io;
use std::sync::Arc;

use farfork_fabric::{Region as _, Registration};
use farfork_rpc::DeferredReply;
use farfork_wire::descriptor::ExtentId;

use super::space::LaterSpace;
use super::volume::{LogProgress, ReplicatedVolume};
use crate::chain::calls::LogBytes;
use crate::chain::{AnnouncedRange, CompressedChunk, LogRegion, PathVersion, decode_chunks};
use crate::log::LogPoint;

/// The ring of a log, open for its predecessor.
pub(super) struct OpenRegion {
    pub(super) number: u64,
    pub(super) memory: Arc<LogRegion>,
    /// Lets the predecessor write without a call.
    pub(super) _registration: Registration,
}

impl OpenRegion {
    /// Takes bytes that were sent with a call.
    pub(super) fn write(&self, bytes: &LogBytes) -> io::Result<()> {
        let offset = bytes.position % self.memory.ring_bytes;
        let until_end = usize::try_from(self.memory.ring_bytes - offset).unwrap_or(usize::MAX);
        let (until_end, rest) = bytes.data.split_at(until_end.min(bytes.data.len()));
        self.memory.write(ExtentId(0), offset, until_end)?;
        if rest.is_empty() { Ok(()) } else { self.memory.write(ExtentId(0), 0, rest) }
    }
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        self.memory.revoke();
    }
}

/// Chunks that the predecessor has sent compressed.
pub(super) struct PendingExpansion {
    region: Arc<LogRegion>,
    chunks: Vec<CompressedChunk>,
}

impl PendingExpansion {
    /// Expands them in the log. If that fails, the records of the predecessor are not valid.
    pub(super) fn execute(&self, volume: &ReplicatedVolume) {
        if let Err(error) = self.region.expand(&self.chunks) {
            tracing::warn!(%error, volume = %volume.key.name, "log data of the predecessor cannot be expanded");
        }
    }
}

/// The reason why bytes of a predecessor are not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AppendRefusal {
    /// Another predecessor writes the log by now, so the sender knows an old path.
    OtherPath,
    /// The bytes or the list of chunks are invalid, or the log cannot be written. Has the text of the error.
    Invalid(String),
}

/// A request of the predecessor.
pub(super) struct PendingAppend {
    /// A request for an earlier path counts for nothing: the log may belong to a term that has ended since.
    pub(super) path: PathVersion,
    pub(super) end: LogPoint,
    /// To do before the log is validated up to the end.
    pub(super) expansion: Option<PendingExpansion>,
    /// The report of space that the answer needs.
    pub(super) space_request: u64,
    pub(super) reply: DeferredReply,
}

impl PendingAppend {
    /// Whether each later node has the log up to its end, and has reported its space if that was asked for.
    pub(super) fn is_complete(&self, committed: LogPoint, later_space: &LaterSpace) -> bool {
        self.end <= committed && later_space.is_answered(self.space_request)
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

    /// Accepts a list of chunks that are compressed in a region, up to an announced end. The copier expands them.
    pub(super) fn accept_chunks(
        &self,
        region: u64,
        list: &[u8],
        end: LogPoint,
    ) -> Result<Option<PendingExpansion>, AppendRefusal> {
        if list.is_empty() {
            return Ok(None);
        }
        let region = Arc::clone(&self.region_of(region)?.memory);
        let positions = self.chain.stored().position..end.position;
        let announced = AnnouncedRange { positions, ring_bytes: region.ring_bytes };
        let chunks = decode_chunks(list, &announced).map_err(|error| AppendRefusal::Invalid(error.to_string()))?;
        Ok(Some(PendingExpansion { region, chunks }))
    }

    /// The open region of this number.
    fn region_of(&self, number: u64) -> Result<&OpenRegion, AppendRefusal> {
        self.region.as_ref().filter(|region| region.number == number).ok_or(AppendRefusal::OtherPath)
    }

    /// The expansions that are due on a path, in the order of the log.
    pub(super) fn take_expansions(&mut self, path: PathVersion) -> Vec<PendingExpansion> {
        let appends = self.appends.iter_mut().filter(|append| append.path == path);
        appends.filter_map(|append| append.expansion.take()).collect()
    }
}
