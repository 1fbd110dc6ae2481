//! Explains why the kernel does not let the daemon inspect a process, as far as possible: the kernel reports only EACCES or
//! EPERM.

use std::fs;

use farfork_api::failure::Failure;

/// The capability to inspect other processes.
const CAP_SYS_PTRACE: u32 = 19;

/// Adds a reason and a next step to a failure.
pub(super) fn explain_denial(failure: Failure, pid: u32) -> Failure {
    let (reason, step) = denial_cause(pid, has_ptrace_capability().unwrap_or(true));
    let cause = format!("{}: {reason}", failure.cause());
    Failure::new(failure.code(), failure.object(), cause).with_next_step(step)
}

fn denial_cause(pid: u32, may_trace: bool) -> (&'static str, String) {
    let reason = match may_trace {
        false => "the node's daemon has no CAP_SYS_PTRACE",
        true => {
            "the node's daemon has CAP_SYS_PTRACE, so a security module (SELinux, AppArmor, Yama) forbids it, or the process is of a user namespace outside of the daemon's"
        }
    };
    let step = match (pid, may_trace) {
        (1, _) => "process 1 is the first of its machine or container: prepare the program that it has started",
        (_, false) => "start `farfork node` as root, with CAP_SYS_PTRACE in its container or unit if it has one",
        (_, true) => {
            "allow the daemon ptrace(2) of it, or start `farfork node` on the machine itself, outside of containers"
        }
    };
    (reason, step.to_owned())
}

/// Whether this process has the capability; `None` if that is unknown.
fn has_ptrace_capability() -> Option<bool> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    Some(effective & 1 << CAP_SYS_PTRACE != 0)
}

#[cfg(test)]
mod tests {
    use super::{Failure, denial_cause, explain_denial, has_ptrace_capability};
    use tonic::Code;

    #[test]
    fn a_denial_has_reason_and_next_step() {
        assert!(has_ptrace_capability().is_some());
        let failure = explain_denial(Failure::new(Code::FailedPrecondition, "process 1", "Permission denied"), 1);
        assert!(failure.cause().starts_with("Permission denied: ") && failure.next_step().contains("process 1"));
        assert!(
            denial_cause(7, false).0.contains("CAP_SYS_PTRACE") && denial_cause(7, true).0.contains("security module")
        );
    }
}
