//! Parts that several benchmarks and long runs use. `nodes` has the nodes of a run, `node_client` the
//! requests to one of them, and `local_cluster` what benchmarks do with them. `testbed` has machines without nodes. The other files have clients, children, and checks.

pub(crate) mod create_methods;
pub(crate) mod error_log;
pub(crate) mod fanout_client;
pub(crate) mod fork_load;
pub(crate) mod host_report;
pub(crate) mod leak_check;
pub(crate) mod local_cluster;
pub(crate) mod node_client;
pub(crate) mod nodes;
pub(crate) mod observer;
pub(crate) mod pause_methods;
pub(crate) mod testbed;
pub(crate) mod timed_client;
mod warm_children;
