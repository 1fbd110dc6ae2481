//! The differ: reads everything that the kernel shows of a process and of its child, and compares the two.
//!
//! [`observe`] reads without judging. [`compare`] and [`TOLERANCES`] are pure: the table has each permitted difference and
//! its reason. Fields are read because the kernel shows them, not because farfork restores them: files of `/proc/PID` by the
//! directory's listing, socket options by number. Each reader has a table of the state that it omits, with reasons.
#![forbid(unsafe_code)]

mod comparison;
mod observer;
mod pattern;
mod tolerance;

pub use comparison::{ComparisonReport, Difference, ToleratedDifference, compare};
pub use observer::{ObserveError, observe};
pub use tolerance::{TOLERANCES, Tolerance, TolerancePolicy};

/// The state of a process tree, as the kernel shows it: a value for each field. A field is a path that begins with the
/// id of a process in its own pid namespace, such as `71/status/SigBlk`. Ids and inode numbers in values are replaced
/// by names that are equal in parent and child.
///
/// ```text
///  parent ─ stop ─ observe ─▶ Observation ─┐
///                                          ├─ compare ─▶ ComparisonReport: differences, and those that a tolerance permits
///  child ── stop ─ observe ─▶ Observation ─┘
/// ```
pub type Observation = std::collections::BTreeMap<String, String>;
