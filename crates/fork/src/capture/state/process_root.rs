//! The root directory of a process, read in the pause while the template is made.
//! To read it from the template afterwards would delay the answer. Arguments are read then all the same: they are in
//! memory, which is locked while fork(2) copies it.

use crate::capture::error::CaptureError;
use crate::capture::state::proc_link::read_proc_link;
use crate::capture::state::user_namespace;

/// What was read.
#[derive(Debug)]
pub(in crate::capture) struct ProcessRoot {
    /// The directory that the process takes for its root.
    pub(in crate::capture) root: String,
}

impl ProcessRoot {
    /// Reads that of a process that stands.
    pub(in crate::capture) fn read(pid: i32) -> Result<Self, CaptureError> {
        // Who enters a namespace of users does so alone, and at any time.
        if let Some(refusal) = user_namespace::refusal(pid) {
            return Err(CaptureError::refused(pid, vec![refusal]));
        }
        Ok(Self { root: read_proc_link(pid, pid, "root")? })
    }
}
