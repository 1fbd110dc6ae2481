//! Cluster membership and child placement as pure state machines, and test clusters of namespaces on one machine.
//!
//! [`membership`] and [`placement`] do no I/O and read no clock: `farfork-node` sends and receives their messages, and
//! passes the time as an argument.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod local;
pub mod membership;
pub mod placement;
