//! The fabric on real sockets and real processes: what all providers do alike, and what networks do to `tcp`.

mod conformance;
mod proxy;
mod support;
mod tcp;
