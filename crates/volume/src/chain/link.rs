//! A connection to the next member on the path of one log. It sends the bytes of the log, announces them, and waits for the
//! acknowledgement.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{
    Address, Completion, Connection, FabricError, SeedKey, Span, SubmitError, WriteRequest, connect_node,
};
use farfork_trust::Credentials;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

use super::calls::{AppendAnswer, AppendLog, AppendedLog, LogBytes, OpenAnswer, OpenLog};
use super::compressed_chunk::{CHUNK_BYTES_MAX, CompressedChunk, encode_chunks};
use super::compression::LogCompressor;
use super::path::PathVersion;
use super::peers::{PeerClient, PeerClients, PeerError};
use crate::log::{LogFile, LogPoint, file_offset};

/// Maximum number of bytes that are sent within the call that announces them. More bytes are sent faster by one-sided
/// writes, which need no copy into the call.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of bytes of a one-sided write. The data of a larger write leaves the processor's cache between two copies:
/// writes of 256 KiB were a tenth slower.
const WRITE_BYTES: u64 = 64 << 10;
const _: () = assert!(INLINE_BYTES_MAX <= CHUNK_BYTES_MAX as u64 && WRITE_BYTES <= CHUNK_BYTES_MAX as u64);
/// Maximum number of writes in flight: enough to cover the round trip of a fast network.
const WRITES_IN_FLIGHT_MAX: usize = 16;

/// Why a log could not be sent to the next member.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A call failed, or was refused.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] FabricError),
    /// A write was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The member has no space for a new log.
    #[error("the disk of the node is full")]
    DiskFull,
    /// The member has another path of the log: one of the two nodes has not read the latest record of the volume.
    #[error("the path of the log has changed")]
    OtherPath,
    /// The member has published records that this node does not have.
    #[error("the node has published more of the log than this one has")]
    PublishedAhead,
    /// This process cannot connect to the member, or wait for its completions.
    #[error("cannot connect to the next replica: {0}")]
    Connect(#[from] io::Error),
}

impl ChainError {
    /// Whether the member has refused the log, although both nodes have the same path.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Peer(error) => error.is_refusal(),
            Self::PublishedAhead => true,
            Self::Write(_) | Self::Submit(_) | Self::DiskFull | Self::OtherPath | Self::Connect(_) => false,
        }
    }
}

/// The connection to the next member.
pub struct ChainLink {
    node: NodeName,
    path: PathVersion,
    address: Address,
    credentials: Option<Credentials>,
    /// Made for the first write, because a connection on which nothing is sent is closed.
    connection: Option<Box<dyn Connection>>,
    calls: PeerClient,
    key: Arc<SeedKey>,
    acknowledged: LogPoint,
    timeout: Duration,
}

impl ChainLink {
    /// Opens the log on a member, and gets the end of the member's log. `timeout` limits this call and each later step.
    ///
    /// # Errors
    /// When the member cannot be reached, or refuses the log.
    pub fn open(
        peers: &PeerClients,
        node: &NodeName,
        request: &OpenLog,
        timeout: Duration,
    ) -> Result<Self, ChainError> {
        let mut calls = peers.client(node)?;
        let opened = match calls.call::<OpenLog>(request, timeout)? {
            OpenAnswer::Opened(opened) => opened,
            OpenAnswer::DiskFull => return Err(ChainError::DiskFull),
            OpenAnswer::OtherPath => return Err(ChainError::OtherPath),
            OpenAnswer::PublishedAhead => return Err(ChainError::PublishedAhead),
        };
        let address = Address::Tcp(peers.address(node)?.fabric);
        let seed = SeedId::new(node.clone(), opened.region);
        let key = Arc::new(SeedKey { seed, token: Token::from_bytes(opened.token) });
        let (node, path, acknowledged) = (node.clone(), request.path, opened.stored);
        let credentials = peers.credentials().cloned();
        Ok(Self { node, path, address, credentials, connection: None, calls, key, acknowledged, timeout })
    }

    /// The member.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// The path for which the connection was made.
    pub fn path(&self) -> PathVersion {
        self.path
    }

    /// Sends the log up to `request.end`, and waits until this member and all later ones have it. Chunks that `compressor`
    /// shrinks are sent compressed.
    ///
    /// # Errors
    /// [`ChainError`]. The caller must then open a new link.
    pub fn append(
        &mut self,
        log: &LogFile,
        mut request: AppendLog,
        compressor: &mut LogCompressor,
    ) -> Result<AppendedLog, ChainError> {
        let (from, to) = (self.acknowledged.position, self.acknowledged.max(request.end).position);
        let end = request.end;
        request.bytes = LogBytes { region: self.key.seed.number(), position: from, data: Vec::new() };
        let chunks = if to - from <= INLINE_BYTES_MAX {
            request.bytes.data = read_ring(log, from, to);
            compress_inline(&mut request.bytes, log.header().ring_bytes, compressor)
        } else {
            self.write(log, from, to, compressor)?
        };
        request.chunks = encode_chunks(&chunks);
        let answer = self.calls.call::<AppendLog>(&request, self.timeout)?;
        let AppendAnswer::Appended(appended) = answer else { return Err(ChainError::OtherPath) };
        self.acknowledged = self.acknowledged.max(end);
        Ok(appended)
    }

    /// Writes a range of the log into the member's ring. A chunk that shrinks is written compressed, at the start of its
    /// range. Returns the compressed chunks.
    fn write(
        &mut self,
        log: &LogFile,
        from: u64,
        to: u64,
        compressor: &mut LogCompressor,
    ) -> Result<Vec<CompressedChunk>, ChainError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect_node(&self.address, &self.node, self.credentials.as_ref())?),
        };
        let ring_bytes = log.header().ring_bytes;
        let mut deadline = Instant::now() + self.timeout;
        let mut position = from;
        let mut in_flight = 0;
        let mut chunks = Vec::new();
        let mut completions: Vec<Completion> = Vec::new();
        while position < to || in_flight > 0 {
            while position < to && in_flight < WRITES_IN_FLIGHT_MAX {
                let offset = position % ring_bytes;
                let bytes = (to - position).min(WRITE_BYTES).min(ring_bytes - offset);
                let mut data = Vec::with_capacity(bytes as usize);
                log.append_to(&mut data, file_offset(position, ring_bytes), bytes);
                let started = Instant::now();
                chunks.extend(compress_chunk(position, &mut data, compressor));
                // The time for compressing on this node does not count as a delay of the member.
                deadline += started.elapsed();
                let spans = vec![Span { extent: ExtentId(0), offset, bytes: data.len() as u32 }];
                let key = Arc::clone(&self.key);
                connection.submit_write(WriteRequest { tag: position, key, spans, data, deadline })?;
                position += bytes;
                in_flight += 1;
            }
            connection.poll(Instant::now(), &mut completions);
            if completions.is_empty() {
                connection.wait(connection.next_timeout())?;
            }
            for completion in completions.drain(..) {
                completion.result?;
                in_flight -= 1;
            }
        }
        Ok(chunks)
    }
}

/// Compresses bytes that are sent within a call, unless they wrap around the end of the ring.
fn compress_inline(bytes: &mut LogBytes, ring_bytes: u64, compressor: &mut LogCompressor) -> Vec<CompressedChunk> {
    let is_contiguous = bytes.position % ring_bytes + bytes.data.len() as u64 <= ring_bytes;
    if is_contiguous {
        compress_chunk(bytes.position, &mut bytes.data, compressor).into_iter().collect()
    } else {
        compressor.count_uncompressed(bytes.data.len());
        Vec::new()
    }
}

/// Replaces the data by its compressed form, if it shrinks.
fn compress_chunk(position: u64, data: &mut Vec<u8>, compressor: &mut LogCompressor) -> Option<CompressedChunk> {
    let log_bytes = data.len() as u32;
    let compressed = compressor.compress(data)?;
    data.clear();
    data.extend_from_slice(compressed);
    Some(CompressedChunk { position, log_bytes, compressed_bytes: data.len() as u32 })
}

/// The bytes between two positions of a log.
fn read_ring(log: &LogFile, from: u64, to: u64) -> Vec<u8> {
    let ring_bytes = log.header().ring_bytes;
    let lap_end = to.min(from - from % ring_bytes + ring_bytes);
    let mut data = Vec::with_capacity((to - from) as usize);
    log.append_to(&mut data, file_offset(from, ring_bytes), lap_end - from);
    log.append_to(&mut data, file_offset(lap_end, ring_bytes), to - lap_end);
    data
}
