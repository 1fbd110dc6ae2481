//! What a provider gives its users: a connection to one owner, with many reads in flight.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::request::{ReadMode, Span, SpansError};
use farfork_wire::{SeedId, Token};

use crate::{Address, Buffer, FabricError};

/// Most unanswered reads of a connection. A pager has fewer by far; the limit bounds what is sent again when a
/// connection was lost.
pub const REQUESTS_MAX: usize = 4096;

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

/// What a read gave.
#[derive(Debug)]
pub struct Reply {
    /// The bytes of all spans, one after the other; fewer only where the read was clipped.
    pub data: Buffer,
    /// Length of the first span's extent, in bytes.
    pub extent_bytes: u64,
}

/// The end of a read.
#[derive(Debug)]
pub struct Completion {
    /// From the request.
    pub tag: u64,
    /// What came of it.
    pub result: Result<Reply, FabricError>,
}

/// Why a read was not accepted. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too much, or nothing, in one read.
    #[error(transparent)]
    Spans(#[from] SpansError),
    /// [`REQUESTS_MAX`] reads are unanswered.
    #[error("{REQUESTS_MAX} reads are unanswered")]
    Full,
}

/// A connection to one owner. It connects, and reconnects after a failure, by itself, and asks again what was not
/// answered, until the deadline of each read. Nothing here blocks.
///
/// The file descriptor stays the same for the life of the connection, whatever sockets come and go. It is readable
/// when [`Connection::poll`] has something to do. A caller waits for it, at most until
/// [`Connection::next_timeout`], then polls; it also polls after it has submitted, for that is what sends.
pub trait Connection: AsFd + Send {
    /// Takes a read; it is sent with the next [`Connection::poll`], together with all others taken until then.
    ///
    /// # Errors
    /// [`SubmitError`], before anything is sent; then there is no completion.
    fn submit(&mut self, request: ReadRequest) -> Result<(), SubmitError>;

    /// Sends what can be sent, receives what is there, and appends the reads that have ended.
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// When to poll even if the descriptor did not become readable. It may lie in the past: then there is work left.
    fn next_timeout(&self) -> Option<Instant>;

    /// Number of reads that were taken and have not ended.
    fn unanswered(&self) -> usize;

    /// Ends all reads without completions.
    fn forget_all(&mut self);

    /// Takes back a reply's memory, for the replies to come.
    fn recycle(&mut self, buffer: Buffer);

    /// The owner's address.
    fn address(&self) -> &Address;
}
