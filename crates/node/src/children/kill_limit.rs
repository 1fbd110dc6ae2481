//! Determines which limit a child was killed for: its time, its memory, or its node's memory.

use std::fmt;
use std::time::Duration;

use farfork_api::byte_size;
use farfork_api::v1;
use farfork_container::{ContainerCgroup, OomCause};
use serde::{Deserialize, Serialize};

use super::child::{SIGBUS, SIGKILL};
use super::{Child, Exit};

/// A limit that a child was killed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KillLimit {
    /// The child ran for its time limit, in milliseconds.
    Time(u64),
    /// The child needed more than its memory limit, in bytes.
    Memory(u64),
    /// The child's node had no memory left.
    NodeMemory,
}

impl KillLimit {
    /// Returns the limit for which the OOM killer ended a child. `own_bytes_max` is the child's memory limit.
    pub(crate) fn from_memory_end(end: OomCause, own_bytes_max: Option<u64>) -> Self {
        match (end, own_bytes_max) {
            (OomCause::OwnLimit, Some(bytes)) => Self::Memory(bytes),
            _ => Self::NodeMemory,
        }
    }
}

impl From<KillLimit> for v1::Limit {
    fn from(limit: KillLimit) -> Self {
        match limit {
            KillLimit::Time(_) => Self::Time,
            KillLimit::Memory(_) => Self::Memory,
            KillLimit::NodeMemory => Self::NodeMemory,
        }
    }
}

/// Writes a clause about the child, such as `it had run for its 2s`.
impl fmt::Display for KillLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Time(ms) => {
                write!(formatter, "it had run for its {}", humantime::format_duration(Duration::from_millis(ms)))
            }
            Self::Memory(bytes) => {
                write!(formatter, "it needed more than its {} of memory", byte_size::format_bytes(bytes))
            }
            Self::NodeMemory => formatter.write_str("its node had no memory left"),
        }
    }
}

/// Why this daemon sent SIGKILL to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KillSource {
    /// A request.
    Request,
    /// The program that forked the child, such as an executor.
    Program,
    /// The child's deadline.
    Deadline,
}

/// Returns the limit that a child was killed for, if any. The child's control group must still exist.
pub(super) fn find_kill_limit(child: &Child, exit: &Exit, cgroup: &ContainerCgroup) -> Option<KillLimit> {
    let own_bytes_max = child.record().memory_bytes_max;
    match (exit, child.kill_source()) {
        (Exit::Code(_), _) | (_, Some(KillSource::Request | KillSource::Program)) => None,
        (Exit::Signal(SIGKILL) | Exit::Lost(_), Some(KillSource::Deadline)) => Some(time_limit(child)),
        _ if can_be_oom_kill(exit) => Some(KillLimit::from_memory_end(cgroup.oom_cause_of_killed()?, own_bytes_max)),
        _ => Some(KillLimit::from_memory_end(cgroup.oom_cause()?, own_bytes_max)),
    }
}

/// As `find_kill_limit`, for a child that ended while no daemon ran. `end` is the cause for which the OOM killer had
/// killed one of its processes.
pub(super) fn find_past_kill_limit(child: &Child, exit: &Exit, end: OomCause) -> Option<KillLimit> {
    can_be_oom_kill(exit).then(|| KillLimit::from_memory_end(end, child.record().memory_bytes_max))
}

/// Whether the OOM killer can cause this exit. SIGBUS: there was no memory for a page. `Lost`: the stub was killed.
fn can_be_oom_kill(exit: &Exit) -> bool {
    matches!(exit, Exit::Signal(SIGKILL | SIGBUS) | Exit::Lost(_))
}

fn time_limit(child: &Child) -> KillLimit {
    let record = child.record();
    KillLimit::Time(record.deadline_unix_ms.unwrap_or(0).saturating_sub(record.started_unix_ms))
}
