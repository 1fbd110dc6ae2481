//! The types that a caller and a client exchange: requests, completions and errors.

use std::time::Instant;

use farfork_wire::rpc::{OpenOutcome, PAYLOAD_BYTES_MAX, RequestHead, RpcFrameError, Status};

use crate::frame_decoder::ReceivedPayload;
use crate::retransmit::{FrameLocation, RetransmitBuffer};

/// Shortest owned payload that is sent without a copy, in bytes.
const DETACHED_PAYLOAD_BYTES_MIN: usize = 16 << 10;

/// A request without its payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutgoingRequest {
    /// Id of the handler to call.
    pub handler: u32,
    /// The caller's id for the request. The completion contains it.
    pub tag: u64,
    /// Time at which the caller stops waiting; `None` for no deadline. The server does not start a request after its
    /// deadline. A deadline that is more than an hour away is not sent to the server.
    pub deadline: Option<Instant>,
    /// Whether request and reply have end-to-end payload checksums.
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
    /// Bytes that are copied once, into the buffer from which they are sent.
    Borrowed(&'a [u8]),
    /// Bytes that are moved: a long payload is not copied.
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

    /// Writes the frame into the retransmit buffer.
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

/// Why a request was not accepted. It was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The window or the memory for requests is full. Wait until a request ends.
    #[error("too many requests are unanswered")]
    Full,
    /// The session was closed.
    #[error("the session was closed")]
    SessionClosed,
    /// The payload is longer than the limit.
    #[error("the payload has {bytes} bytes, {PAYLOAD_BYTES_MAX} at most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The tag of the request.
    pub tag: u64,
    /// The outcome of the request.
    pub result: Result<ReceivedPayload<'a>, CallError>,
}

/// Why a request has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The handler refused the request.
    #[error("the handler refused: {reason}")]
    Refused {
        /// The handler's reason.
        reason: String,
    },
    /// The server ended the request.
    #[error("{0}")]
    Status(Status),
    /// The deadline passed. The request may have been executed, or may be executed later.
    #[error("its deadline passed")]
    DeadlineExceeded,
    /// The request was cancelled. It may have been executed.
    #[error("it was cancelled")]
    Cancelled,
    /// The server has dropped the session, or was restarted. The request may have been executed, but not twice.
    #[error("the server has lost the session; the request may or may not have been executed")]
    SessionLost,
    /// The server refuses the session.
    #[error("{0}")]
    SessionRefused(OpenOutcome),
    /// Client and server have no protocol version in common.
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
