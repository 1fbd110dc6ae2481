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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the policy of the calling thread: 0 is SCHED_OTHER, 5 is SCHED_IDLE.
    fn policy() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // proc(5): the policy is the 41st field. The name, the second one, ends with a parenthesis.
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().to_owned()
    }

    #[test]
    fn idle_work_and_suspended_work_have_their_priorities() {
        let check = || {
            assert_eq!(WorkPriority::Idle.apply_during(policy), "5");
            assert_eq!(policy(), "0");
            WorkPriority::Idle.apply();
            assert_eq!(std::thread::spawn(policy).join().unwrap(), "5");
            assert_eq!(WorkPriority::Idle.suspend_during(policy), "0");
            assert_eq!(policy(), "5");
        };
        // On a new thread, so that the thread of the test runner is unchanged.
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn normal_priority_changes_nothing() {
        let before = policy();
        assert_eq!(WorkPriority::Normal.apply_during(policy), before);
        assert_eq!(WorkPriority::Normal.suspend_during(policy), before);
    }
}
