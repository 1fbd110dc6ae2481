//! The API of a node: its messages, and the client that the commands, the benchmarks and other nodes use.
//! `farfork-node` serves it. Both sides share the limits, the failures and the paths of the run directory.
#![forbid(unsafe_code)]

pub mod byte_size;
pub mod child_freezer;
pub mod client;
pub mod control_connection;
pub mod failure;
pub mod limits;
mod member;
pub mod run_dir;

/// Version 1 of the API, the only one, generated from `proto/farfork/v1/`. The comments there are its documentation.
#[expect(missing_docs, clippy::large_enum_variant, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("farfork.v1");
}
