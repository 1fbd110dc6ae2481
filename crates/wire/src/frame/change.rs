//! Frames of a requester that change something at the owner: writes and messages. [`super::request`] has the others.
//!
//! A change that is sent again must not be made twice, nor after later changes. So each connection has a random connection
//! id that outlives its sockets. Its request ids ascend as long as the connection id is used.

use std::fmt;

use super::request::{HANDLES_MAX, ReadMode, SPAN_BYTES, Span, append_spans, check_spans, decode_spans};
use super::{FabricFrameError, FieldReader, FrameKind, Header, READ_BYTES_MAX, SPANS_MAX, header};

/// Maximum number of bytes of one write: the same as of one read.
pub const WRITE_BYTES_MAX: usize = READ_BYTES_MAX;

/// Maximum number of bytes of one message. Messages are for control: write longer data to memory, and announce it in a
/// message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

const CONNECTION_ID_BYTES: usize = 16;
pub(super) const INTRODUCE_BYTES: usize = CONNECTION_ID_BYTES + 8;
pub(super) const WRITE_REQUEST_BYTES_MAX: usize = 8 + SPANS_MAX * SPAN_BYTES + WRITE_BYTES_MAX;

/// A requester's id for its connection to one owner. It is random, so that no peer can guess the id of another peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId([u8; CONNECTION_ID_BYTES]);

impl ConnectionId {
    /// Takes random bytes from the caller: this crate has no randomness.
    pub fn from_bytes(bytes: [u8; CONNECTION_ID_BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for ConnectionId {
    /// Shows only the first bytes: a peer that knows a connection id could use it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

//  INTRODUCE  connection id 16 │ sent below u64               never answered
//  WRITE      handle u32 │ spans u32 │ span … │ bytes of the spans, one after the other
//  MESSAGE    bytes, to the end
//
// A requester sends a change again if the connection broke before the reply arrived. On each socket, it sends the connection
// id (INTRODUCE) before the first change.
//
// - For each connection id, the owner remembers the last change that it made and the changes that it refused. A change with
//   the same or a smaller request id gets the same reply again, and is not made again.
// - Only the latest socket with a connection id may make changes. The owner then ignores bytes that are still in earlier
//   sockets, which the requester has abandoned.
// - `sent_below`: changes with smaller ids may have reached an owner before. An owner that does not know the connection id
//   (it was restarted, or has dropped its record) refuses these changes as `Refusal::OutcomeForgotten`, and so makes none
//   twice.

/// A change, as the owner reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// Gives the id of the connection whose changes follow on this socket.
    Introduce {
        /// The connection id.
        connection: ConnectionId,
        /// Changes with smaller ids may have reached an owner before.
        sent_below: u64,
    },
    /// Writes bytes to spans.
    Write {
        /// Handle of the seed, below [`HANDLES_MAX`].
        handle: u32,
        /// The spans to write to, within the limits of a read's spans.
        spans: Vec<Span>,
        /// The bytes of the spans, one after the other.
        data: &'a [u8],
    },
    /// Delivers a message to the owner.
    Message {
        /// At most [`MESSAGE_BYTES_MAX`] bytes.
        bytes: &'a [u8],
    },
}

/// Appends an INTRODUCE frame.
pub fn append_introduce(out: &mut Vec<u8>, connection: ConnectionId, sent_below: u64) {
    header::append_frame(out, FrameKind::Introduce, 0, |body| {
        body.extend_from_slice(&connection.0);
        body.extend_from_slice(&sent_below.to_le_bytes());
    });
}

/// Appends a WRITE frame. The caller has checked the spans, and that `data` is as long as all spans together.
pub fn append_write(out: &mut Vec<u8>, id: u64, handle: u32, spans: &[Span], data: &[u8]) {
    debug_assert!(handle < HANDLES_MAX && check_spans(ReadMode::Exact, spans) == Ok(data.len()));
    header::append_frame(out, FrameKind::Write, id, |body| {
        body.extend_from_slice(&handle.to_le_bytes());
        body.extend_from_slice(&(spans.len() as u32).to_le_bytes());
        append_spans(body, spans);
        body.extend_from_slice(data);
    });
}

/// Appends a MESSAGE frame.
///
/// # Panics
/// If there are more than [`MESSAGE_BYTES_MAX`] bytes.
pub fn append_message(out: &mut Vec<u8>, id: u64, bytes: &[u8]) {
    header::append_frame(out, FrameKind::Message, id, |body| body.extend_from_slice(bytes));
}

impl<'a> Change<'a> {
    /// Decodes the body of a change whose checksums were verified.
    ///
    /// # Errors
    /// [`FabricFrameError::UnexpectedKind`] if the frame is not a change, [`FabricFrameError::InvalidBody`] if its body is
    /// invalid.
    pub fn decode(header: &Header, body: &'a [u8]) -> Result<Self, FabricFrameError> {
        let fail = |what| FabricFrameError::InvalidBody { kind: header.kind, what };
        match header.kind {
            FrameKind::Introduce => decode_introduce(body).ok_or(fail("its length is wrong")),
            FrameKind::Write => decode_write(body).map_err(fail),
            FrameKind::Message => Ok(Self::Message { bytes: body }),
            other => Err(FabricFrameError::UnexpectedKind(other as u8)),
        }
    }
}

fn decode_introduce(body: &[u8]) -> Option<Change<'_>> {
    let mut fields = FieldReader(body);
    let connection = ConnectionId(*fields.take()?);
    let sent_below = fields.read_u64()?;
    fields.0.is_empty().then_some(Change::Introduce { connection, sent_below })
}

fn decode_write(body: &[u8]) -> Result<Change<'_>, &'static str> {
    let mut fields = FieldReader(body);
    let (Some(handle), Some(count)) = (fields.read_u32(), fields.read_u32()) else {
        return Err("it is shorter than its fixed part");
    };
    if handle >= HANDLES_MAX {
        return Err("its handle is too large");
    }
    if count as usize > SPANS_MAX {
        return Err("its spans exceed a limit");
    }
    let (spans, data) = fields.0.split_at_checked(count as usize * SPAN_BYTES).ok_or("it ends in a span")?;
    let spans = decode_spans(FieldReader(spans)).ok_or("it ends in a span")?;
    let bytes = check_spans(ReadMode::Exact, &spans).map_err(|_| "its spans exceed a limit")?;
    if data.len() == bytes {
        Ok(Change::Write { handle, spans, data })
    } else {
        Err("its data and its spans differ in length")
    }
}
