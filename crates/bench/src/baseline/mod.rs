//! What figures are compared with, measured in the same run: floors, below which nobody can be, and peers. One file each,
//! with its program beside it. The floor that is a local `fork()` is the workload's own doing: see `workload`.

pub(crate) mod connect;
pub(crate) mod criu;
pub(crate) mod crowd;
pub(crate) mod echo;
pub(crate) mod fault;
pub(crate) mod halts;
pub(crate) mod link;
