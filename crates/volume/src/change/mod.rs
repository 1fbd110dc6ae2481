//! Change sets: a run of records, folded into the final state of everything that the records touch. No I/O, no clock.
//!
//! The offload process makes change sets, and the host worker applies them (`publish`). A change set contains final states,
//! so it can be applied again after a crash, even if a part of it is already applied.

mod change_set;
mod overwritten;

pub use change_set::{ChangeSet, DataChange, InodeChange};

#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod tests;
