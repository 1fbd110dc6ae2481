//! The summaries of runs: tables as text, and a JSON document for scripts. All benchmarks share `table`; `sections` has
//! the form that reports show.

pub(crate) mod churn;
pub(crate) mod connect;
pub(crate) mod failures;
pub(crate) mod fanout;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod function;
pub(crate) mod function_profile;
pub(crate) mod peak;
pub(crate) mod pool;
pub(crate) mod rpc;
pub(crate) mod sections;
pub(crate) mod table;
pub(crate) mod tree;
pub(crate) mod volume;
pub(crate) mod warm_start;
