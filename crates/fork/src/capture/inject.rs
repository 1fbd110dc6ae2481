//! System calls made by a stopped thread on our behalf: its registers are pointed at a `syscall` instruction of its
//! vdso and it is let go for that one instruction.
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

use std::io;

use farfork_sys::ptrace::{self, EVENT_STOP, Registers, Report};

use super::deadline::{Deadline, Pace};
use super::error::CaptureError;
use super::restart::SYSCALL_BYTES;

pub(super) const SIGTRAP: i32 = 5;

/// A stop at a system call, under PTRACE_O_TRACESYSGOOD.
const SYSCALL_STOP: i32 = SIGTRAP | 0x80;

/// Errors of system calls lie in −4095..0.
const ERRNO_MAX: u64 = 4095;

/// How a thread is let go for one system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Single,
    Syscall,
}

/// A system call of x86-64.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
}

impl Call {
    pub(super) fn new<const N: usize>(name: &'static str, number: u64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        Self { name, number, arguments: all }
    }
}

/// A call under way in one thread.
#[derive(Debug)]
pub(super) struct Started {
    tid: i32,
    call: Call,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Stepping,
    ToEntry,
    ToExit,
    ToTrap,
    Done(u64),
}

/// Makes stopped threads execute system calls, and sorts what waiting for them brings up.
#[derive(Debug)]
pub(super) struct Injector {
    pid: i32,
    /// Address of a `syscall` instruction.
    syscall_at: u64,
    step: Step,
    deadline: Deadline,
    /// A tracee that appeared by itself: the newborn of a clone with CLONE_PTRACE.
    pub(super) newborn: Option<i32>,
    /// Stop signals that arrived meanwhile, to be sent again when the thread is let go.
    pub(super) withheld: Vec<(i32, i32)>,
}

impl Injector {
    pub(super) fn new(pid: i32, syscall_at: u64, step: Step, deadline: Deadline) -> Self {
        Self { pid, syscall_at, step, deadline, newborn: None, withheld: Vec::new() }
    }

    /// When the attempt must be over.
    pub(super) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Whether SIGTRAP must stay unblocked while calls are made.
    pub(super) fn needs_sigtrap(&self) -> bool {
        self.step == Step::Single
    }

    /// Address of the instruction that it uses.
    pub(super) fn syscall_at(&self) -> u64 {
        self.syscall_at
    }

    /// Waits for one call, and gives its result.
    pub(super) fn finish_one(&mut self, started: &mut Started) -> Result<u64, CaptureError> {
        self.finish(std::slice::from_mut(started))?;
        result(started)
    }

    /// Makes one call in one thread, whose other registers are `base`, and gives its result.
    pub(super) fn call(&mut self, tid: i32, base: &Registers, call: Call) -> Result<u64, CaptureError> {
        let mut started = [self.start(tid, base, call)?];
        self.finish(&mut started)?;
        result(&started[0])
    }

    /// Makes one call in each of several threads at the same time; results stand in the same order.
    pub(super) fn call_all(
        &mut self,
        calls: impl IntoIterator<Item = (i32, Registers, Call)>,
    ) -> Result<Vec<u64>, CaptureError> {
        let mut started = Vec::new();
        for (tid, base, call) in calls {
            started.push(self.start(tid, &base, call)?);
        }
        self.finish(&mut started)?;
        started.iter().map(result).collect()
    }

    /// Begins a call; [`Self::finish`] waits for it.
    pub(super) fn start(&self, tid: i32, base: &Registers, call: Call) -> Result<Started, CaptureError> {
        let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
        // orig_rax −1: the kernel shall not take the old call for one to restart.
        let registers = Registers {
            rax: call.number,
            orig_rax: u64::MAX,
            rip: self.syscall_at,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..*base
        };
        ptrace::set_registers(tid, &registers).map_err(CaptureError::trace("set the registers of", tid))?;
        let phase = self.go(tid)?;
        Ok(Started { tid, call, phase })
    }

    /// Lets a thread whose registers are set go for its call.
    fn go(&self, tid: i32) -> Result<Phase, CaptureError> {
        let (gone, phase) = match self.step {
            Step::Single => (ptrace::single_step(tid), Phase::Stepping),
            Step::Syscall => (ptrace::resume_to_syscall(tid), Phase::ToEntry),
        };
        gone.map_err(CaptureError::trace("step", tid))?;
        Ok(phase)
    }

    /// Waits until all of them are done.
    pub(super) fn finish(&mut self, started: &mut [Started]) -> Result<(), CaptureError> {
        let pace = Pace::start();
        while started.iter().any(|one| !matches!(one.phase, Phase::Done(_))) {
            match ptrace::wait_any().map_err(CaptureError::trace("wait for", self.pid))? {
                Some((tid, report)) => match started.iter_mut().find(|one| one.tid == tid) {
                    Some(one) => self.advance(one, report)?,
                    None => self.note(tid, report)?,
                },
                None if self.deadline.is_over() => return Err(self.timed_out("a system call made on its behalf")),
                None => pace.rest(),
            }
        }
        Ok(())
    }

    /// Waits for the newborn of a clone.
    pub(super) fn wait_newborn(&mut self) -> Result<i32, CaptureError> {
        let pace = Pace::start();
        loop {
            if let Some(newborn) = self.newborn.take() {
                return Ok(newborn);
            }
            match ptrace::wait_any().map_err(CaptureError::trace("wait for", self.pid))? {
                Some((tid, report)) => self.note(tid, report)?,
                None if self.deadline.is_over() => return Err(self.timed_out("the birth of its template")),
                None => pace.rest(),
            }
        }
    }

    fn timed_out(&self, phase: &'static str) -> CaptureError {
        CaptureError::TimedOut { pid: self.pid, limit: self.deadline.limit(), phase }
    }

    /// A report of a thread that no call is under way in: the newborn's first stop, or an end.
    fn note(&mut self, tid: i32, report: Report) -> Result<(), CaptureError> {
        match report {
            Report::Ended => Err(CaptureError::Gone { pid: self.pid }),
            Report::Stopped { .. } => {
                self.newborn = Some(tid);
                Ok(())
            }
        }
    }

    fn advance(&mut self, one: &mut Started, report: Report) -> Result<(), CaptureError> {
        let Report::Stopped { signal, event } = report else {
            return Err(CaptureError::Gone { pid: self.pid });
        };
        one.phase = match (one.phase, signal, event) {
            (Phase::ToTrap, _, EVENT_STOP) => Phase::Done(self.result_of(one)?),
            (Phase::Stepping, SIGTRAP, 0) if self.has_made_its_call(one)? => Phase::Done(self.result_of(one)?),
            (Phase::ToEntry, SYSCALL_STOP, 0) => self.on(ptrace::resume_to_syscall(one.tid), one.tid, Phase::ToExit)?,
            (Phase::ToExit, SYSCALL_STOP, 0) => {
                let trapped = ptrace::interrupt(one.tid).and_then(|()| ptrace::resume(one.tid, 0));
                self.on(trapped, one.tid, Phase::ToTrap)?
            }
            (phase, signal, 0) if signal != SIGTRAP => {
                self.withheld.push((one.tid, signal));
                self.again(one, phase)?
            }
            (phase, ..) => self.again(one, phase)?,
        };
        Ok(())
    }

    /// Goes on after a stop that was not the one waited for (a group stop, a signal).
    fn again(&self, one: &Started, phase: Phase) -> Result<Phase, CaptureError> {
        let gone = match phase {
            Phase::Stepping => ptrace::single_step(one.tid),
            Phase::ToEntry | Phase::ToExit => ptrace::resume_to_syscall(one.tid),
            Phase::ToTrap | Phase::Done(_) => ptrace::resume(one.tid, 0),
        };
        self.on(gone, one.tid, phase)
    }

    fn on(&self, gone: io::Result<()>, tid: i32, phase: Phase) -> Result<Phase, CaptureError> {
        gone.map_err(CaptureError::trace("resume", tid))?;
        Ok(phase)
    }

    fn has_made_its_call(&self, one: &Started) -> Result<bool, CaptureError> {
        Ok(read_registers(one.tid)?.rip == self.syscall_at + SYSCALL_BYTES)
    }

    fn result_of(&self, one: &Started) -> Result<u64, CaptureError> {
        Ok(read_registers(one.tid)?.rax)
    }
}

fn result(one: &Started) -> Result<u64, CaptureError> {
    let Phase::Done(value) = one.phase else { unreachable!("finish waits until each call is done") };
    let errno = value.wrapping_neg();
    if (1..=ERRNO_MAX).contains(&errno) {
        let source = io::Error::from_raw_os_error(errno as i32);
        return Err(CaptureError::Call { call: one.call.name, tid: one.tid, source });
    }
    Ok(value)
}

/// The general registers of a stopped thread, which must run 64-bit code.
pub(super) fn read_registers(tid: i32) -> Result<Registers, CaptureError> {
    let registers = ptrace::registers(tid).map_err(CaptureError::trace("read the registers of", tid))?;
    registers.ok_or_else(|| CaptureError::Trace {
        operation: "use",
        tid,
        source: io::Error::other("it runs 32-bit code, which farfork does not carry"),
    })
}

/// Where `code`, a copy of executable bytes that lie at `base`, has a `syscall` instruction.
pub(super) fn find_syscall(code: &[u8], base: u64) -> Option<u64> {
    const SYSCALL: [u8; SYSCALL_BYTES as usize] = [0x0f, 0x05];
    let at = code.windows(SYSCALL.len()).position(|window| window == SYSCALL)?;
    Some(base + at as u64)
}
