//! The provider for tests: nodes, network and time are simulated from a random seed, in one thread.
//!
//! Each random seed reproduces its failure every time. Protocol, link and server connection are the same code as on
//! real sockets; only the transport and the clock differ.

mod connection;
mod dialer;
mod fault_injector;
mod random_seeds;
mod server;
pub mod world;

pub use connection::connect;
pub use dialer::SimDialer;
pub use fault_injector::FaultInjector;
pub use random_seeds::{run_random_seeds, run_scenario};
pub use server::SimServer;
pub use world::World;
