//! The fabric's protocol without I/O: both sides as state that is given bytes and times, and asked for bytes.
//! [`farfork_wire::frame`] draws the exchange; [`crate::stream`] moves the bytes.
//!
//! ```text
//!             stream of bytes ──▶ Inbound ──▶ frames ──▶ Requester or Owner
//!   frames ──▶ Outbound ──▶ stream of bytes
//! ```

mod handles;
mod inbound;
mod outbound;
mod owner;
mod patience;
mod requester;

pub(crate) use inbound::{Event, Inbound};
pub(crate) use outbound::Outbound;
pub(crate) use owner::Owner;
pub(crate) use patience::Patience;
pub(crate) use requester::{Ask, Outcome, Requester, brings_descriptor};

#[cfg(test)]
mod tests;
