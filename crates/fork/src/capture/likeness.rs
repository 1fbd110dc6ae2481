//! What a template has as the process had it in the pause: read of the process, while its clone is under way and we would only
//! wait. Of the template it could be read only afterwards, on the way to the answer.

use farfork_sys::process::{self, FdInfo};

use super::error::CaptureError;
use super::files::{self, OpenFd, ProgramSockets};
use super::state::{arguments, link};
use super::survey::timer_slack_ns;

/// Most descriptors that are looked at here, at some 3 µs each: while the smallest process is forked there is time for no more.
const FDS_MAX: usize = 16;

/// What was read.
#[derive(Debug)]
pub(super) struct Likeness {
    /// The directory that the process takes for its root.
    pub(super) root: String,
    /// Its program and arguments.
    pub(super) arguments: Vec<String>,
    /// personality(2).
    pub(super) personality: u32,
    /// The main thread's. A template's own is lost when it is scheduled before others.
    pub(super) timer_slack_ns: u64,
    /// Its descriptors with what `fdinfo` tells of them, where they are few; else they are read when it is cloned.
    pub(super) fds: Option<(Vec<OpenFd>, Vec<FdInfo>)>,
}

impl Likeness {
    /// Reads that of a process that stands. `known` are its descriptors from shortly before; `sockets` its connections, where
    /// it is the first process of its tree.
    pub(super) fn read(pid: i32, known: &[OpenFd], sockets: Option<&ProgramSockets>) -> Result<Self, CaptureError> {
        let read = |what: &'static str| CaptureError::read(pid, what);
        let personality = process::read_line(&format!("/proc/{pid}/personality")).map_err(read("personality"))?;
        // What cannot be read now (another process has the same table, and closes one) is read again.
        let fds = sockets.filter(|_| known.len() <= FDS_MAX);
        let fds = fds.and_then(|sockets| files::known_fds(pid, known, sockets, None).ok());
        Ok(Self {
            root: link(pid, pid, "root")?,
            arguments: arguments(pid, pid)?,
            personality: u32::from_str_radix(&personality, 16).unwrap_or(0),
            timer_slack_ns: timer_slack_ns(pid).map_err(read("timerslack_ns"))?,
            fds,
        })
    }
}
