//! Frames of a requester that change nothing at the owner; [`super::change`] has the others.

use super::{FabricFrameError, FieldReader, FrameKind, Header, READ_BYTES_MAX, SPANS_MAX, header};
use crate::descriptor::ExtentId;
use crate::id::NODE_NAME_BYTES_MAX;
use crate::token::TOKEN_BYTES;
use crate::{SeedId, Token};

/// Handles of one connection are smaller than this. A requester with more seeds of one owner rebinds its oldest handle.
pub const HANDLES_MAX: u32 = 64;

const SEED_TEXT_BYTES_MAX: usize = NODE_NAME_BYTES_MAX + ".s".len() + 16;
pub(super) const SPAN_BYTES: usize = 16;
pub(super) const OPEN_BYTES_MAX: usize = 4 + TOKEN_BYTES + SEED_TEXT_BYTES_MAX;
pub(super) const READ_REQUEST_BYTES_MAX: usize = 8 + SPANS_MAX * SPAN_BYTES;
pub(super) const ASK_GRANTS_BYTES: usize = 4;

/// Part of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The extent.
    pub extent: ExtentId,
    /// Offset of the span's first byte in the extent.
    pub offset: u64,
    /// Length, in bytes.
    pub bytes: u32,
}

/// How a span that reaches beyond the end of its extent is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReadMode {
    /// The read is refused. A reader of memory knows the extent's length.
    Exact = 0,
    /// The read returns the bytes up to the end, like pread(2). The read must have one span. In this mode, a requester reads
    /// a descriptor of unknown length in one round trip.
    Clip = 1,
}

//  OPEN        handle u32 │ token 16 │ seed id, as text, to the end
//  READ        handle u32 │ mode u8, 0 0 0 │ span …      span: extent u32 │ bytes u32 │ offset u64
//  ASK GRANTS  handle u32

/// A request, as the owner reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Binds `handle` to this seed and token.
    Open {
        /// Handle of the seed, below [`HANDLES_MAX`].
        handle: u32,
        /// The seed.
        seed: SeedId,
        /// The token of the seed.
        token: Token,
    },
    /// Requests the bytes of the spans, one after the other.
    Read {
        /// Handle of the seed, below [`HANDLES_MAX`].
        handle: u32,
        /// How a span that reaches beyond the end of its extent is handled.
        mode: ReadMode,
        /// 1 to [`SPANS_MAX`] spans, none empty, with at most [`READ_BYTES_MAX`] bytes together.
        spans: Vec<Span>,
    },
    /// Requests the ranges that a requester on the same host can read directly.
    AskGrants {
        /// Handle of the seed, below [`HANDLES_MAX`].
        handle: u32,
    },
}

/// Why spans do not fit into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpansError {
    /// There is no span, or a span is empty.
    #[error("a read needs spans of at least one byte")]
    Empty,
    /// More than [`SPANS_MAX`] spans.
    #[error("a read has at most {SPANS_MAX} spans")]
    TooMany,
    /// More than [`READ_BYTES_MAX`] bytes together.
    #[error("a read has at most {READ_BYTES_MAX} bytes")]
    TooLong,
    /// More than one span in [`ReadMode::Clip`].
    #[error("a read that is clipped at the end of its extent has one span")]
    ClipNotSingle,
}

/// Checks the limits that both sides enforce. Returns the number of bytes of all spans.
///
/// # Errors
/// The exceeded limit.
pub fn check_spans(mode: ReadMode, spans: &[Span]) -> Result<usize, SpansError> {
    if spans.is_empty() || spans.iter().any(|span| span.bytes == 0) {
        return Err(SpansError::Empty);
    }
    if spans.len() > SPANS_MAX {
        return Err(SpansError::TooMany);
    }
    if mode == ReadMode::Clip && spans.len() > 1 {
        return Err(SpansError::ClipNotSingle);
    }
    let bytes: u64 = spans.iter().map(|span| u64::from(span.bytes)).sum();
    if bytes > READ_BYTES_MAX as u64 { Err(SpansError::TooLong) } else { Ok(bytes as usize) }
}

/// Appends an OPEN frame.
pub fn append_open(out: &mut Vec<u8>, handle: u32, seed: &SeedId, token: &Token) {
    debug_assert!(handle < HANDLES_MAX);
    header::append_frame(out, FrameKind::Open, 0, |body| {
        body.extend_from_slice(&handle.to_le_bytes());
        body.extend_from_slice(token.expose());
        body.extend_from_slice(seed.to_string().as_bytes());
    });
}

/// Appends a READ frame. The caller has checked the spans.
pub fn append_read(out: &mut Vec<u8>, id: u64, handle: u32, mode: ReadMode, spans: &[Span]) {
    debug_assert!(handle < HANDLES_MAX && check_spans(mode, spans).is_ok());
    header::append_frame(out, FrameKind::Read, id, |body| {
        body.extend_from_slice(&handle.to_le_bytes());
        body.extend_from_slice(&[mode as u8, 0, 0, 0]);
        append_spans(body, spans);
    });
}

pub(super) fn append_spans(body: &mut Vec<u8>, spans: &[Span]) {
    for span in spans {
        body.extend_from_slice(&span.extent.0.to_le_bytes());
        body.extend_from_slice(&span.bytes.to_le_bytes());
        body.extend_from_slice(&span.offset.to_le_bytes());
    }
}

/// Appends an ASK GRANTS frame.
pub fn append_ask_grants(out: &mut Vec<u8>, id: u64, handle: u32) {
    debug_assert!(handle < HANDLES_MAX);
    header::append_frame(out, FrameKind::AskGrants, id, |body| body.extend_from_slice(&handle.to_le_bytes()));
}

impl Request {
    /// Decodes the body of a request whose checksums were verified.
    ///
    /// # Errors
    /// [`FabricFrameError::UnexpectedKind`] for a reply or a change, [`FabricFrameError::InvalidBody`] if the body is
    /// invalid.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Self, FabricFrameError> {
        let fail = |what| FabricFrameError::InvalidBody { kind: header.kind, what };
        if !matches!(header.kind, FrameKind::Open | FrameKind::Read | FrameKind::AskGrants) {
            return Err(FabricFrameError::UnexpectedKind(header.kind as u8));
        }
        let mut fields = FieldReader(body);
        let handle = fields.read_u32().ok_or(fail("it ends in the handle"))?;
        if handle >= HANDLES_MAX {
            return Err(fail("its handle is too large"));
        }
        match header.kind {
            FrameKind::Open => decode_open(handle, fields).map_err(fail),
            FrameKind::Read => decode_read(handle, fields).map_err(fail),
            _ if fields.0.is_empty() => Ok(Self::AskGrants { handle }),
            _ => Err(fail("it is too long")),
        }
    }
}

fn decode_open(handle: u32, mut fields: FieldReader<'_>) -> Result<Request, &'static str> {
    let token = Token::from_bytes(*fields.take::<TOKEN_BYTES>().ok_or("it ends in the token")?);
    let seed = str::from_utf8(fields.0).ok().and_then(|text| text.parse().ok()).ok_or("it names no seed")?;
    Ok(Request::Open { handle, seed, token })
}

fn decode_read(handle: u32, mut fields: FieldReader<'_>) -> Result<Request, &'static str> {
    let mode = match fields.read_u32() {
        Some(0) => ReadMode::Exact,
        Some(1) => ReadMode::Clip,
        _ => return Err("its mode is unknown"),
    };
    let spans = decode_spans(fields).ok_or("it ends in a span")?;
    check_spans(mode, &spans).map_err(|_| "its spans exceed a limit")?;
    Ok(Request::Read { handle, mode, spans })
}

pub(super) fn decode_spans(mut fields: FieldReader<'_>) -> Option<Vec<Span>> {
    let mut spans = Vec::with_capacity(fields.0.len() / SPAN_BYTES);
    while !fields.0.is_empty() {
        spans.push(decode_span(&mut fields)?);
    }
    Some(spans)
}

fn decode_span(fields: &mut FieldReader<'_>) -> Option<Span> {
    let extent = ExtentId(fields.read_u32()?);
    let bytes = fields.read_u32()?;
    Some(Span { extent, offset: fields.read_u64()?, bytes })
}
