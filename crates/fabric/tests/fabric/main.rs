//! Tests of the fabric on real sockets and real processes: the behaviour common to all providers, and network faults on
//! `tcp`.

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
