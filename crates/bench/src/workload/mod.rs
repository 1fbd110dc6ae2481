//! Programs that are measured. One file each, with the program beside it.

pub(crate) mod calls;
pub(crate) mod churn;
pub(crate) mod handshakes;
pub(crate) mod micro;
pub(crate) mod parent;
pub(crate) mod single;
pub(crate) mod sparse;
pub(crate) mod tree;
pub(crate) mod turns;
pub(crate) mod wander;
