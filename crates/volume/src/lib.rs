//! A replicated file system. A client appends what it changes to its own log; an offload process validates the log and
//! publishes it to an ordinary directory, the shared tree. Offload processes also replicate the log (`chain`). `crates/node`
//! supervises the processes of a node, and `crates/cli` those of a mount.
#![forbid(unsafe_code)]

//   programs ──FUSE──▶ client process ──log file──▶ offload process ──socket──▶ host worker ──▶ shared tree
//                      mount, view, log             replay, change  │           publish
//
// `record`, `log::ring`, `replay`, `change` and `view` are pure: no I/O, no clock.

pub mod chain;
pub mod change;
pub mod log;
pub mod mount;
mod named_values;
pub mod process;
pub mod publish;
pub mod record;
pub mod replay;
mod replica_file;
pub mod view;
