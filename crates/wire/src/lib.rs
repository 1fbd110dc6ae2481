//! The bytes of farfork: identifiers, the descriptor of a seed, frames of the fabric and of the RPC.
//!
//! Contains no I/O, no clock, no randomness and no `unsafe`. `farfork-fabric` moves these bytes; `farfork-fork` defines
//! their meaning for a process.
#![forbid(unsafe_code)]

pub mod descriptor;
pub mod frame;
pub mod id;
pub mod rpc;
pub mod token;

pub use descriptor::Descriptor;
pub use id::{ChildId, IdError, NodeName, SeedId};
pub use token::Token;

/// Size of a page of memory, in bytes. farfork runs on x86-64 only, where base pages have this size.
pub const PAGE_SIZE: u64 = 4096;
