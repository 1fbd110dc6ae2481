//! The fabric on real sockets and real processes: what all providers do alike, and what networks do to `tcp`.

mod changes;
mod client;
mod conformance;
mod faults;
mod hostile;
mod log;
mod members;
mod pattern;
mod proxy;
mod security;
mod seed;
mod sim;
mod support;
mod tcp;
