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

pub(crate) use ask::{Ask, Outcome};
pub(crate) use inbound::{Event, Inbound};
pub(crate) use outbound::Outbound;
pub(crate) use owner::{Owner, Shared};
pub(crate) use patience::Patience;
pub(crate) use refused::Refused;
pub(crate) use requester::{Requester, brings_descriptor};
pub(crate) use sessions::{Seat, Sessions};

#[cfg(test)]
mod tests;
