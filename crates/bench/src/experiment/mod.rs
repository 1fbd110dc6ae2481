//! Runs the benchmarks. Each command has one file, which starts nodes and takes samples in a fixed order.
//! `local_cluster` has the nodes and the requests to them, `testbed` the namespaces for endpoints without nodes.

pub(crate) mod churn;
pub(crate) mod connect;
pub(crate) mod create_methods;
mod error_log;
pub(crate) mod fanout;
pub(crate) mod fanout_client;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod fork_load;
pub(crate) mod function;
pub(crate) mod leak_check;
pub(crate) mod local_cluster;
pub(crate) mod pause_methods;
pub(crate) mod peak;
pub(crate) mod pool;
pub(crate) mod rpc;
pub(crate) mod soak;
pub(crate) mod stress_fork;
pub(crate) mod stress_rpc;
pub(crate) mod testbed;
pub(crate) mod tree;
pub(crate) mod volume;
mod warm_children;
pub(crate) mod warm_start;
