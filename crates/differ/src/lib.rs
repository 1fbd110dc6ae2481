//! The differ: all that the kernel shows of a process and of a child of it, read and compared.
//!
//! ```text
//!  parent ─ stop ─ observer ─▶ Observation ─┐
//!                                           ├─ compare ─▶ Report: differences, and those that a tolerance permits
//!  child ── stop ─ observer ─▶ Observation ─┘
//! ```
//!
//! [`observe`] reads and does no judging; [`compare`] and the table of tolerances are pure. Fields are read because the kernel
//! shows them, not because farfork carries them: files of `/proc/PID` by their listing, socket options by their numbers. What
//! may differ stands in [`TOLERANCES`] with its reason; what is not read stands in tables beside its reader.
#![forbid(unsafe_code)]

mod comparison;
mod observer;
mod pattern;
mod tolerance;

pub use comparison::{ComparisonReport, Difference, ToleratedDifference, compare};
pub use observer::{ObserveError, observe};
pub use tolerance::{TOLERANCES, Tolerance, TolerancePolicy};

/// What the kernel shows of the processes of a tree: a value for each field. Fields are paths that begin with the id of a process in
/// its own pid namespace, such as `71/status/SigBlk`. Ids and inode numbers in values are replaced by names that are the same in a
/// copy.
pub type Observation = std::collections::BTreeMap<String, String>;
