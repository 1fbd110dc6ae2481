//! The CPU priority of replication and publishing. The threads that show other processes that this one is alive always have
//! the ordinary priority, so that a process that waits for a CPU does not count as dead.

use std::io;

use farfork_sys::priority::{enter_idle, leave_idle};

use crate::named_values::named_values;

/// The CPU priority of the threads that replicate and publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkPriority {
    /// The ordinary priority.
    #[default]
    Normal,
    /// The policy SCHED_IDLE: CPU time that no other thread wants, and a small share otherwise.
    Idle,
}

named_values!(WorkPriority { Normal = "normal", Idle = "idle" });

impl WorkPriority {
    /// Gives the calling thread this priority, and the threads that it starts later.
    pub(super) fn apply(self) {
        if self == Self::Idle {
            report(enter_idle());
        }
    }

    /// Does work with this priority in a thread of the ordinary priority.
    pub(super) fn apply_during<T>(self, work: impl FnOnce() -> T) -> T {
        self.apply();
        let result = work();
        self.suspend();
        result
    }

    /// Does work with the ordinary priority in a thread of this priority.
    pub(super) fn suspend_during<T>(self, work: impl FnOnce() -> T) -> T {
        self.suspend();
        let result = work();
        self.apply();
        result
    }

    fn suspend(self) {
        if self == Self::Idle {
            report(leave_idle());
        }
    }
}

/// Reports a failed change. The work continues, because it is only slower or faster than wanted.
fn report(changed: io::Result<()>) {
    if let Err(error) = changed {
        tracing::warn!(%error, "a thread of the volumes keeps its priority");
    }
}
