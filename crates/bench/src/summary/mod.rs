//! What a run amounts to: tables for people, one document for scripts. `table` is what all benchmarks share.

pub(crate) mod churn;
pub(crate) mod connect;
pub(crate) mod fanout;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod pool;
pub(crate) mod rpc;
mod table;
pub(crate) mod tree;
pub(crate) mod warm_start;
