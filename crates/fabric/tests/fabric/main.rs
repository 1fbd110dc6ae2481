//! The fabric on real sockets and real processes: what all providers do alike, and what networks do to `tcp`.

mod changes;
mod conformance;
mod faults;
mod pattern;
mod proxy;
mod seed;
mod support;
mod tcp;
