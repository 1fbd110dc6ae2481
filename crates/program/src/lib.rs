//! What programs and a node's daemon say to each other: requests and replies of fixed layout, one a message. Bytes only;
//! who listens is the daemon's business, who asks that of the C library beside this (`c/`) and of the Python package.
//!
//! `include/farfork_protocol.h` says what the messages mean. [`layout`] is its twin, which a test compares with it.
#![forbid(unsafe_code)]

pub mod layout;
mod reply;
mod request;

pub use reply::{ChildEnd, ExceededLimit, Reply};
pub use request::{CaptureOffer, ForkOptions, ProtocolError, Request, RequestBody, RequestedNetwork};

/// Largest message that a program may send, in bytes: a fork request is the largest one.
pub const REQUEST_BYTES_MAX: usize = size_of::<layout::ForkRequest>();

/// Most descriptors that come with a message.
pub const FDS_MAX: usize = 2;
