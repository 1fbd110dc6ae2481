//! Who is in the cluster and where children go: pure state machines, and clusters of namespaces on one machine.
//!
//! [`membership`] and [`placement`] do no I/O and have no clock: `farfork-node` moves their messages and tells them
//! the time.
#![forbid(unsafe_code)]

pub mod local;
pub mod membership;
pub mod placement;
