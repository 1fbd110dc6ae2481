//! farfork's bytes and nothing else: identifiers, the descriptor of a seed, frames of the fabric and of the RPC.
//!
//! There is no I/O here, no clock, no randomness and no `unsafe`. Who moves these bytes is the business of
//! `farfork-fabric`; what they mean for a process, that of `farfork-fork`.
#![forbid(unsafe_code)]

pub mod descriptor;
pub mod frame;
pub mod id;
pub mod rpc;
pub mod token;

pub use descriptor::Descriptor;
pub use id::{ChildId, IdError, NodeName, SeedId};
pub use token::Token;

/// Size of a page of memory, in bytes. farfork runs on x86-64, where the base page has one size.
pub const PAGE_SIZE: u64 = 4096;
