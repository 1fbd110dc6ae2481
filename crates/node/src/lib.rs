//! The daemon `farfork node`: it connects requests, seeds, children and the fabric. `farfork-cli` calls [`daemon::run`].
//! `farfork-api` has the messages of its API, and the client.
#![forbid(unsafe_code)]

//   clients ─▶ api_server ──▶ service ──▶ node ─┬─ peers, heartbeat   the other nodes
// programs ──▶ program ─────────▲               ├─ seeds              what children are made from
//                                               ├─ children           what runs here
//                                               └─ engine             starts a child: container, network, restore, pager
//
// `volumes` supervises the offload process and the host worker of the node's volumes. `phases` records where a
// request's time went; `metrics` exports all of this to Prometheus.
mod affinity;
mod api_server;
mod async_fd;
mod attended;
pub mod auth;
mod children;
mod clock;
mod control_port;
pub mod daemon;
#[doc(hidden)]
pub mod decoders;
mod engine;
mod heartbeat;
mod lost_seeds;
mod member_catalog;
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
mod seeds;
mod service;
mod speculation;
mod stall_watchdog;
mod trust;
mod volumes;

pub use network::EgressDestination;
pub use trust::{EnrollmentError, join_cluster};
