//! Errors of a capture, with the refusals that they list.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::pager::{ClientError, PlanError};

/// State of a process that farfork cannot carry, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    /// The object that cannot be carried, such as `pid 812, fd 7`.
    pub object: String,
    /// Why it cannot be carried, and what can be done.
    pub reason: String,
}

impl Refusal {
    pub(super) fn new(object: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { object: object.into(), reason: reason.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.reason)
    }
}

/// Why a capture failed. In each case the process runs on as if nothing had happened.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no such process, or it ended during the capture.
    #[error("pid {pid} does not exist, or has ended; pgrep(1) finds the process ids of a program")]
    ProcessGone {
        /// The process.
        pid: i32,
    },
    /// The process has state that cannot be carried.
    #[error("pid {pid} cannot be carried: {}", format_refusals(.refusals))]
    Refused {
        /// The process.
        pid: i32,
        /// Every reason that was found.
        refusals: Vec<Refusal>,
    },
    /// A thread could not be stopped in time.
    #[error("pid {pid}, thread {tid} did not stop within {waited:?}: {state}")]
    NotStopped {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// How long the capture waited for the thread.
        waited: Duration,
        /// The thread's state, why it cannot be interrupted, and what to do.
        state: String,
    },
    /// The whole attempt took too long.
    #[error("pid {pid} was not captured within {limit:?} (while: {phase}); try again when the machine is less busy")]
    TimedOut {
        /// The process.
        pid: i32,
        /// The limit of the attempt.
        limit: Duration,
        /// The phase that was under way.
        phase: &'static str,
    },
    /// The process changed during every attempt.
    #[error("pid {pid} keeps changing during its survey ({what}); try again")]
    Unstable {
        /// The process.
        pid: i32,
        /// The state that changed.
        what: String,
    },
    /// State of the process could not be read.
    #[error("cannot read {what} of pid {pid}: {source}")]
    Read {
        /// The process.
        pid: i32,
        /// The state that could not be read.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A ptrace operation failed.
    #[error("cannot {operation} thread {tid}: {source}")]
    Trace {
        /// The operation.
        operation: &'static str,
        /// The thread.
        tid: i32,
        /// The cause.
        source: io::Error,
    },
    /// A system call made on the process's behalf failed.
    #[error("{call} on behalf of thread {tid} failed: {source}{}", advice_for(.call))]
    InjectedCall {
        /// The system call.
        call: &'static str,
        /// The thread.
        tid: i32,
        /// The cause.
        source: io::Error,
    },
    /// The process is a child of a seed, and its pager does not report its missing pages.
    #[error("pid {pid} is a child of a seed, and its pager does not report its missing pages: {source}")]
    Pager {
        /// The process.
        pid: i32,
        /// The cause.
        source: Box<ClientError>,
    },
    /// The process is a child of a seed, and its memory plan cannot be read.
    #[error("pid {pid} is a child of a seed, and its memory plan cannot be read: {source}")]
    Plan {
        /// The process.
        pid: i32,
        /// The cause.
        source: Box<PlanError>,
    },
    /// The captured state is not a valid descriptor.
    #[error(transparent)]
    Invalid(#[from] farfork_wire::descriptor::InvalidDescriptor),
    /// No thread could be started for the attempt.
    #[error("cannot start a tracer thread: {0}")]
    ThreadStart(io::Error),
    /// The tracer thread ended without an answer.
    #[error("the tracer thread of pid {pid} ended without an answer; the log says why")]
    TracerLost {
        /// The process.
        pid: i32,
    },
}

impl CaptureError {
    pub(super) fn refused(pid: i32, refusals: Vec<Refusal>) -> Self {
        Self::Refused { pid, refusals }
    }

    /// For `map_err`: reading `what` of `pid` failed. ESRCH means that the process has ended.
    pub(super) fn reading(pid: i32, what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| match source.raw_os_error() {
            Some(errno) if errno == rustix::io::Errno::SRCH.raw_os_error() => Self::ProcessGone { pid },
            _ => Self::Read { pid, what, source },
        }
    }

    /// For `map_err`: a ptrace operation on `tid` failed.
    pub(super) fn tracing(operation: &'static str, tid: i32) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Trace { operation, tid, source }
    }
}

fn format_refusals(refusals: &[Refusal]) -> String {
    let lines: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    lines.join("; ")
}

fn advice_for(call: &str) -> &'static str {
    match call {
        "clone" => {
            "; the process's limits (RLIMIT_NPROC, pids cgroup) and memory.overcommit must allow it a fork(2); otherwise use `--freeze`, which makes no clone"
        }
        "mmap" => {
            "; the process must be able to map some 200 KiB more: see its limits of address space and data (`prlimit --as --data`) and vm.max_map_count"
        }
        _ => "",
    }
}
