//! The measured programs and loads. Each has one file, next to its C++ program if it has one.

pub(crate) mod child_task;
pub(crate) mod clustering;
pub(crate) mod file_writer;
pub(crate) mod filebench;
pub(crate) mod fork_workload;
pub(crate) mod functions;
pub(crate) mod handshakes;
pub(crate) mod leveldb;
pub(crate) mod memory_walk;
pub(crate) mod micro;
pub(crate) mod page_touch;
pub(crate) mod parent;
pub(crate) mod parent_root;
pub(crate) mod rpc_load;
pub(crate) mod sparse;
pub(crate) mod warm_function;
