//! The `Connection` trait that every provider implements: one connection to one owner, with many requests in flight.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::MESSAGE_BYTES_MAX;
use farfork_wire::frame::request::{ReadMode, Span, SpansError};
use farfork_wire::{SeedId, Token};

use crate::{Address, Buffer, FabricError};

/// Most unanswered requests of a connection. A pager has fewer by far; the limit bounds what is sent again when a
/// connection was lost.
pub const REQUESTS_MAX: usize = 4096;

/// Most bytes of unanswered writes and messages, which are kept to be sent again: what fills a fast network for some
/// milliseconds.
pub const CHANGE_BYTES_MAX: usize = 16 << 20;

/// A seed and what opens it.
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
    /// What the caller knows the read by; the connection only repeats it.
    pub tag: u64,
    /// The seed. Reads that share one `Arc` are recognised fastest.
    pub key: Arc<SeedKey>,
    /// What becomes of a span that reaches beyond its extent.
    pub mode: ReadMode,
    /// What to read; the reply has the bytes of all spans, one after the other.
    pub spans: Vec<Span>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// A write into an owner's memory. It is made once, unless its completion says that this is not known.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// What the caller knows the write by.
    pub tag: u64,
    /// The seed.
    pub key: Arc<SeedKey>,
    /// Where to; within the limits of a read's.
    pub spans: Vec<Span>,
    /// As many bytes as the spans have, one after the other.
    pub data: Vec<u8>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// A message to an owner. It is taken once, unless its completion says that this is not known.
#[derive(Debug, Clone)]
pub struct MessageRequest {
    /// What the caller knows the message by.
    pub tag: u64,
    /// At most [`MESSAGE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// When the caller gives up.
    pub deadline: Instant,
}

/// What a request gave.
#[derive(Debug, Default)]
pub struct Reply {
    /// Of a read: the bytes of all spans, one after the other; fewer only where the read was clipped. Of another
    /// request: none.
    pub data: Buffer,
    /// Of a read: length of the first span's extent, in bytes.
    pub extent_bytes: u64,
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion {
    /// From the request.
    pub tag: u64,
    /// What came of it.
    pub result: Result<Reply, FabricError>,
}

/// Why a request was not accepted. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too much, or nothing, in one request.
    #[error(transparent)]
    InvalidSpans(#[from] SpansError),
    /// A write whose bytes are more or fewer than its spans have.
    #[error("{data} bytes do not fill spans of {spans}")]
    LengthMismatch {
        /// Bytes to write.
        data: usize,
        /// Bytes that the spans have.
        spans: usize,
    },
    /// A message of more than [`MESSAGE_BYTES_MAX`] bytes.
    #[error("a message has at most {MESSAGE_BYTES_MAX} bytes, not {0}")]
    MessageTooLong(usize),
    /// [`REQUESTS_MAX`] requests are unanswered, or [`CHANGE_BYTES_MAX`] bytes.
    #[error("{REQUESTS_MAX} requests or {CHANGE_BYTES_MAX} bytes to write are unanswered")]
    Full,
    /// [`Connection::close`] was called.
    #[error("the connection is closed")]
    Closed,
}

/// A connection to one owner. It connects, and reconnects after a failure, by itself, and asks again what was not
/// answered, until the deadline of each request. Nothing but [`Connection::wait`] blocks.
///
/// Requests are served in the order in which they were taken, and each ends once, with a completion; writes and messages
/// are made once at most, however often the connection was made anew. A caller that was told that something is done knows
/// that whatever it asks for from then on, on whichever connection, comes later.
///
/// A caller waits for the descriptor, at most until [`Connection::next_timeout`], then polls; it also polls after it has
/// submitted, for that is what sends. Who wants that no long reply delays a short one has a connection for each kind:
/// owners give all connections their turn.
pub trait Connection: Send {
    /// Takes a read; it is sent with the next [`Connection::poll`], together with all others taken until then.
    ///
    /// # Errors
    /// [`SubmitError`], before anything is sent; then there is no completion.
    fn submit_read(&mut self, request: ReadRequest) -> Result<(), SubmitError>;

    /// Takes a write, as [`Connection::submit_read`] does a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_write(&mut self, request: WriteRequest) -> Result<(), SubmitError>;

    /// Takes a message, as [`Connection::submit_read`] does a read.
    ///
    /// # Errors
    /// As [`Connection::submit_read`].
    fn submit_message(&mut self, message: MessageRequest) -> Result<(), SubmitError>;

    /// Sends what can be sent, receives what is there, and appends the requests that have ended. `now` is the time by
    /// [`Connection::now`].
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// When to poll even if the descriptor did not become readable. It may lie in the past: then there is work left.
    fn next_timeout(&self) -> Option<Instant>;

    /// What is readable when [`Connection::poll`] has something to do; it stays the same for the life of the
    /// connection, whatever sockets come and go. `None` where there is no such thing (`sim`).
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The time by the clock that deadlines are meant by.
    fn now(&self) -> Instant;

    /// Waits until there is something to poll for, at most until `until`.
    ///
    /// # Errors
    /// Where this process cannot wait.
    fn wait(&mut self, until: Option<Instant>) -> io::Result<()>;

    /// Number of requests that were taken and have not ended.
    fn unanswered_count(&self) -> usize;

    /// Ends all requests without completions.
    fn abandon_all(&mut self);

    /// Takes no further requests; the socket is closed once those that were taken have ended.
    fn close(&mut self);

    /// Whether it was closed, and nothing is left to end.
    fn is_closed(&self) -> bool;

    /// Takes back a reply's memory, for the replies to come.
    fn recycle_buffer(&mut self, buffer: Buffer);

    /// The CPU on which what came last was taken from the network. `None` where that is not known.
    fn incoming_cpu(&self) -> Option<u32> {
        None
    }

    /// The owner's address.
    fn address(&self) -> &Address;
}
