//! The provider for tests: nodes, network and time are simulated, from a seed, in one thread.
//!
//! A failure that one seed brings about is brought about by it every time. What runs on it is the code that runs on
//! sockets: protocol, connection and peer are the same; only who carries the bytes and who tells the time differ.

pub mod world;

pub use world::World;
