//! A connection to the next member on the path of one log: opens the log on the member, writes bytes into the member's ring, and
//! announces them. Makes one step at a time; `copier/forwarder` decides which one.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{
    Address, Completion, Connection, FabricError, SeedKey, Span, SubmitError, WriteRequest, connect_node,
};
use farfork_trust::Credentials;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

use super::calls::{
    AppendAnswer, AppendLog, AppendedLog, LogBytes, OpenAnswer, OpenLog, StoreAnswer, StoreLog, StoredLog,
};
use super::compressed_chunk::{CHUNK_BYTES_MAX, CompressedChunk, encode_chunks};
use super::compression::LogCompressor;
use super::copier::{INLINE_BYTES_MAX, PieceAnnouncement, RecordBounds, SendFailure, TransferError, WRITE_BYTES};
use super::peers::{PeerClient, PeerClients, PeerError};
use crate::log::{LogFile, LogPoint, LogStorage as _, file_offset};
use crate::record::{HEADER_BYTES, RecordHeader};

const _: () = assert!(INLINE_BYTES_MAX <= CHUNK_BYTES_MAX as u64 && WRITE_BYTES <= CHUNK_BYTES_MAX as u64);

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
    /// The member is silent or too slow while bytes are written.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// This process cannot connect to the member, or wait for its completions.
    #[error("cannot connect to the next replica: {0}")]
    Connect(#[from] io::Error),
}

impl ChainError {
    /// The kind of the failure.
    pub fn failure(&self) -> SendFailure {
        match self {
            Self::Peer(error) if error.is_refusal() => SendFailure::Refused,
            Self::Peer(PeerError::Catalog(_)) => SendFailure::Catalog,
            Self::PublishedAhead => SendFailure::PublishedAhead,
            Self::DiskFull => SendFailure::DiskFull,
            Self::OtherPath => SendFailure::OtherPath,
            Self::Peer(_) | Self::Write(_) | Self::Submit(_) | Self::Transfer(_) | Self::Connect(_) => {
                SendFailure::Unanswered
            }
        }
    }
}

/// The connection to the next member.
pub struct ChainLink {
    node: NodeName,
    address: Address,
    credentials: Option<Credentials>,
    /// Made for the first write, because a connection on which nothing is sent is closed.
    connection: Option<Box<dyn Connection>>,
    calls: PeerClient,
    key: Arc<SeedKey>,
    /// The compressed chunks that are written and not announced yet.
    chunks: Vec<CompressedChunk>,
    /// The member knows `StoreLog`. Earlier versions do not.
    knows_pieces: bool,
}

impl ChainLink {
    /// Opens the log on a member. Returns the end of the member's log, too.
    ///
    /// # Errors
    /// When the member cannot be reached, or refuses the log.
    pub fn open(
        peers: &PeerClients,
        node: &NodeName,
        request: &OpenLog,
        timeout: Duration,
    ) -> Result<(Self, LogPoint), ChainError> {
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
        let (node, credentials, chunks) = (node.clone(), peers.credentials().cloned(), Vec::new());
        let (connection, knows_pieces) = (None, true);
        let link = Self { node, address, credentials, connection, calls, key, chunks, knows_pieces };
        Ok((link, opened.stored))
    }

    /// Begins to write positions of the log into the member's ring. A chunk that shrinks is written compressed, at the start of
    /// its range. Returns the time for compressing it.
    ///
    /// # Errors
    /// [`ChainError`]. The caller must then open a new link.
    pub fn write(
        &mut self,
        log: &LogFile,
        positions: Range<u64>,
        timeout: Duration,
        compressor: &mut LogCompressor,
    ) -> Result<Duration, ChainError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect_node(&self.address, &self.node, self.credentials.as_ref())?),
        };
        let (ring_bytes, bytes) = (log.header().ring_bytes, positions.end - positions.start);
        let mut data = Vec::with_capacity(bytes as usize);
        log.append_to(&mut data, file_offset(positions.start, ring_bytes), bytes);
        let before = Instant::now();
        self.chunks.extend(compress_chunk(positions.start, &mut data, compressor));
        let used = before.elapsed();
        let spans = vec![Span { extent: ExtentId(0), offset: positions.start % ring_bytes, bytes: data.len() as u32 }];
        let (key, deadline) = (Arc::clone(&self.key), Instant::now() + timeout);
        connection.submit_write(WriteRequest { tag: positions.end, key, spans, data, deadline })?;
        Ok(used)
    }

    /// Takes the ends of the writes that the member has acknowledged.
    ///
    /// # Errors
    /// As `write`.
    pub fn take_written(&mut self) -> Result<Vec<u64>, ChainError> {
        let mut completions: Vec<Completion> = Vec::new();
        if let Some(connection) = &mut self.connection {
            connection.poll(Instant::now(), &mut completions);
        }
        completions.into_iter().map(|completion| Ok(completion.result.map(|_| completion.tag)?)).collect()
    }

    /// Waits until a write is acknowledged, at most until `limit`.
    ///
    /// # Errors
    /// When this process cannot wait.
    pub fn wait(&mut self, limit: Instant) -> Result<(), ChainError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        Ok(connection.wait(Some(connection.next_timeout().map_or(limit, |next| next.min(limit))))?)
    }

    /// Announces a piece, and waits for the reply. `request` has all fields except the end, the bytes and the list of compressed
    /// chunks. Chunks that `compressor` shrinks are sent compressed.
    ///
    /// # Errors
    /// As `write`.
    pub fn announce(
        &mut self,
        log: &LogFile,
        piece: &PieceAnnouncement,
        mut request: AppendLog,
        compressor: &mut LogCompressor,
    ) -> Result<StoredLog, ChainError> {
        request.end = piece.end;
        request.bytes = LogBytes { region: self.key.seed.number(), ..LogBytes::default() };
        let mut chunks = std::mem::take(&mut self.chunks);
        if let Some(from) = piece.inline_from {
            request.bytes.position = from.position;
            request.bytes.data = read_ring(log, from.position, piece.end.position.max(from.position));
            chunks.extend(compress_inline(&mut request.bytes, log.header().ring_bytes, compressor));
        }
        request.chunks = encode_chunks(&chunks);
        if self.knows_pieces {
            let wait_ms = piece.wait.as_millis() as u32;
            let request = StoreLog { append: request, has_more: piece.has_more, wait_ms };
            return match self.calls.call::<StoreLog>(&request, piece.timeout) {
                Ok(StoreAnswer::Stored(stored)) => Ok(stored),
                Ok(StoreAnswer::OtherPath) => Err(ChainError::OtherPath),
                Err(error) if error.is_unknown_call() => {
                    self.knows_pieces = false;
                    self.append(&request.append, piece.timeout)
                }
                Err(error) => Err(error.into()),
            };
        }
        self.append(&request, piece.timeout)
    }

    /// Announces a piece to a member of an earlier version.
    fn append(&mut self, request: &AppendLog, timeout: Duration) -> Result<StoredLog, ChainError> {
        match self.calls.call::<AppendLog>(request, timeout)? {
            AppendAnswer::Appended(AppendedLog { published, space }) => {
                Ok(StoredLog { committed: request.end, published, space: Some(space), is_complete: true })
            }
            AppendAnswer::OtherPath => Err(ChainError::OtherPath),
        }
    }
}

impl RecordBounds for LogFile {
    fn ring_bytes(&self) -> u64 {
        self.header().ring_bytes
    }

    fn record_end(&self, point: LogPoint) -> Option<LogPoint> {
        let mut header = [0; HEADER_BYTES as usize];
        self.load(file_offset(point.position, self.header().ring_bytes), &mut header);
        let header = RecordHeader::parse(&header).ok()?;
        let is_record = (header.sequence, header.position) == (point.sequence, point.position);
        let end = LogPoint { sequence: point.sequence + 1, position: header.shape.end(point.position) };
        is_record.then_some(end)
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
