//! The state that belongs to one thread.

use serde::{Deserialize, Serialize};

use super::{Credentials, PendingSignal};

/// One thread, as it stood when the process was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id in the innermost pid namespace.
    pub tid: u32,
    /// Its name (comm), at most 15 bytes.
    pub name: Vec<u8>,
    /// General registers in the order of the kernel's `user_regs_struct` (27 words), ready to resume from: a system
    /// call that was interrupted is already set to be made again.
    pub registers: Vec<u64>,
    /// Extended state as NT_X86_XSTATE gives it (XSAVE format, not compacted).
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
    /// Its length as registered (24 on x86-64).
    pub robust_list_bytes: u64,
    /// set_tid_address(2); 0 for none.
    pub clear_child_tid: u64,
    /// Restartable-sequence area, if registered.
    pub rseq: Option<Rseq>,
    /// How it is scheduled.
    pub scheduling: Scheduling,
    /// Credentials, where they differ from the process's.
    pub credentials: Option<Credentials>,
    /// PR_GET_PDEATHSIG; 0 for none.
    pub parent_death_signal: u32,
    /// PR_GET_TIMERSLACK, in nanoseconds.
    pub timer_slack_ns: u64,
    /// Whether it is stopped at reading the processor's time stamps (PR_SET_TSC).
    pub is_tsc_disabled: bool,
    /// Execution domain (personality(2)).
    pub personality: u32,
    /// CPUs that it has chosen to run on, of those that its control group has; bit N of word M is CPU 32 × M + N. Empty where it
    /// has chosen none.
    pub cpus: Vec<u32>,
    /// Its filters of system calls, in the order in which they were installed: indices into the process's.
    pub seccomp_filters: Vec<u32>,
    /// How much time the system call has that its registers make again, where that is less than the call's own limit. The upper half
    /// of the call's number is a mark then, which the kernel ignores and keeps.
    pub interrupted_call: Option<RestartableCall>,
}

/// What is left of a system call's time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartableCall {
    /// In nanoseconds, from when the thread goes on.
    pub remaining_ns: u64,
    /// What the call gives when that is over, as in the register of the result.
    pub timeout_result: i64,
}

/// sigaltstack(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// SS_* flags.
    pub flags: u32,
}

/// rseq(2) registration, as PTRACE_GET_RSEQ_CONFIGURATION tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    /// Address of the area.
    pub address: u64,
    /// Its size, in bytes.
    pub bytes: u32,
    /// Signature before abort handlers.
    pub signature: u32,
}

/// sched(7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// SCHED_* policy.
    pub policy: u32,
    /// Nice value, −20 to 19.
    pub nice: i32,
    /// Real-time priority, 0 to 99.
    pub priority: u32,
    /// Of SCHED_DEADLINE.
    pub deadline: Option<DeadlineParameters>,
}

/// What a thread of SCHED_DEADLINE is promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineParameters {
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// So long it runs in each period.
    pub runtime_ns: u64,
    /// So long after the period's begin at the latest.
    pub deadline_ns: u64,
    /// So long is a period.
    pub period_ns: u64,
}

/// Bytes that a child needs before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EagerBytes {
    /// Page-aligned address.
    pub address: u64,
    /// Whole pages.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}
