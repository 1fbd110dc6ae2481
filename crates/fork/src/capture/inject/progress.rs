//! One thread's injected system calls, from stop to stop.
//!
//! ```text
//!  Step::Single    set registers ─ PTRACE_SINGLESTEP ─▶ SIGTRAP                                      (one stop)
//!  Step::Syscall   set registers ─ PTRACE_SYSCALL ─▶ entry ─▶ exit ─ INTERRUPT ─▶ PTRACE_EVENT_STOP  (three)
//! ```
//!
//! A single step ends with a SIGTRAP that the kernel *forces*: were that signal blocked or ignored, the kernel would
//! unblock it and reset its disposition, for good, in the parent. So `Single` needs SIGTRAP unblocked and not ignored,
//! and is wrong where one is pending already; `Syscall` is slower and always right. Both end in a stop from which the
//! kernel restarts an interrupted call by itself once the old registers are back.

use std::vec;

use farfork_sys::ptrace::{self, EVENT_STOP, Registers};

use super::{Call, SIGTRAP, checked, read_registers};
use crate::capture::error::CaptureError;
use crate::capture::restart::SYSCALL_BYTES;

/// A stop at a system call, under PTRACE_O_TRACESYSGOOD.
const SYSCALL_STOP: i32 = SIGTRAP | 0x80;

/// How a thread is let go for one system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) enum Step {
    Single,
    Syscall,
}

impl Step {
    /// Single steps where SIGTRAP allows them.
    pub(in crate::capture) fn where_trap(is_ignored: bool, is_pending: bool) -> Self {
        if is_ignored || is_pending { Self::Syscall } else { Self::Single }
    }
}

/// Where the call under way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Stepping,
    ToEntry,
    ToExit,
    ToTrap,
    Done,
}

/// The calls of one thread.
#[derive(Debug)]
pub(in crate::capture) struct Progress {
    tid: i32,
    base: Registers,
    syscall_at: u64,
    step: Step,
    phase: Phase,
    now: Call,
    rest: vec::IntoIter<Call>,
    results: Vec<u64>,
}

impl Progress {
    /// Begins the first of `calls`, of which there must be one.
    pub(super) fn start(
        tid: i32,
        base: &Registers,
        calls: Vec<Call>,
        syscall_at: u64,
        step: Step,
    ) -> Result<Self, CaptureError> {
        let mut rest = calls.into_iter();
        let now = rest.next().expect("a thread is started for a call");
        let mut progress =
            Self { tid, base: *base, syscall_at, step, phase: Phase::Done, now, rest, results: Vec::new() };
        progress.go()?;
        Ok(progress)
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Whether all calls are made.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// What the calls gave, in order.
    pub(super) fn into_results(self) -> Vec<u64> {
        self.results
    }

    /// Lets the thread go for the present call.
    fn go(&mut self) -> Result<(), CaptureError> {
        let registers = self.now.registers(&self.base, self.syscall_at);
        ptrace::set_registers(self.tid, &registers).map_err(CaptureError::trace("set the registers of", self.tid))?;
        self.phase = match self.step {
            Step::Single => Phase::Stepping,
            Step::Syscall => Phase::ToEntry,
        };
        self.resume()
    }

    /// Lets it go on towards where its phase says.
    fn resume(&self) -> Result<(), CaptureError> {
        let gone = match self.phase {
            Phase::Stepping => ptrace::single_step(self.tid),
            Phase::ToEntry | Phase::ToExit => ptrace::resume_to_syscall(self.tid),
            Phase::ToTrap => ptrace::interrupt(self.tid).and_then(|()| ptrace::resume(self.tid, 0)),
            Phase::Done => Ok(()),
        };
        gone.map_err(CaptureError::trace("resume", self.tid))
    }

    /// Takes a stop. Gives a signal that came between and must be sent again. With an error, no call is under way.
    pub(super) fn advance(&mut self, signal: i32, event: i32) -> Result<Option<i32>, CaptureError> {
        match (self.phase, signal, event) {
            (Phase::ToEntry, SYSCALL_STOP, 0) => self.phase = Phase::ToExit,
            (Phase::ToExit, SYSCALL_STOP, 0) => self.phase = Phase::ToTrap,
            (Phase::Stepping, SIGTRAP, 0) | (Phase::ToTrap, _, EVENT_STOP) => return self.finish().map(|()| None),
            // A group stop: the kernel repeats it when the thread is let go for good.
            (_, _, EVENT_STOP) => {}
            (_, signal, 0) if signal != SIGTRAP => {
                self.resume()?;
                return Ok(Some(signal));
            }
            _ => {}
        }
        self.resume()?;
        Ok(None)
    }

    /// Takes the result of the present call and begins the next. A trap before the call was made is somebody else's.
    fn finish(&mut self) -> Result<(), CaptureError> {
        let registers = read_registers(self.tid)?;
        if registers.rip != self.syscall_at + SYSCALL_BYTES {
            return self.resume();
        }
        self.phase = Phase::Done;
        self.results.push(checked(self.tid, &self.now, registers.rax)?);
        match self.rest.next() {
            Some(next) => {
                self.now = next;
                self.go()
            }
            None => Ok(()),
        }
    }
}
