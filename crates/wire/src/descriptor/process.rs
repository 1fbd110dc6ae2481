//! The state that belongs to a process as a whole, not to one of its threads.

use serde::{Deserialize, Serialize};

use super::{FileStatus, IntervalTimer, PosixTimer};

/// State that all threads of a process share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id in its own (innermost) pid namespace. The child has the same id in its container.
    pub pid: u32,
    /// Whether it leads its process group.
    pub is_group_leader: bool,
    /// Whether it leads its session.
    pub is_session_leader: bool,
    /// Path of its executable. Like all paths of a seed, the path starts at the root of the process's mount namespace.
    pub exe: String,
    /// Index of its executable in the shared objects, if the executable no longer has a path.
    pub exe_object: Option<u32>,
    /// Arguments, for display.
    pub arguments: Vec<String>,
    /// Current directory.
    pub cwd: String,
    /// Mode and owner of the current directory, if that was deleted.
    pub deleted_cwd: Option<FileStatus>,
    /// Its root directory, if it called chroot(2). `None` otherwise, and if it shares its parent's root (CLONE_FS).
    pub root: Option<String>,
    /// File mode creation mask.
    pub umask: u32,
    /// PR_GET_DUMPABLE: 0, 1 or 2.
    pub dumpable: u32,
    /// /proc/PID/oom_score_adj, −1000 to 1000.
    pub oom_score_adj: i32,
    /// Credentials of the leader. Threads with other credentials have them in
    /// [`Thread::credentials`](super::Thread::credentials).
    pub credentials: Credentials,
    /// Resource limits, by RLIMIT number (getrlimit(2)), 16 of them.
    pub limits: Vec<ResourceLimit>,
    /// Signal dispositions that differ from the default.
    pub signal_actions: Vec<SignalAction>,
    /// Signals pending for the process.
    pub pending_signals: Vec<PendingSignal>,
    /// Addresses of the parts of the address space, as the kernel stores them.
    pub mm: Mm,
    /// Interval timers that are armed.
    pub interval_timers: Vec<IntervalTimer>,
    /// POSIX timers, ascending by number.
    pub posix_timers: Vec<PosixTimer>,
    /// Filters of system calls; threads refer to them by index.
    pub seccomp_filters: Vec<SeccompFilter>,
    /// Registrations for membarrier(2): MEMBARRIER_CMD_REGISTER_* bits.
    pub membarrier_registrations: u32,
    /// Whether the process disabled huge pages for itself (PR_SET_THP_DISABLE).
    pub is_thp_disabled: bool,
    /// Whether orphaned descendants become its children (PR_GET_CHILD_SUBREAPER).
    pub is_subreaper: bool,
}

/// A filter of system calls (seccomp(2)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompFilter {
    /// SECCOMP_FILTER_FLAG_*.
    pub flags: u32,
    /// Its instructions, each a `struct sock_filter` of 8 bytes.
    #[serde(with = "serde_bytes")]
    pub instructions: Vec<u8>,
}

/// The fields of PR_SET_MM_MAP (prctl(2)); addresses in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in struct prctl_mm_map")]
pub struct Mm {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
    /// The auxiliary vector, as pairs of words, AT_NULL included.
    pub auxv: Vec<u64>,
}

/// Credentials of a thread (credentials(7), capabilities(7)).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved and file-system user id.
    pub uids: [u32; 4],
    /// Real, effective, saved and file-system group id.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable capabilities. Each set is a bit mask.
    pub capabilities_inheritable: u64,
    /// Permitted set.
    pub capabilities_permitted: u64,
    /// Effective set.
    pub capabilities_effective: u64,
    /// Bounding set.
    pub capabilities_bounding: u64,
    /// Ambient set.
    pub capabilities_ambient: u64,
    /// PR_GET_SECUREBITS.
    pub securebits: u32,
    /// PR_GET_NO_NEW_PRIVS.
    pub no_new_privileges: bool,
}

/// One resource limit; `u64::MAX` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// RLIMIT_* number.
    pub resource: u32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// The disposition of a signal, as in the kernel's `struct sigaction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalAction {
    /// Number of the signal, 1 to 64.
    pub signal: u32,
    /// Address of the handler; 0 for the default action, 1 to ignore the signal.
    pub handler: u64,
    /// SA_* flags.
    pub flags: u64,
    /// Address to which the handler returns.
    pub restorer: u64,
    /// Signals blocked while the handler runs; bit N−1 is signal N.
    pub mask: u64,
}

/// A pending signal with the sender's information.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSignal {
    /// The kernel's siginfo_t, 128 bytes.
    #[serde(with = "serde_bytes")]
    pub siginfo: Vec<u8>,
}
