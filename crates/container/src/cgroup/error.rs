//! Why an operation on a control group failed.

use std::io;
use std::path::PathBuf;

/// An operation on a control group that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The machine's hierarchies cannot be determined.
    #[error("cannot determine the control groups of this machine: {0}; is /proc mounted?")]
    Detect(#[source] io::Error),
    /// A group cannot be made.
    #[error("cannot make control group {}: {cause}; is its file system writable for this process?", path.display())]
    Create {
        /// The group's directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A process cannot be moved into a group.
    #[error("cannot move process {pid} into control group {}: {cause}", path.display())]
    Join {
        /// The group's directory.
        path: PathBuf,
        /// The process.
        pid: i32,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A file of a group cannot be read or written.
    #[error("cannot use {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Processes of a group do not stop.
    #[error("control group {} did not stop within {waited_ms} ms: {cause}; one of its threads is in a system call that cannot be interrupted: try again", path.display())]
    Freeze {
        /// The group's directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
        /// The time waited, in milliseconds.
        waited_ms: u128,
    },
    /// No hierarchy of the machine supports a requested limit.
    #[error("no control group here has the `{controller}` controller; enable it, or drop this limit")]
    ControllerMissing {
        /// The controller.
        controller: &'static str,
    },
    /// A group cannot be removed.
    #[error("cannot remove control group {}: {cause}; its cgroup.procs lists the remaining processes", path.display())]
    Remove {
        /// The group's directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
}
