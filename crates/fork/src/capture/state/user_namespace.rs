//! Whose users a process has. In a user namespace of its own it has others than the node: who is root there is somebody without rights here,
//! and what it may do (capabilities(7)) holds there alone. A child, which has the node's users, would have come by such rights.

use std::fs;
use std::io;

use crate::capture::error::Refusal;

/// Why a process with other users than ours is refused. Of one that has ended somebody else tells.
pub(in crate::capture) fn refusal(pid: i32) -> Option<Refusal> {
    let number = |process: &str| -> io::Result<_> { fs::read_link(format!("/proc/{process}/ns/user")) };
    let (theirs, ours) = (number(&pid.to_string()).ok()?, number("self").ok()?);
    let reason = "it is in a user namespace of its own, as its users and rights are, which are not carried; run it as a user of the node's";
    (theirs != ours).then(|| Refusal::new(format!("pid {pid}"), reason))
}
