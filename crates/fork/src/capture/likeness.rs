//! What a template has as the process had it in the pause: read of the process. Of the template it could be read only afterwards,
//! on the way to the answer.

use super::error::CaptureError;
use super::state::{arguments, link};

/// What was read.
#[derive(Debug)]
pub(super) struct Likeness {
    /// The directory that the process takes for its root.
    pub(super) root: String,
    /// Its program and arguments.
    pub(super) arguments: Vec<String>,
}

impl Likeness {
    /// Reads that of a process that stands.
    pub(super) fn read(pid: i32) -> Result<Self, CaptureError> {
        Ok(Self { root: link(pid, pid, "root")?, arguments: arguments(pid, pid)? })
    }
}
