//! The daemon `farfork node`, where requests, seeds, children and the fabric meet, and the client of its API.
#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
pub mod client;
pub mod failure;
pub mod limits;
pub mod run_dir;
