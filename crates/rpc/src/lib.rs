//! Calls between nodes: a client asks, a handler of the server answers, and each request is executed at most once,
//! whatever becomes of connections meanwhile.
//!
//! ```text
//!   caller                                                   handlers
//!   Client ── submit, poll ──▶ completions                   Handlers ◀── called by ── server threads
//!     │                                                          ▲
//!   client::core        pure: sessions, requests, what to send   server::peer      pure: frames → handlers → replies
//!     │                                                          │                 server::session, server::registry
//!     │                                                          server::hall      connections, turns, sweeping
//!   client::link        streams, waiting, reconnecting           server::worker    threads, sockets, waiting
//!     └──────────────────── bytes of wire::rpc over fabric::transport::Stream ──────┘
//! ```
//!
//! Frames are built where they are sent from ([`spool`]) and understood where they are received ([`inbound`]); on the way
//! of a small request nothing is allocated and nothing locked. What the bytes travel through, and who may connect, is
//! the business of the `Stream`'s maker; what is called, that of the crates above.
#![forbid(unsafe_code)]

pub mod client;
mod frame_decoder;
mod retransmit;
pub mod server;
pub mod sim;
mod typed_call;

pub use client::{CallError, Client, Completion, OutgoingRequest, RequestPayload, SessionHandle, SubmitError};
pub use farfork_wire::rpc::{PAYLOAD_BYTES_MAX, SESSIONS_MAX, SessionId, Status, WINDOW_MAX};
pub use frame_decoder::Payload;
pub use server::{DeferredReply, HandlerTable, ReplyWriter, Server};
pub use typed_call::{TypedCall, TypedCallError};

#[cfg(test)]
mod tests;
