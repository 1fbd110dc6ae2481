//! The `Connection` trait that every provider implements: one connection to one owner, with many requests in flight.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::MESSAGE_BYTES_MAX;
use farfork_wire::frame::request::{ReadMode, Span, SpansError};
use farfork_wire::{SeedId, Token};

use crate::{Address, Buffer, FabricError};

/// Maximum number of unanswered requests of a connection. A pager has far fewer. The limit bounds the number of
/// requests that are sent again after a reconnection.
pub const REQUESTS_MAX: usize = 4096;

/// Maximum size of all unanswered writes and messages of a connection, in bytes. They are kept, so that they can be
/// sent again.
pub const CHANGE_BYTES_MAX: usize = 16 << 20;

/// The id of a seed and its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedKey {
    /// The seed.
    pub seed: SeedId,
    /// The seed's token.
    pub token: Token,
}

/// A read of an owner's memory.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The caller's id for the read. The completion contains it.
    pub tag: u64,
    /// The seed and its token. Comparison is fastest if reads share one `Arc`.
    pub key: Arc<SeedKey>,
    /// How a span that reaches beyond its extent is handled.
    pub mode: ReadMode,
    /// The spans to read. The reply has the bytes of all spans, one after the other.
    pub spans: Vec<Span>,
    /// Time at which the request ends with an error if it has no reply.
    pub deadline: Instant,
}

/// A write to an owner's memory. A write whose completion is a reply was made exactly once.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// The caller's id for the write. The completion contains it.
    pub tag: u64,
    /// The seed.
    pub key: Arc<SeedKey>,
    /// The spans to write. The same limits apply as for a read.
    pub spans: Vec<Span>,
    /// The bytes of the spans, one after the other.
    pub data: Vec<u8>,
    /// Time at which the request ends with an error if it has no reply.
    pub deadline: Instant,
}

/// A message to an owner. A message whose completion is a reply was delivered exactly once.
#[derive(Debug, Clone)]
pub struct MessageRequest {
    /// The caller's id for the message. The completion contains it.
    pub tag: u64,
    /// Contents of the message: at most [`MESSAGE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// Time at which the request ends with an error if it has no reply.
    pub deadline: Instant,
}

/// The reply to a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// For a read, the bytes of all spans, one after the other; fewer only if the read was clipped. For other requests,
    /// empty.
    pub data: Buffer,
    /// For a read, the length of the first span's extent, in bytes.
    pub extent_bytes: u64,
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// The outcome of the request.
    pub result: Result<Reply, FabricError>,
}

/// Why a request was not accepted. It was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The spans are empty, too many or too long.
    #[error(transparent)]
    InvalidSpans(#[from] SpansError),
    /// The data of a write is longer or shorter than its spans.
    #[error("{data} bytes do not fill spans of {spans}")]
    LengthMismatch {
        /// Bytes to write.
        data: usize,
        /// Bytes of the spans.
        spans: usize,
    },
    /// The message has more than [`MESSAGE_BYTES_MAX`] bytes.
    #[error("a message has at most {MESSAGE_BYTES_MAX} bytes, not {0}")]
    MessageTooLong(usize),
    /// [`REQUESTS_MAX`] requests, or [`CHANGE_BYTES_MAX`] bytes of writes and messages, are unanswered.
    #[error("{REQUESTS_MAX} requests or {CHANGE_BYTES_MAX} bytes to write are unanswered")]
    Full,
    /// [`Connection::close`] was called.
    #[error("the connection is closed")]
    Closed,
}

/// A connection to one owner. It connects by itself, and reconnects after a failure. It repeats each unanswered request
/// until the request's deadline. Only [`Connection::wait`] blocks.
///
/// Requests are served in the order in which they were accepted, and each ends with exactly one completion. Writes and
/// messages are made at most once, even across reconnections. A request that is submitted after the completion of
/// another request is served after that other request, even on another connection.
///
/// A caller waits for [`Connection::poll_fd`], at most until [`Connection::next_timeout`], then polls. It also polls
/// after submitting requests, because a poll sends them. Use separate connections for long and short replies, so that
/// long ones do not delay short ones: owners serve all connections in turn.
pub trait Connection: Send {
    /// Queues a read. The next [`Connection::poll`] sends all queued requests together.
    ///
    /// # Errors
    /// [`SubmitError`]: the request is not queued, and will have no completion.
    fn submit_read(&mut self, request: ReadRequest) -> Result<(), SubmitError>;

    /// Queues a write, as [`Connection::submit_read`] queues a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_write(&mut self, request: WriteRequest) -> Result<(), SubmitError>;

    /// Queues a message, as [`Connection::submit_read`] queues a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_message(&mut self, message: MessageRequest) -> Result<(), SubmitError>;

    /// Sends queued requests, receives replies, and appends the completions of ended requests. `now` is the time of
    /// [`Connection::now`].
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// Returns the time at which the caller must poll even if the descriptor is not readable. A time in the past means
    /// that the last poll left work.
    fn next_timeout(&self) -> Option<Instant>;

    /// Returns a descriptor that is readable when [`Connection::poll`] has something to do. It stays the same across
    /// reconnections. `None` if the provider has none (`sim`).
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the time of the clock for deadlines.
    fn now(&self) -> Instant;

    /// Waits until [`Connection::poll`] has something to do, at most until `until`.
    ///
    /// # Errors
    /// The error of poll(2).
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()>;

    /// Number of accepted requests that have not ended.
    fn unanswered_count(&self) -> usize;

    /// Ends all requests without completions.
    fn abandon_all(&mut self);

    /// Accepts no further requests. The socket is closed once all accepted requests have ended.
    fn close(&mut self);

    /// Whether [`Connection::close`] was called and all requests have ended.
    fn is_closed(&self) -> bool;

    /// Gives a reply's memory back, for later replies.
    fn recycle_buffer(&mut self, buffer: Buffer);

    /// Returns the CPU that received the last bytes from the network; `None` if unknown.
    fn incoming_cpu(&self) -> Option<u32> {
        None
    }

    /// Returns the owner's address.
    fn address(&self) -> &Address;
}
