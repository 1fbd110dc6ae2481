//! The provider for tests: nodes, network and time are simulated, from a seed, in one thread.
//!
//! A failure that one seed brings about is brought about by it every time. What runs on it is the code that runs on
//! sockets: protocol, connection and peer are the same; only who carries the bytes and who tells the time differ.

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
