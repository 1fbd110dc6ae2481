//! Which limit a child was killed for: its time, its memory, or its node's memory.

use std::time::Duration;

use farfork_container::{ContainerCgroup, MemoryEnd};

use super::child::{SIGBUS, SIGKILL};
use super::{Child, Exit};
use crate::amount;

/// Who has sent SIGKILL to a child through this daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Killer {
    /// Somebody who asked for that.
    Request,
    /// The end of its time.
    Deadline,
}

/// Which limit a child was killed for, where it was for one. Its control group must still be there.
pub(super) fn of(child: &Child, exit: &Exit, cgroup: &ContainerCgroup) -> Option<String> {
    match (exit, child.killer()) {
        (Exit::Code(_), _) | (_, Some(Killer::Request)) => None,
        (Exit::Signal(SIGKILL), Some(Killer::Deadline)) => Some(time_limit(child)),
        // SIGBUS: a page that there was no room for. Lost: its container's own process was the one to go.
        (Exit::Signal(SIGKILL | SIGBUS) | Exit::Lost(_), _) => {
            Some(memory_limit(cgroup.memory_end_of_killed()?, child.record().memory_bytes_max))
        }
        (Exit::Signal(_), _) => Some(memory_limit(cgroup.memory_end()?, child.record().memory_bytes_max)),
    }
}

/// What ended a child that the kernel killed for want of memory.
pub(crate) fn memory_limit(end: MemoryEnd, own_bytes_max: Option<u64>) -> String {
    match (end, own_bytes_max) {
        (MemoryEnd::OwnLimit, Some(limit)) => format!("it needed more than its {} of memory", amount::bytes(limit)),
        _ => "its node had no memory left".to_owned(),
    }
}

fn time_limit(child: &Child) -> String {
    let record = child.record();
    let limit_ms = record.deadline_unix_ms.unwrap_or(0).saturating_sub(record.started_unix_ms);
    format!("it had run for its {}", humantime::format_duration(Duration::from_millis(limit_ms)))
}
