//! Refuses a process that has made another time namespace for its children (time_namespaces(7)). The kernel shows only the
//! clock offsets of the namespace for children, not the offsets of the process's own. A child of a seed has one namespace
//! for itself and its children.

use std::fs;
use std::io;

use crate::capture::error::Refusal;

/// Refuses a process that has made another time namespace for its children. Returns `None` for a process that has ended,
/// which other checks report.
pub(in crate::capture) fn refusal(pid: i32) -> Option<Refusal> {
    let number = |name: &str| -> io::Result<_> { fs::read_link(format!("/proc/{pid}/ns/{name}")) };
    let (own, of_children) = (number("time").ok()?, number("time_for_children").ok()?);
    let reason = "it has made a time namespace for its children (unshare(2), CLONE_NEWTIME) but is in another one, which is not carried; start it from a process in that namespace";
    (own != of_children).then(|| Refusal::new(format!("pid {pid}"), reason))
}
