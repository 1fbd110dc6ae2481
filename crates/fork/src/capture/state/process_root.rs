//! The root directory of a process, read in the pause while the template is made. Reading it from the template later would
//! delay the reply. The arguments are still read later: they are in memory, which is locked while fork(2) copies it.

use crate::capture::error::CaptureError;
use crate::capture::state::proc_link::read_proc_link;
use crate::capture::state::user_namespace;

/// The root directory.
#[derive(Debug)]
pub(in crate::capture) struct ProcessRoot {
    /// The directory that is the root of the process.
    pub(in crate::capture) root: String,
}

impl ProcessRoot {
    /// Reads the root of a stopped process. Refuses a process in another user namespace.
    pub(in crate::capture) fn read(pid: i32) -> Result<Self, CaptureError> {
        // Check again: since the survey, the process may have entered a new user namespace without its parent and children.
        if let Some(refusal) = user_namespace::refusal(pid) {
            return Err(CaptureError::refused(pid, vec![refusal]));
        }
        Ok(Self { root: read_proc_link(pid, pid, "root")? })
    }
}
