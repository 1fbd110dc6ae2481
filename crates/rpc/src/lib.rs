//! Calls between nodes: a client submits requests, and handlers at the server reply. Each request is executed at most
//! once, even across reconnections. The fabric's `Stream` transports the bytes and authenticates the peer. The crates
//! that use this one define the calls.
#![forbid(unsafe_code)]

//   caller                                                   handlers
//   Client -- submit, poll --> completions                   HandlerTable <-- called by -- server threads
//     |                                                          ^
//   client::protocol     pure: sessions, requests            server::protocol           pure: frames, handlers, replies
//     |                                                          |                          session, session_registry
//     |                                                      server::connection_table   connections, turns, sweeping
//   client::connection   streams, waiting, reconnecting      server::worker             threads, sockets, waiting
//     +------------------- bytes of wire::rpc over fabric::transport::Stream -------------------+
//
// Frames are encoded in the buffer from which they are sent (`retransmit`), and decoded in the buffer into which they
// are received (`frame_decoder`). A small request is handled without allocation and without a lock.

pub mod client;
mod frame_decoder;
mod retransmit;
pub mod server;
pub mod sim;
mod typed_call;

pub use client::{CallError, Client, Completion, OutgoingRequest, RequestPayload, SessionHandle, SubmitError};
pub use farfork_wire::rpc::{PAYLOAD_BYTES_MAX, SESSIONS_MAX, SessionId, Status, WINDOW_MAX};
pub use frame_decoder::ReceivedPayload;
pub use server::{DeferredReply, HandlerTable, ReplyWriter, Server};
pub use typed_call::{TypedCall, TypedCallError};

#[cfg(test)]
mod tests;
