//! The daemon `farfork node`, where requests, seeds, children and the fabric meet, and the client of its API.
//!
//! ```text
//!   client ──▶ serve ──▶ service ──▶ node ─┬─ peers, heartbeat   the other nodes
//! programs ──▶ program ────▲              ├─ seeds              what children are made from
//!                                          ├─ children           what runs here
//!                                          └─ engine             starts a child: container, network, restore, pager
//! ```
//!
//! `phases` gathers where a request's time went, `metrics` tells Prometheus of all of them.
#![forbid(unsafe_code)]

mod acquaintances;
mod affinity;
pub mod amount;
pub mod api;
mod attended;
pub mod auth;
mod children;
pub mod client;
mod clock;
pub mod daemon;
#[doc(hidden)]
pub mod decoders;
mod descriptor_watch;
mod engine;
pub mod failure;
mod foresight;
mod gate;
mod heartbeat;
pub mod limits;
mod metrics;
mod network;
mod node;
pub mod options;
mod pager_link;
mod pager_supervision;
mod peers;
pub mod phases;
mod program;
pub mod run_dir;
mod seeds;
mod serve;
mod service;
mod standstill;
mod starts;
mod trust;

pub use network::EgressDestination;
