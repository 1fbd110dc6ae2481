//! Starts nodes and has things happen in order. `cluster` has the nodes and the requests to them; each benchmark has a
//! file with its course.

pub(crate) mod churn;
pub(crate) mod connect;
pub(crate) mod create_methods;
pub(crate) mod fanout;
pub(crate) mod fanout_client;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod leak_check;
pub(crate) mod local_cluster;
pub(crate) mod pause_methods;
pub(crate) mod pool;
pub(crate) mod rpc;
pub(crate) mod soak;
pub(crate) mod stress_fork;
pub(crate) mod stress_rpc;
pub(crate) mod testbed;
pub(crate) mod tree;
mod warm_children;
pub(crate) mod warm_start;
