//! Carries a running process to another node: capture → descriptor → seed → restore → pager.
//!
//! This crate captures the state of a process, and restores it. The daemon (`farfork-node`) handles requests and
//! communicates with the other nodes.
#![forbid(unsafe_code)]

mod bpf_interpreter;
pub mod call_timer;
pub mod capture;
pub mod core_file;
mod eager_paging;
pub mod file_identity;
mod file_use;
mod futex_words;
pub mod huge_pages;
pub mod idle_detector;
pub mod image;
pub mod kernel;
pub mod owner_connections;
pub mod pager;
mod phase;
pub mod restore;
pub mod resume;
pub mod seed;
mod volume_table;
pub mod zygote;
