//! Seccomp filters (seccomp(2)), read from stopped threads. The filters of a traced thread are suspended: otherwise they
//! would judge injected system calls.

use farfork_sys::process::ProcStatus;
use farfork_sys::ptrace;
use farfork_wire::descriptor::SeccompFilter;

use crate::bpf_interpreter::PlannedSyscall;
use crate::capture::error::{CaptureError, Refusal};

/// The filters of a process, and which of them each thread has, in the order of the threads.
#[derive(Debug, Default)]
pub(in crate::capture) struct SeccompFilters {
    pub(in crate::capture) table: Vec<SeccompFilter>,
    pub(in crate::capture) thread_filters: Vec<Vec<u32>>,
}

/// SECCOMP_MODE_FILTER. The strict mode allows four calls only.
const MODE_FILTER: u32 = 2;

/// Refuses a seccomp mode that cannot be carried.
pub(in crate::capture) fn refusal(pid: i32, tid: i32, status: &ProcStatus) -> Option<Refusal> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let [_, _, effective, ..] = status.capabilities;
    let reason = match status.seccomp {
        0 => return None,
        MODE_FILTER if status.no_new_privileges || effective & CAP_SYS_ADMIN != 0 => return None,
        MODE_FILTER => {
            "it runs under a seccomp filter that neither it nor a child may install again (it has neither no_new_privs nor CAP_SYS_ADMIN)"
        }
        _ => "it runs under the strict mode of seccomp(2), which is not carried",
    };
    Some(Refusal::new(format!("pid {pid}, thread {tid}"), reason))
}

/// Suspends the filters of a stopped thread until it is released.
pub(in crate::capture) fn suspend(tid: i32, status: &ProcStatus) -> Result<(), CaptureError> {
    if status.seccomp == 0 {
        return Ok(());
    }
    let options = ptrace::OPTION_TRACE_SYSCALL_GOOD | ptrace::OPTION_SUSPEND_SECCOMP;
    ptrace::set_options(tid, options).map_err(CaptureError::tracing("suspend the system-call filters of", tid))
}

impl SeccompFilters {
    /// Adds the filters of a stopped thread.
    pub(in crate::capture) fn add_thread(
        &mut self,
        pid: i32,
        tid: i32,
        status: &ProcStatus,
    ) -> Result<(), CaptureError> {
        let refuse =
            |reason: String| CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}, thread {tid}"), reason)]);
        let mut own = Vec::new();
        let next = |index| match status.seccomp {
            0 => Ok(None),
            _ => ptrace::read_seccomp_filter(tid, index)
                .map_err(CaptureError::tracing("read the system-call filters of", tid)),
        };
        while let Some((flags, instructions)) = next(own.len())? {
            if notifies_supervisor(&instructions) {
                let reason =
                    "its filter of system calls (seccomp) asks another process or a tracer, which is not carried";
                return Err(refuse(reason.to_owned()));
            }
            let filter = SeccompFilter { flags, instructions };
            let known = self.table.iter().position(|other| *other == filter);
            own.push(known.unwrap_or(self.table.len()) as u32);
            if known.is_none() {
                self.table.push(filter);
            }
        }
        // Most threads have the same filters.
        if !self.thread_filters.contains(&own)
            && let Some(call) = self.forbidden_restore_call(&own)
        {
            return Err(refuse(format!(
                "its filters of system calls (seccomp) forbid {call}, with which a child enters its threads under the \
                 filters: not carried; allow that call, or prepare the process before it installs the filter"
            )));
        }
        self.thread_filters.push(own);
        Ok(())
    }

    /// Returns the first call that a restore makes under the filters `list`, and that they forbid. Each filter but the first
    /// is installed under the filters before it, and the thread is entered under all of them (`restorer/threads.c`). A filter
    /// that forbids prctl(2) to a thread with Syscall User Dispatch is not noticed.
    fn forbidden_restore_call(&self, list: &[u32]) -> Option<&'static str> {
        const RT_SIGRETURN: u32 = 15;
        const SECCOMP: u32 = 317;
        const SECCOMP_SET_MODE_FILTER: u64 = 1;
        let forbids = |index: &u32, number: u32, arguments: [u64; 6]| {
            let call = PlannedSyscall { number, instruction_pointer: 0, arguments };
            !call.is_allowed_by(&self.table[*index as usize].instructions)
        };
        let installs = [SECCOMP_SET_MODE_FILTER, 0, 0, 0, 0, 0];
        let forbidden_call = |(position, index): (usize, &u32)| {
            if forbids(index, RT_SIGRETURN, [0; 6]) {
                return Some("rt_sigreturn(2)");
            }
            let has_later = position + 1 < list.len();
            (has_later && forbids(index, SECCOMP, installs)).then_some("seccomp(2)")
        };
        list.iter().enumerate().find_map(forbidden_call)
    }
}

/// Whether an instruction returns SECCOMP_RET_USER_NOTIF or SECCOMP_RET_TRACE. `struct sock_filter` is a code (16 bits), two
/// jumps (8 each) and a constant (32).
fn notifies_supervisor(instructions: &[u8]) -> bool {
    const BPF_RET_K: u16 = 0x06;
    const ACTION_MASK: u32 = 0xffff_0000;
    const USER_NOTIFICATION: u32 = 0x7fc0_0000;
    const TRACE: u32 = 0x7ff0_0000;
    let (all, _) = instructions.as_chunks::<8>();
    all.iter().any(|one| {
        let (code, constant) =
            (u16::from_ne_bytes([one[0], one[1]]), u32::from_ne_bytes([one[4], one[5], one[6], one[7]]));
        code == BPF_RET_K && matches!(constant & ACTION_MASK, USER_NOTIFICATION | TRACE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_notify_a_supervisor_are_found() {
        let instruction =
            |code: u16, constant: u32| [&code.to_ne_bytes()[..], &[0, 0], &constant.to_ne_bytes()].concat();
        let (load, allow) = (instruction(0x20, 0x7fc0_0000), instruction(0x06, 0x7fff_0000));
        assert!(!notifies_supervisor(&[load.clone(), allow.clone()].concat()));
        assert!(notifies_supervisor(&[load, instruction(0x06, 0x7fc0_0001), allow].concat()));
        assert!(notifies_supervisor(&instruction(0x06, 0x7ff0_0000)));
    }
}
