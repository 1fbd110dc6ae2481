//! Parts that several benchmarks and long runs use. `local_cluster` has nodes and the requests to them. `testbed` has
//! namespaces for endpoints without nodes. The other files have clients, children, and checks.

pub(crate) mod create_methods;
pub(crate) mod error_log;
pub(crate) mod fanout_client;
pub(crate) mod fork_load;
pub(crate) mod leak_check;
pub(crate) mod local_cluster;
pub(crate) mod pause_methods;
pub(crate) mod testbed;
mod warm_children;
