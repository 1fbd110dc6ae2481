//! Refuses a process in another user namespace than the node's. Its users are others: its root has no rights here, and its
//! capabilities(7) hold only there. A child has the node's users, so it would gain such rights.

use std::fs;
use std::io;

use crate::capture::error::Refusal;

/// Refuses a process with other users than this one. A process that has ended is reported elsewhere.
pub(in crate::capture) fn refusal(pid: i32) -> Option<Refusal> {
    let number = |process: &str| -> io::Result<_> { fs::read_link(format!("/proc/{process}/ns/user")) };
    let (theirs, ours) = (number(&pid.to_string()).ok()?, number("self").ok()?);
    let reason = "it is in its own user namespace, whose users and capabilities are not carried; run it in the node's user namespace";
    (theirs != ours).then(|| Refusal::new(format!("pid {pid}"), reason))
}
