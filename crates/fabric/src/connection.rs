//! The `Connection` trait that every provider implements: one connection to one owner, with many requests in flight.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::MESSAGE_BYTES_MAX;
use farfork_wire::frame::request::{ReadMode, Span, SpansError};
use farfork_wire::{SeedId, Token};

use crate::{Address, Buffer, FabricError};

/// Most unanswered requests of a connection. A pager has far fewer. It limits the number of requests that are sent again
/// after a connection was lost.
pub const REQUESTS_MAX: usize = 4096;

/// Most bytes of unanswered writes and messages, which are kept to be sent again. They fill a fast network for some
/// milliseconds.
pub const CHANGE_BYTES_MAX: usize = 16 << 20;

/// The id of a seed and its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedKey {
    /// The seed.
    pub seed: SeedId,
    /// Its token.
    pub token: Token,
}

/// A read of an owner's memory.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The caller's name for the read; it is returned in the completion.
    pub tag: u64,
    /// The seed. Reads that share one `Arc` are recognized fastest.
    pub key: Arc<SeedKey>,
    /// How a span that reaches beyond its extent is handled.
    pub mode: ReadMode,
    /// The spans to read. The reply has the bytes of all spans, one after the other.
    pub spans: Vec<Span>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// A write to an owner's memory. It is made once, unless its completion says that the outcome is unknown.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// The caller's name for the write.
    pub tag: u64,
    /// The seed.
    pub key: Arc<SeedKey>,
    /// The destination, within the limits of a read's spans.
    pub spans: Vec<Span>,
    /// The bytes of the spans, one after the other.
    pub data: Vec<u8>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// A message to an owner. It is delivered once, unless its completion says that the outcome is unknown.
#[derive(Debug, Clone)]
pub struct MessageRequest {
    /// The caller's name for the message.
    pub tag: u64,
    /// At most [`MESSAGE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// The reply to a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// For a read: the bytes of all spans, one after the other; fewer only if the read was clipped. For other requests:
    /// empty.
    pub data: Buffer,
    /// For a read: length of the first span's extent, in bytes.
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

/// Why a request was not accepted. Nothing was sent.
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
    /// [`REQUESTS_MAX`] requests are unanswered, or [`CHANGE_BYTES_MAX`] bytes.
    #[error("{REQUESTS_MAX} requests or {CHANGE_BYTES_MAX} bytes to write are unanswered")]
    Full,
    /// [`Connection::close`] was called.
    #[error("the connection is closed")]
    Closed,
}

/// A connection to one owner. It connects by itself, and reconnects after a failure. It repeats unanswered requests until
/// the deadline of each. Only [`Connection::wait`] blocks.
///
/// Requests are served in the order in which they were accepted, and each ends once, with a completion. Writes and messages
/// are made at most once, also across reconnections. Once a completion says that a request is done, all requests that are
/// submitted later are served after it, on any connection.
///
/// A caller waits for the descriptor, at most until [`Connection::next_timeout`], then polls. It also polls after it has
/// submitted requests, because that sends them. To keep long replies from delaying short ones, use a connection for each
/// kind: owners serve all connections in turn.
pub trait Connection: Send {
    /// Accepts a read. It is sent with the next [`Connection::poll`], together with all others accepted until then.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing was sent, and there will be no completion.
    fn submit_read(&mut self, request: ReadRequest) -> Result<(), SubmitError>;

    /// Accepts a write, as [`Connection::submit_read`] does a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_write(&mut self, request: WriteRequest) -> Result<(), SubmitError>;

    /// Accepts a message, as [`Connection::submit_read`] does a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_message(&mut self, message: MessageRequest) -> Result<(), SubmitError>;

    /// Sends what can be sent, receives what has arrived, and appends the requests that have ended. `now` is the time of
    /// [`Connection::now`].
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// When to poll even if the descriptor is not readable. A time in the past means that there is work left.
    fn next_timeout(&self) -> Option<Instant>;

    /// A descriptor that is readable when [`Connection::poll`] has something to do. It stays the same across reconnections.
    /// `None` if there is none (`sim`).
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The time of the clock that deadlines refer to.
    fn now(&self) -> Instant;

    /// Waits until a poll has something to do, at most until `until`.
    ///
    /// # Errors
    /// When the process cannot wait.
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()>;

    /// Number of accepted requests that have not ended.
    fn unanswered_count(&self) -> usize;

    /// Ends all requests without completions.
    fn abandon_all(&mut self);

    /// Accepts no further requests. The socket is closed once all accepted requests have ended.
    fn close(&mut self);

    /// Whether it was closed and all requests have ended.
    fn is_closed(&self) -> bool;

    /// Returns a reply's memory, for later replies.
    fn recycle_buffer(&mut self, buffer: Buffer);

    /// The CPU that received the last bytes from the network. `None` if unknown.
    fn incoming_cpu(&self) -> Option<u32> {
        None
    }

    /// The owner's address.
    fn address(&self) -> &Address;
}
