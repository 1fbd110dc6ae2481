//! What a template has as the process had it in the pause: read of the process. Of the template it could be read only afterwards,
//! on the way to the answer.

use crate::capture::error::CaptureError;
use crate::capture::state::{arguments, link};

/// What was read.
#[derive(Debug)]
pub(in crate::capture) struct Likeness {
    /// The directory that the process takes for its root.
    pub(in crate::capture) root: String,
    /// Its program and arguments.
    pub(in crate::capture) arguments: Vec<String>,
}

impl Likeness {
    /// Reads that of a process that stands.
    pub(in crate::capture) fn read(pid: i32) -> Result<Self, CaptureError> {
        Ok(Self { root: link(pid, pid, "root")?, arguments: arguments(pid, pid)? })
    }
}
