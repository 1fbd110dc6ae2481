//! The fabric's protocol without I/O. Both sides are state machines: their inputs are bytes and times, and their output
//! is bytes. [`farfork_wire::frame`] defines the frames and draws their exchange; [`crate::stream`] moves the bytes.

//             stream of bytes --> FrameDecoder --> frames --> Requester or Responder
//  frames --> SendQueue --> stream of bytes

mod backoff;
mod change_sessions;
mod frame_decoder;
mod handle_table;
mod pending_request;
mod refused_request;
mod requester;
mod responder;
mod send_queue;

pub(crate) use backoff::Backoff;
pub(crate) use change_sessions::{ChangeSessionTable, SessionAttachment};
pub(crate) use frame_decoder::{DecodeEvent, FrameDecoder};
pub(crate) use pending_request::{PendingRequest, RequestOutcome};
pub(crate) use refused_request::RefusedRequest;
pub(crate) use requester::{Requester, carries_fd};
pub(crate) use responder::{OwnerContext, Responder};
pub(crate) use send_queue::SendQueue;

#[cfg(test)]
mod tests;
