//! What a caller passes to a client and gets back: requests, completions and errors.

use std::time::Instant;

use farfork_wire::rpc::{OpenOutcome, PAYLOAD_BYTES_MAX, RequestHead, RpcFrameError, Status};

use crate::frame_decoder::ReceivedPayload;
use crate::retransmit::{FrameLocation, RetransmitBuffer};

/// Shortest payload that is not copied when its caller gives it away, in bytes.
const DETACHED_PAYLOAD_BYTES_MIN: usize = 16 << 10;

/// A request without its payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutgoingRequest {
    /// What is to be called.
    pub handler: u32,
    /// What the caller knows the request by; it is only repeated.
    pub tag: u64,
    /// When the caller gives up; what has not begun by then does not begin. `None`, or more than an hour: never.
    pub deadline: Option<Instant>,
    /// Whether both payloads have checksums of their own, from end to end.
    pub checked: bool,
}

impl OutgoingRequest {
    pub(super) fn to_head(self, slot: u16, id: u64, oldest_pending_distance: u32, remaining_us: u32) -> RequestHead {
        RequestHead {
            slot,
            handler: self.handler,
            id,
            oldest_pending_distance,
            remaining_us,
            has_payload_crc: self.checked,
        }
    }
}

/// A request's payload.
#[derive(Debug)]
pub enum RequestPayload<'a> {
    /// Copied once, to where it is sent from.
    Borrowed(&'a [u8]),
    /// Given away; a long one is not copied.
    Owned(Vec<u8>),
}

impl RequestPayload<'_> {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    pub(super) fn check_length(&self) -> Result<(), SubmitError> {
        let bytes = self.as_bytes().len();
        if bytes > PAYLOAD_BYTES_MAX { Err(SubmitError::TooLong { bytes }) } else { Ok(()) }
    }

    /// Writes the frame into the spool.
    pub(super) fn write_frame(self, retransmit_buffer: &mut RetransmitBuffer, head: &RequestHead) -> FrameLocation {
        let is_long = matches!(&self, Self::Owned(bytes) if bytes.len() >= DETACHED_PAYLOAD_BYTES_MIN);
        let out = retransmit_buffer.begin_frame(head.head_bytes() + if is_long { 0 } else { self.as_bytes().len() });
        let start = out.len();
        out.resize(start + head.head_bytes(), 0);
        match self {
            Self::Owned(bytes) if is_long => {
                head.seal(&mut out[start..], Some(&bytes));
                retransmit_buffer.end_frame_detached(start, bytes)
            }
            _ => {
                out.extend_from_slice(self.as_bytes());
                head.seal(&mut out[start..], None);
                retransmit_buffer.end_frame(start)
            }
        }
    }
}

/// Why a request was not accepted. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The window or the memory for requests is full: wait until one ends.
    #[error("too many requests are unanswered")]
    Full,
    /// The session was closed.
    #[error("the session was closed")]
    SessionClosed,
    /// The payload is longer than it may be.
    #[error("the payload has {bytes} bytes, {PAYLOAD_BYTES_MAX} at most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion<'a> {
    /// From the request.
    pub tag: u64,
    /// What came of it.
    pub result: Result<ReceivedPayload<'a>, CallError>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The handler refused.
    #[error("the handler refused: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The server ended it.
    #[error("{0}")]
    Status(Status),
    /// Its deadline passed. It may have been executed, or may yet be.
    #[error("its deadline passed")]
    DeadlineExceeded,
    /// It was taken back. It may have been executed.
    #[error("it was taken back")]
    Cancelled,
    /// The server has forgotten the session, or was restarted. It may have been executed; it was not executed twice.
    #[error("the server has forgotten the session: whether it was executed is not known")]
    SessionLost,
    /// The session cannot be had.
    #[error("{0}")]
    SessionRefused(OpenOutcome),
    /// The server speaks another version.
    #[error("{0}")]
    Incompatible(RpcFrameError),
}

impl CallError {
    pub(super) fn from_status(status: Status, payload: &[u8]) -> Self {
        match status {
            Status::Failed => Self::Refused { reason: String::from_utf8_lossy(payload).into_owned() },
            Status::DeadlineExceeded => Self::DeadlineExceeded,
            Status::Cancelled => Self::Cancelled,
            other => Self::Status(other),
        }
    }
}
