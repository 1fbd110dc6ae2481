//! Starts nodes and has things happen in order. `cluster` has the nodes and the requests to them; each benchmark has a
//! file with its course.

pub(crate) mod census;
pub(crate) mod churn;
pub(crate) mod cluster;
pub(crate) mod connect;
pub(crate) mod creators;
pub(crate) mod crowd;
pub(crate) mod fanout;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod forkers;
pub(crate) mod pausers;
pub(crate) mod pool;
pub(crate) mod rpc;
pub(crate) mod soak;
pub(crate) mod stage;
pub(crate) mod stress;
pub(crate) mod tree;
mod warm;
pub(crate) mod warm_start;
