//! The fabric's protocol without I/O: both sides as state that is given bytes and times, and asked for bytes.
//! [`farfork_wire::frame`] draws the exchange; [`crate::stream`] moves the bytes.
//!
//! ```text
//!             stream of bytes ──▶ Inbound ──▶ frames ──▶ Requester or Owner
//!   frames ──▶ Outbound ──▶ stream of bytes
//! ```

mod ask;
mod handles;
mod inbound;
mod outbound;
mod owner;
mod patience;
mod refused;
mod requester;
mod sessions;

pub(crate) use ask::{PendingRequest, RequestOutcome};
pub(crate) use inbound::{DecodeEvent, FrameDecoder};
pub(crate) use outbound::SendQueue;
pub(crate) use owner::{OwnerContext, Responder};
pub(crate) use patience::Backoff;
pub(crate) use refused::RefusedRequest;
pub(crate) use requester::{Requester, carries_fd};
pub(crate) use sessions::{ChangeSessionTable, SessionAttachment};

#[cfg(test)]
mod tests;
