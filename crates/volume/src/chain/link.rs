//! A connection to the next member of the path of one log: writes the bytes of the log, and has them acknowledged.

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

/// So many bytes are sent with the call that announces them. Above, a write without a copy into the call is faster.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// One write of many. Larger ones leave the cache of a processor between their copies: 256 KiB were a tenth slower.
const WRITE_BYTES: u64 = 64 << 10;
const _: () = assert!(INLINE_BYTES_MAX <= CHUNK_BYTES_MAX as u64 && WRITE_BYTES <= CHUNK_BYTES_MAX as u64);
/// Writes in flight: they cover the round trip of a fast network.
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
    /// The member knows another path of the log: it, or this node, has not read the latest record of the volume.
    #[error("the log takes another path by now")]
    OtherPath,
    /// The member has published what this node does not have.
    #[error("the node has published more of the log than this one has")]
    PublishedAhead,
    /// This process cannot connect or wait.
    #[error("cannot connect to the next replica: {0}")]
    Connect(#[from] io::Error),
}

impl ChainError {
    /// Whether the member has answered that it does not take the log, though it knows the path.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Peer(error) => error.is_refusal(),
            Self::PublishedAhead => true,
            Self::Write(_) | Self::Submit(_) | Self::DiskFull | Self::OtherPath | Self::Connect(_) => false,
        }
    }
}

/// The connection.
pub struct ChainLink {
    node: NodeName,
    path: PathVersion,
    address: Address,
    credentials: Option<Credentials>,
    /// Made with the first write: a connection that says nothing is closed.
    connection: Option<Box<dyn Connection>>,
    calls: PeerClient,
    key: Arc<SeedKey>,
    acknowledged: LogPoint,
    timeout: Duration,
}

impl ChainLink {
    /// Connects to a member, and learns how much of the log it has. Each later step may take as long as `timeout`.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
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
    /// The link then has to be opened again.
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

    /// Copies positions of the log into the member's ring. A chunk that shrinks is written compressed where it begins. Returns these.
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
                // The member is not slow while this node compresses.
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

/// Compresses bytes that are sent with a call, unless they continue at the begin of the ring.
fn compress_inline(bytes: &mut LogBytes, ring_bytes: u64, compressor: &mut LogCompressor) -> Vec<CompressedChunk> {
    let is_contiguous = bytes.position % ring_bytes + bytes.data.len() as u64 <= ring_bytes;
    if is_contiguous {
        compress_chunk(bytes.position, &mut bytes.data, compressor).into_iter().collect()
    } else {
        compressor.count_uncompressed(bytes.data.len());
        Vec::new()
    }
}

/// Replaces the data at a position by fewer bytes, if it shrinks.
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
