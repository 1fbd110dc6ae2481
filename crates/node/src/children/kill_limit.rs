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
    /// It had run for so many milliseconds.
    Time(u64),
    /// It needed more than so many bytes.
    Memory(u64),
    /// Its node had no memory left.
    NodeMemory,
}

impl KillLimit {
    /// What ended a child that the kernel killed for want of memory.
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

/// A clause, as what a child did.
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

/// Who has sent SIGKILL to a child through this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KillSource {
    /// Somebody who asked for that.
    Request,
    /// The end of its time.
    Deadline,
}

/// Which limit a child was killed for, where it was for one. Its control group must still be there.
pub(super) fn find_kill_limit(child: &Child, exit: &Exit, cgroup: &ContainerCgroup) -> Option<KillLimit> {
    let own_bytes_max = child.record().memory_bytes_max;
    match (exit, child.kill_source()) {
        (Exit::Code(_), _) | (_, Some(KillSource::Request)) => None,
        (Exit::Signal(SIGKILL) | Exit::Lost(_), Some(KillSource::Deadline)) => Some(time_limit(child)),
        _ if can_be_oom_kill(exit) => Some(KillLimit::from_memory_end(cgroup.oom_cause_of_killed()?, own_bytes_max)),
        _ => Some(KillLimit::from_memory_end(cgroup.oom_cause()?, own_bytes_max)),
    }
}

/// The same of a child that ended while no daemon was there, of which the kernel had killed a process for want of memory.
pub(super) fn find_past_kill_limit(child: &Child, exit: &Exit, end: OomCause) -> Option<KillLimit> {
    can_be_oom_kill(exit).then(|| KillLimit::from_memory_end(end, child.record().memory_bytes_max))
}

/// Whether the kernel ends who needs too much memory like this. SIGBUS: a page that there was no room for. Lost: its container's own
/// process was the one to go.
fn can_be_oom_kill(exit: &Exit) -> bool {
    matches!(exit, Exit::Signal(SIGKILL | SIGBUS) | Exit::Lost(_))
}

fn time_limit(child: &Child) -> KillLimit {
    let record = child.record();
    KillLimit::Time(record.deadline_unix_ms.unwrap_or(0).saturating_sub(record.started_unix_ms))
}
