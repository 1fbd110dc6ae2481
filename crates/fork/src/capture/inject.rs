//! System calls made by a stopped thread on our behalf: its registers are pointed at a `syscall` instruction of its
//! vdso and it is let go for that one instruction.
//!
//! A call that was begun is never abandoned: a thread let go inside it would run on with registers that are not its own.
//! Where one outlasts the deadline (a fork of a huge process, a freezer that came between), it is waited for all the
//! same, and the attempt fails afterwards; who asked for the capture is told in time by [`owner`](super::owner).

mod progress;

use std::io;

use farfork_sys::ptrace::{self, Registers, Report};

pub(super) use progress::{Progress, Step};

use super::deadline::{Deadline, Silence};
use super::error::CaptureError;

pub(super) const SIGTRAP: i32 = 5;

/// Errors of system calls lie in −4095..0.
const ERRNO_MAX: u64 = 4095;

/// A system call of x86-64.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) name: &'static str,
    number: u64,
    arguments: [u64; 6],
}

impl Call {
    pub(super) fn new<const N: usize>(name: &'static str, number: u64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        Self { name, number, arguments: all }
    }

    /// Registers with which a thread whose other registers are `base` makes the call at `syscall_at`.
    fn registers(&self, base: &Registers, syscall_at: u64) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = self.arguments;
        // orig_rax −1: the kernel shall not take the old call for one to restart.
        Registers { rax: self.number, orig_rax: u64::MAX, rip: syscall_at, rdi, rsi, rdx, r10, r8, r9, ..*base }
    }
}

/// Makes stopped threads execute system calls, and sorts what waiting for them brings up.
#[derive(Debug)]
pub(super) struct Injector<'a> {
    pid: i32,
    /// Addresses of the `syscall` instruction that is used, and of the vdso's.
    syscall_at: u64,
    in_vdso: u64,
    step: Step,
    deadline: &'a Deadline,
    /// A tracee that appeared by itself: the newborn of a clone with CLONE_PTRACE.
    newborn: Option<i32>,
    /// Signals that arrived meanwhile (only those that cannot be blocked), to be sent again when the thread is let go.
    pub(super) withheld: Vec<(i32, i32)>,
}

impl<'a> Injector<'a> {
    /// `syscall_at` is in the vdso.
    pub(super) fn new(pid: i32, syscall_at: u64, step: Step, deadline: &'a Deadline) -> Self {
        Self { pid, syscall_at, in_vdso: syscall_at, step, deadline, newborn: None, withheld: Vec::new() }
    }

    /// When the attempt must be over.
    pub(super) fn deadline(&self) -> &'a Deadline {
        self.deadline
    }

    /// Whether SIGTRAP must stay unblocked while calls are made.
    pub(super) fn needs_sigtrap(&self) -> bool {
        self.step == Step::Single
    }

    /// Makes calls at another `syscall` instruction.
    pub(super) fn call_at(&mut self, address: u64) {
        self.syscall_at = address;
    }

    /// Makes calls in the vdso again.
    pub(super) fn call_in_vdso(&mut self) {
        self.syscall_at = self.in_vdso;
    }

    /// The vdso's `syscall` instruction.
    pub(super) fn vdso_syscall(&self) -> u64 {
        self.in_vdso
    }

    /// Makes one call in one thread, whose other registers are `base`, and gives its result.
    pub(super) fn call(&mut self, tid: i32, base: &Registers, call: Call) -> Result<u64, CaptureError> {
        let results = self.calls(tid, base, vec![call])?;
        Ok(results[0])
    }

    /// Makes calls in one thread, one after the other, and gives their results.
    pub(super) fn calls(&mut self, tid: i32, base: &Registers, calls: Vec<Call>) -> Result<Vec<u64>, CaptureError> {
        let progress = self.start(tid, base, calls)?;
        self.finish_one(progress)
    }

    /// Begins calls in one thread, one after the other; [`Self::finish`] waits for them.
    pub(super) fn start(&self, tid: i32, base: &Registers, calls: Vec<Call>) -> Result<Progress, CaptureError> {
        Progress::start(tid, base, calls, self.syscall_at, self.step)
    }

    /// Waits for one thread's calls, and gives their results.
    pub(super) fn finish_one(&mut self, mut progress: Progress) -> Result<Vec<u64>, CaptureError> {
        self.finish(std::slice::from_mut(&mut progress))?;
        Ok(progress.into_results())
    }

    /// Waits until all calls of several threads are made; fails where one of them did.
    pub(super) fn finish(&mut self, all: &mut [Progress]) -> Result<(), CaptureError> {
        let mut left = all.iter().filter(|one| !one.is_done()).count();
        let mut failed = None;
        while left > 0 {
            let (tid, report) = match self.deadline.next_report() {
                Ok(report) => report,
                Err(Silence::TimedOut) => {
                    failed = failed.or_else(|| Some(self.timed_out("a system call made on its behalf")));
                    continue;
                }
                Err(Silence::NoTracee) => return Err(CaptureError::Gone { pid: self.pid }),
            };
            let Some(one) = all.iter_mut().find(|one| one.tid() == tid) else {
                self.note(tid, report)?;
                continue;
            };
            let Report::Stopped { signal, event } = report else { return Err(CaptureError::Gone { pid: self.pid }) };
            match one.advance(signal, event) {
                Ok(withheld) => self.withheld.extend(withheld.map(|signal| (tid, signal))),
                // The others' calls are under way all the same.
                Err(error) if one.is_done() => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
            left -= usize::from(one.is_done());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits for the newborn of a clone.
    pub(super) fn wait_newborn(&mut self) -> Result<i32, CaptureError> {
        loop {
            if let Some(newborn) = self.newborn.take() {
                return Ok(newborn);
            }
            match self.deadline.next_report() {
                Ok((tid, report)) => self.note(tid, report)?,
                Err(Silence::TimedOut) => return Err(self.timed_out("the birth of its template")),
                Err(Silence::NoTracee) => return Err(CaptureError::Gone { pid: self.pid }),
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
}

/// The value of a finished call; small negative ones are errors.
fn checked(tid: i32, call: &Call, value: u64) -> Result<u64, CaptureError> {
    let errno = value.wrapping_neg();
    if (1..=ERRNO_MAX).contains(&errno) {
        let source = io::Error::from_raw_os_error(errno as i32);
        return Err(CaptureError::Call { call: call.name, tid, source });
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
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let at = code.windows(SYSCALL.len()).position(|window| window == SYSCALL)?;
    Some(base + at as u64)
}
