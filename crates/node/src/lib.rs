//! The daemon `farfork node`, which joins requests, seeds, children and the fabric, and the client of its API.
//! `farfork-cli` calls [`daemon::run`]; commands and benchmarks use [`client`].
#![forbid(unsafe_code)]

//   client ──▶ api_server ──▶ service ──▶ node ─┬─ peers, heartbeat   the other nodes
// programs ──▶ program ─────────▲               ├─ seeds              what children are made from
//                                               ├─ children           what runs here
//                                               └─ engine             starts a child: container, network, restore, pager
//
// `phases` records where a request's time went; `metrics` exports all of this to Prometheus.
mod affinity;
pub mod api;
mod api_server;
mod async_fd;
mod attended;
pub mod auth;
pub mod byte_size;
mod children;
pub mod client;
mod clock;
mod control_port;
pub mod daemon;
#[doc(hidden)]
pub mod decoders;
mod engine;
pub mod failure;
mod heartbeat;
pub mod limits;
mod member_file;
mod metrics;
mod network;
mod node;
pub mod options;
mod pager_link;
mod pager_supervisor;
mod peers;
mod pending_starts;
pub mod phases;
mod program;
pub mod run_dir;
mod seeds;
mod service;
mod speculation;
mod stall_watchdog;
mod trust;

pub use network::EgressDestination;
