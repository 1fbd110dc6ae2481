//! The messages between programs and a node's daemon: requests and replies of fixed layout, one per packet. Bytes only: the
//! daemon listens, and the C library (`c/`) and the Python package connect.
//!
//! `include/farfork_protocol.h` defines the meaning of the messages. [`layout`] has the same structures; a test compares
//! them with the header.
#![forbid(unsafe_code)]

pub mod layout;
mod reply;
mod request;

pub use reply::{ChildEnd, ExceededLimit, Reply};
pub use request::{CaptureOffer, ForkOptions, ProtocolError, Request, RequestBody, RequestedNetwork};

/// Largest message that a program may send, in bytes: a fork request is the largest one.
pub const REQUEST_BYTES_MAX: usize = size_of::<layout::ForkRequest>();
