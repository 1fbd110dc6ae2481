//! A running process, carried to another node: capture → descriptor → seed → restore → pager.
//!
//! What is a process's state, and how it is taken and built again, is here; who asks for it, and where the nodes are,
//! is the daemon's business (`farfork-node`).
#![forbid(unsafe_code)]

pub mod call_timer;
pub mod capture;
pub mod core_file;
mod eager_paging;
pub mod file_identity;
mod file_use;
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
pub mod zygote;
