//! Refuses a process that has made another pid or time namespace for its children (pid_namespaces(7), time_namespaces(7)). Its
//! template would be the first process of that pid namespace, which cannot be stopped. Of time namespaces, the kernel shows only
//! the clock offsets of the one for children.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::capture::error::Refusal;

/// Refuses a process that has made another pid or time namespace for its children. Returns `None` for a process that has ended,
/// which other checks report.
pub(in crate::capture) fn refusal(pid: i32) -> Option<Refusal> {
    let link = |name: &str| -> io::Result<PathBuf> { fs::read_link(format!("/proc/{pid}/ns/{name}")) };
    // The link of a pid namespace without processes cannot be read. Neither can any link of a process that ends.
    let differs = |kind: &str| {
        let own = link(kind).ok()?;
        let of_children = link(&format!("{kind}_for_children")).ok();
        Some(of_children != Some(own) && link("net").is_ok())
    };
    let (kind, flag) =
        [("pid", "PID"), ("time", "TIME")].into_iter().find(|(kind, _)| differs(kind).unwrap_or(false))?;
    let reason = format!(
        "it has made a {kind} namespace for its children (unshare(2), CLONE_NEW{flag}) but is in another one, which is not carried; prepare a process in that namespace"
    );
    Some(Refusal::new(format!("pid {pid}"), reason))
}
