//! A connection to the next member on the path of one log. It sends the log in pieces, announces each one, and waits until the
//! member has validated it. A piece that was validated is not sent again, also not by a later connection.

use std::io;
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
use super::path::PathVersion;
use super::peers::{PeerClient, PeerClients, PeerError};
use super::replica_progress::ReplicaProgress;
use crate::log::{LogFile, LogPoint, LogStorage as _, file_offset};
use crate::record::{HEADER_BYTES, RecordHeader};

/// Maximum number of bytes that are sent within the call that announces them. More bytes are sent faster by one-sided
/// writes, which need no copy into the call.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// As `INLINE_BYTES_MAX`, on a slow link: a call has a time limit, and is sent again as a whole after it.
const SLOW_INLINE_BYTES_MAX: u64 = 4 << 10;
/// Maximum number of bytes of a one-sided write. The data of a larger write leaves the processor's cache between two copies:
/// writes of 256 KiB were a tenth slower.
const WRITE_BYTES: u64 = 64 << 10;
/// As `WRITE_BYTES`, on a slow link: the acknowledgements of the writes show that the member takes bytes.
const SLOW_WRITE_BYTES: u64 = 16 << 10;
const _: () = assert!(INLINE_BYTES_MAX <= CHUNK_BYTES_MAX as u64 && WRITE_BYTES <= CHUNK_BYTES_MAX as u64);
/// Time for which one piece is sent. Much longer than a round trip, in which the link is idle. Short, because the member
/// sends a piece to the next one only after it has the whole piece.
const PIECE_TIME: Duration = Duration::from_millis(20);
/// Limits of the size of a piece. A record that is larger is a piece of its own.
const PIECE_BYTES_MIN: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 8 << 20;
/// The size of the first piece, before the rate of the link is known. Links with smaller pieces are slow ones.
const FIRST_PIECE_BYTES: u64 = 256 << 10;
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
    /// The member has acknowledged fewer bytes than a live replica must.
    #[error("the node takes its log too slowly: less than {bytes_min} bytes in each {} ms", detection_time.as_millis())]
    Slow {
        /// Minimum number of bytes in each detection time.
        bytes_min: u64,
        /// The time of failure detection.
        detection_time: Duration,
    },
    /// The member has acknowledged none of the writes in flight.
    #[error("the node has not acknowledged any bytes of its log for {} ms", .0.as_millis())]
    Silent(Duration),
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
            Self::Write(_)
            | Self::Submit(_)
            | Self::DiskFull
            | Self::OtherPath
            | Self::Slow { .. }
            | Self::Silent(_)
            | Self::Connect(_) => false,
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
    /// The member has validated the log up to this point.
    stored: LogPoint,
    piece_bytes: u64,
    /// The member knows `StoreLog`. Earlier versions do not.
    knows_pieces: bool,
    timeout: Duration,
}

impl ChainLink {
    /// Opens the log on a member, and gets the end of the member's log. `timeout` limits this call and each later step. After
    /// a failure (`has_failed`), the link counts as slow until its rate is known.
    ///
    /// # Errors
    /// When the member cannot be reached, or refuses the log.
    pub fn open(
        peers: &PeerClients,
        node: &NodeName,
        request: &OpenLog,
        timeout: Duration,
        has_failed: bool,
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
        let (node, path, stored) = (node.clone(), request.path, opened.stored);
        let credentials = peers.credentials().cloned();
        let piece_bytes = if has_failed { PIECE_BYTES_MIN } else { FIRST_PIECE_BYTES };
        let (connection, knows_pieces) = (None, true);
        Ok(Self {
            node,
            path,
            address,
            credentials,
            connection,
            calls,
            key,
            stored,
            piece_bytes,
            knows_pieces,
            timeout,
        })
    }

    /// The member.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// The path for which the connection was made.
    pub fn path(&self) -> PathVersion {
        self.path
    }

    /// The member has validated the log up to this point.
    pub fn stored(&self) -> LogPoint {
        self.stored
    }

    /// Sends the next piece of the log, at most up to `request.end`, and waits until the member has validated it. After the
    /// last piece, waits some time for all later members, too. Chunks that `compressor` shrinks are sent compressed.
    ///
    /// # Errors
    /// [`ChainError`]. The caller must then open a new link.
    pub fn send_piece(
        &mut self,
        log: &LogFile,
        mut request: AppendLog,
        compressor: &mut LogCompressor,
        progress: &mut ReplicaProgress,
    ) -> Result<StoredLog, ChainError> {
        let (from, log_end) = (self.stored, self.stored.max(request.end));
        let end = piece_end(log, from, log_end, self.piece_bytes);
        let has_more = end < log_end;
        // Also for a log that ends before the member's log: the request asks for the progress of the later members.
        request.end = if has_more { end } else { request.end };
        let bytes = end.position - from.position;
        let inline_bytes_max = if self.is_slow() { SLOW_INLINE_BYTES_MAX } else { INLINE_BYTES_MAX };
        request.bytes = LogBytes { region: self.key.seed.number(), position: from.position, data: Vec::new() };
        let chunks = if bytes <= inline_bytes_max {
            request.bytes.data = read_ring(log, from.position, end.position);
            compress_inline(&mut request.bytes, log.header().ring_bytes, compressor)
        } else {
            self.write(log, from.position, end.position, compressor, progress)?
        };
        request.chunks = encode_chunks(&chunks);
        let answer = self.announce(request, has_more)?;
        self.stored = end;
        progress.advance(end.position, Instant::now());
        Ok(answer)
    }

    fn is_slow(&self) -> bool {
        self.piece_bytes < FIRST_PIECE_BYTES
    }

    /// Announces bytes, and waits for the reply.
    fn announce(&mut self, append: AppendLog, has_more: bool) -> Result<StoredLog, ChainError> {
        if self.knows_pieces {
            let wait_ms = (self.timeout / 2).as_millis() as u32;
            let request = StoreLog { append, has_more, wait_ms };
            return match self.calls.call::<StoreLog>(&request, self.timeout) {
                Ok(StoreAnswer::Stored(stored)) => Ok(stored),
                Ok(StoreAnswer::OtherPath) => Err(ChainError::OtherPath),
                Err(error) if error.is_unknown_call() => {
                    self.knows_pieces = false;
                    self.announce(request.append, has_more)
                }
                Err(error) => Err(error.into()),
            };
        }
        let end = append.end;
        match self.calls.call::<AppendLog>(&append, self.timeout)? {
            AppendAnswer::Appended(AppendedLog { published, space }) => {
                Ok(StoredLog { committed: end, published, space: Some(space) })
            }
            AppendAnswer::OtherPath => Err(ChainError::OtherPath),
        }
    }

    /// Writes a range of the log into the member's ring. A chunk that shrinks is written compressed, at the start of its
    /// range. Returns the compressed chunks. Fails when no write is acknowledged for the time of an attempt, or when the member
    /// is too slow. The whole range has no time limit.
    fn write(
        &mut self,
        log: &LogFile,
        from: u64,
        to: u64,
        compressor: &mut LogCompressor,
        progress: &mut ReplicaProgress,
    ) -> Result<Vec<CompressedChunk>, ChainError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect_node(&self.address, &self.node, self.credentials.as_ref())?),
        };
        let ring_bytes = log.header().ring_bytes;
        let write_bytes = if self.piece_bytes > FIRST_PIECE_BYTES { WRITE_BYTES } else { SLOW_WRITE_BYTES };
        let started = Instant::now();
        // Longer than the writes in flight need at the lowest rate, so that the loop below finds each failure first.
        let write_time = progress.rate().detection_time * 2 * WRITES_IN_FLIGHT_MAX as u32 + progress.rate().window();
        let mut silent_since = Instant::now();
        let (mut position, mut in_flight) = (from, 0);
        let mut chunks = Vec::new();
        let mut completions: Vec<Completion> = Vec::new();
        while position < to || in_flight > 0 {
            while position < to && in_flight < WRITES_IN_FLIGHT_MAX {
                let offset = position % ring_bytes;
                let bytes = (to - position).min(write_bytes).min(ring_bytes - offset);
                let mut data = Vec::with_capacity(bytes as usize);
                log.append_to(&mut data, file_offset(position, ring_bytes), bytes);
                let before = Instant::now();
                chunks.extend(compress_chunk(position, &mut data, compressor));
                // The time for compressing on this node does not count as a delay of the member.
                let used = before.elapsed();
                silent_since += used;
                progress.exclude(used);
                let spans = vec![Span { extent: ExtentId(0), offset, bytes: data.len() as u32 }];
                let (key, deadline) = (Arc::clone(&self.key), Instant::now() + write_time);
                connection.submit_write(WriteRequest { tag: position + bytes, key, spans, data, deadline })?;
                position += bytes;
                in_flight += 1;
            }
            connection.poll(Instant::now(), &mut completions);
            if completions.is_empty() {
                // If this process was paused, the replies have arrived, so the times are compared only after a poll.
                let now = Instant::now();
                if now >= silent_since + self.timeout {
                    return Err(ChainError::Silent(self.timeout));
                }
                require_rate(progress, now)?;
                let limit = silent_since + self.timeout;
                connection.wait(Some(connection.next_timeout().map_or(limit, |next| next.min(limit))))?;
            }
            for completion in completions.drain(..) {
                completion.result?;
                in_flight -= 1;
                silent_since = Instant::now();
                progress.advance(completion.tag, silent_since);
            }
        }
        let bytes = u128::from(to - from) * PIECE_TIME.as_micros() / started.elapsed().as_micros().max(1);
        self.piece_bytes = (bytes as u64).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        Ok(chunks)
    }
}

/// # Errors
/// When the member is too slow.
fn require_rate(progress: &ReplicaProgress, now: Instant) -> Result<(), ChainError> {
    let rate = progress.rate();
    let slow = ChainError::Slow { bytes_min: rate.bytes_min, detection_time: rate.detection_time };
    if progress.is_stalled(now) { Err(slow) } else { Ok(()) }
}

/// The end of the piece that begins at `from`: the first end of a record after `bytes` bytes, or `end`. This node has validated
/// the records.
fn piece_end(log: &LogFile, from: LogPoint, end: LogPoint, bytes: u64) -> LogPoint {
    if end.position - from.position <= bytes {
        return end;
    }
    let mut point = from;
    while point < end && point.position - from.position < bytes {
        let mut header = [0; HEADER_BYTES as usize];
        log.load(file_offset(point.position, log.header().ring_bytes), &mut header);
        match RecordHeader::parse(&header) {
            Ok(header) if (header.sequence, header.position) == (point.sequence, point.position) => {
                point = LogPoint { sequence: point.sequence + 1, position: header.shape.end(point.position) };
            }
            // The member's log differs. It refuses the whole range.
            _ => return end,
        }
    }
    point.min(end)
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
