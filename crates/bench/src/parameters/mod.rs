//! The parameters of each benchmark, and the keys of its samples. Pure.

pub(crate) mod churn;
pub(crate) mod connect;
pub(crate) mod fanout;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod function;
pub(crate) mod methods;
pub(crate) mod peak;
pub(crate) mod pool;
pub(crate) mod protection;
pub(crate) mod rpc;
pub(crate) mod strategies;
pub(crate) mod tree;
pub(crate) mod volume;
pub(crate) mod warm_start;
