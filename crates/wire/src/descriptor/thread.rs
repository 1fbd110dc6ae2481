//! The state that belongs to one thread.

use serde::{Deserialize, Serialize};

use super::{Credentials, PendingSignal};

/// One thread, as it was when the process was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id in the innermost pid namespace.
    pub tid: u32,
    /// Its name (comm), at most 15 bytes.
    pub name: Vec<u8>,
    /// General registers in the order of the kernel's `user_regs_struct` (27 words). The thread can be resumed from them: an
    /// interrupted system call is already set up to be repeated.
    pub registers: Vec<u64>,
    /// Extended state in the form of NT_X86_XSTATE (XSAVE format, not compacted).
    #[serde(with = "serde_bytes")]
    pub xstate: Vec<u8>,
    /// Blocked signals; bit N−1 is signal N.
    pub signal_mask: u64,
    /// Signals pending for this thread alone.
    pub pending_signals: Vec<PendingSignal>,
    /// Alternate signal stack.
    pub alt_stack: AltStack,
    /// Head of the list of robust futexes; 0 for none.
    pub robust_list_head: u64,
    /// Registered length of the list's head, in bytes (24 on x86-64).
    pub robust_list_bytes: u64,
    /// Address from set_tid_address(2); 0 for none.
    pub clear_child_tid: u64,
    /// Restartable-sequence area, if registered.
    pub rseq: Option<Rseq>,
    /// Scheduling policy and priorities.
    pub scheduling: Scheduling,
    /// Credentials, if they differ from the process's.
    pub credentials: Option<Credentials>,
    /// PR_GET_PDEATHSIG; 0 for none.
    pub parent_death_signal: u32,
    /// PR_GET_TIMERSLACK, in nanoseconds.
    pub timer_slack_ns: u64,
    /// Whether reading the time-stamp counter raises SIGSEGV (PR_SET_TSC).
    pub is_tsc_disabled: bool,
    /// How the thread has disabled speculative store bypass (PR_SET_SPECULATION_CTRL; the kernel's `spec_ctrl.rst`):
    /// PR_SPEC_DISABLE, PR_SPEC_FORCE_DISABLE, or 0 for not at all.
    pub store_bypass: u32,
    /// How the thread has disabled indirect branch speculation, likewise.
    pub indirect_branch: u32,
    /// Execution domain (personality(2)).
    pub personality: u32,
    /// CPUs that the thread chose to run on, within those of its control group; bit N of word M is CPU 32 × M + N. Empty if
    /// the thread chose none.
    pub cpus: Vec<u32>,
    /// Its filters of system calls, in the order of installation: indices into the process's list.
    pub seccomp_filters: Vec<u32>,
    /// Remaining time of the system call that the registers repeat, if it is less than the time limit in the call's
    /// arguments. Then the upper half of the call's number is a call mark, which the kernel ignores and keeps.
    pub interrupted_call: Option<RestartableCall>,
}

/// The remaining part of a system call's time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartableCall {
    /// Remaining time in nanoseconds, counted from the time when the thread runs again.
    pub remaining_ns: u64,
    /// Result of the call when that time has passed, as a value of the result register.
    pub timeout_result: i64,
}

/// An alternate signal stack (sigaltstack(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// SS_* flags.
    pub flags: u32,
}

/// rseq(2) registration, from PTRACE_GET_RSEQ_CONFIGURATION.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    /// Address of the area.
    pub address: u64,
    /// Its size, in bytes.
    pub bytes: u32,
    /// Signature before abort handlers.
    pub signature: u32,
}

/// The scheduling policy and parameters of a thread (sched(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// SCHED_* policy.
    pub policy: u32,
    /// Nice value, −20 to 19.
    pub nice: i32,
    /// Real-time priority, 0 to 99.
    pub priority: u32,
    /// Parameters of SCHED_DEADLINE; `None` for other policies.
    pub deadline: Option<DeadlineParameters>,
}

/// Parameters of a SCHED_DEADLINE thread (sched(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineParameters {
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// CPU time that the thread gets in each period.
    pub runtime_ns: u64,
    /// Deadline, from the beginning of the period.
    pub deadline_ns: u64,
    /// Length of a period.
    pub period_ns: u64,
}

/// Bytes that must be in place before a child runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EagerBytes {
    /// Page-aligned address.
    pub address: u64,
    /// The contents of whole pages.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}
