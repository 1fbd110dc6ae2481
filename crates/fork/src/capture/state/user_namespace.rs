//! Refuses a process in another user namespace than the node's. Root in such a namespace has no rights on the node, and
//! capabilities(7) hold only in the namespace. A child has the node's users, so it would gain rights.

use std::fs;
use std::io;

use crate::capture::error::Refusal;

/// Refuses a process in another user namespace than this process. Returns `None` for a process that has ended, which other
/// checks report.
pub(in crate::capture) fn refusal(pid: i32) -> Option<Refusal> {
    let number = |process: &str| -> io::Result<_> { fs::read_link(format!("/proc/{process}/ns/user")) };
    let (theirs, ours) = (number(&pid.to_string()).ok()?, number("self").ok()?);
    let reason = "it is in its own user namespace, whose users and capabilities are not carried; run it in the node's user namespace";
    (theirs != ours).then(|| Refusal::new(format!("pid {pid}"), reason))
}
