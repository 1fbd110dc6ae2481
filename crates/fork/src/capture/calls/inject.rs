//! System calls made by a stopped thread on our behalf, in two ways:
//!
//! ```text
//!  call    registers → vdso's `syscall` ─ PTRACE_SYSCALL ─▶ entry ─ INTERRUPT, CONT ─▶ PTRACE_EVENT_STOP
//!  script  registers → our own code     ─ CONT ─▶ all calls ─ tgkill(itself) ─▶ stop before that signal's delivery
//! ```
//!
//! Single steps would be simpler, but the SIGTRAP that ends one is forced by the kernel: it resets a disposition of the
//! parent where that signal is ignored or blocked, and kills the parent when the tracer dies. Neither stop above does
//! harm when we die, and from both the kernel restarts an interrupted call by itself once the old registers are back.
//!
//! What was begun is never abandoned: a thread let go inside it would run on with registers that are not its own. Where
//! it outlasts the deadline (a fork of a huge process, a freezer that came between) it is waited for all the same, and
//! the attempt fails afterwards; who asked for the capture is told in time by [`owner`](crate::capture::tracer::owner).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_sys::memory::read_process;
use farfork_sys::process::MapEntry;
use farfork_sys::ptrace::{self, EVENT_STOP, Registers, Report};
use rustix::process::{Pid, Signal, kill_process};

use super::rescue::Rescue;
use super::script::Running;
use crate::capture::error::CaptureError;
use crate::capture::tracer::deadline::{Deadline, Silence};
use crate::capture::tracer::post::Post;

/// A stop at a system call, under PTRACE_O_TRACESYSGOOD.
const SYSCALL_STOP: i32 = 5 | 0x80;

/// Errors of system calls lie in −4095..0.
const ERRNO_MAX: u64 = 4095;

/// A system call of x86-64.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct Call {
    pub(in crate::capture) name: &'static str,
    pub(in crate::capture) number: u64,
    pub(in crate::capture) arguments: [u64; 6],
    /// Any value may be its result, for it never fails.
    has_any_result: bool,
}

impl Call {
    pub(in crate::capture) fn new<const N: usize>(name: &'static str, number: u64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        Self { name, number, arguments: all, has_any_result: false }
    }

    /// The same of a call that never fails, and may give what would be an error of others.
    pub(in crate::capture) fn with_any_result(self) -> Self {
        Self { has_any_result: true, ..self }
    }

    /// Registers with which a thread whose other registers are `base` makes the call at `syscall_at`.
    fn registers(&self, base: &Registers, syscall_at: u64) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = self.arguments;
        // orig_rax −1: the kernel shall not take the old call for one to restart.
        let (rax, orig_rax, rip) = (self.number, u64::MAX, syscall_at);
        Registers { rax, orig_rax, rip, rdi, rsi, rdx, r10, r8, r9, ..*base }
    }

    /// What the call gave; small negative values are mostly errors.
    pub(in crate::capture) fn checked(&self, tid: i32, value: u64) -> Result<u64, CaptureError> {
        let errno = value.wrapping_neg();
        if !self.has_any_result && (1..=ERRNO_MAX).contains(&errno) {
            let source = io::Error::from_raw_os_error(errno as i32);
            return Err(CaptureError::Call { call: self.name, tid, source });
        }
        Ok(value)
    }
}

/// Makes stopped threads execute system calls, and sorts what waiting for them brings up. Their signals are blocked.
#[derive(Debug)]
pub(in crate::capture) struct Injector<'a> {
    pid: i32,
    /// Address of a `syscall` instruction, in the vdso.
    syscall_at: u64,
    deadline: &'a Deadline,
    /// A tracee that appeared by itself: the newborn of a clone with CLONE_PTRACE.
    newborn: Option<i32>,
    /// Who has the reports, where other processes of the tree stand, too; else each wait is one of this thread.
    post: Option<&'a Post<'a>>,
    /// Signals that arrived meanwhile (those that cannot be blocked), to be sent again when the thread is let go.
    pub(in crate::capture) withheld: Vec<(i32, i32)>,
}

impl<'a> Injector<'a> {
    pub(in crate::capture) fn new(pid: i32, syscall_at: u64, deadline: &'a Deadline) -> Self {
        Self { pid, syscall_at, deadline, newborn: None, post: None, withheld: Vec::new() }
    }

    /// The same on a way beside others.
    pub(in crate::capture) fn on_way(pid: i32, syscall_at: u64, post: &'a Post<'a>) -> Self {
        let mut alone = Self::new(pid, syscall_at, post.deadline());
        alone.post = Some(post);
        alone
    }

    /// When the attempt must be over.
    pub(in crate::capture) fn deadline(&self) -> &'a Deadline {
        self.deadline
    }

    /// Address of the `syscall` instruction.
    pub(in crate::capture) fn syscall_at(&self) -> u64 {
        self.syscall_at
    }

    /// Makes one call in one thread, whose other registers are `base`, and gives its result.
    pub(in crate::capture) async fn call(
        &mut self,
        tid: i32,
        base: &Registers,
        call: Call,
    ) -> Result<u64, CaptureError> {
        let registers = call.registers(base, self.syscall_at);
        self.call_with(tid, &registers, call).await
    }

    /// The same, with something that brings the thread back should we die meanwhile. The thread's registers still lead there
    /// when this returns: it is for the caller to disarm, once they lead elsewhere.
    pub(in crate::capture) async fn call_safely(
        &mut self,
        (tid, base): (i32, &Registers),
        call: Call,
        rescue: Option<&Rescue>,
        mem: &File,
    ) -> Result<u64, CaptureError> {
        let Some(rescue) = rescue.filter(|rescue| rescue.arm(mem)) else {
            return self.call(tid, base, call).await;
        };
        let registers = rescue.place(call.registers(base, self.syscall_at));
        self.call_with(tid, &registers, call).await
    }

    async fn call_with(&mut self, tid: i32, registers: &Registers, call: Call) -> Result<u64, CaptureError> {
        let resume = |gone: io::Result<()>| gone.map_err(CaptureError::trace("resume", tid));
        ptrace::set_registers(tid, registers).map_err(CaptureError::trace("set the registers of", tid))?;
        resume(ptrace::resume_to_syscall(tid))?;
        let mut has_entered = false;
        let mut in_time = Ok(());
        loop {
            let (signal, event) = self.next_stop(tid, &mut in_time).await?;
            match (has_entered, signal, event) {
                (false, SYSCALL_STOP, 0) => {
                    has_entered = true;
                    resume(ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, 0)))?;
                }
                (true, _, EVENT_STOP) => break,
                // It would fault there for ever.
                (false, signal, event) if Running::has_failed(signal, event) => {
                    let cause = io::Error::other("its vdso is not where it was");
                    return Err(CaptureError::trace("make calls in", tid)(cause));
                }
                // A group stop, or a signal that cannot be blocked: the kernel, or we, repeat it at the end.
                (_, signal, event) => {
                    self.withheld.extend((event == 0).then_some((tid, signal)));
                    resume(if has_entered { ptrace::resume(tid, 0) } else { ptrace::resume_to_syscall(tid) })?;
                }
            }
        }
        let value = read_registers(tid)?.rax;
        in_time.and_then(|()| call.checked(tid, value))
    }

    /// Lets a thread run its script.
    pub(in crate::capture) fn start(&self, running: &Running, base: &Registers) -> Result<(), CaptureError> {
        self.aim(running, base)?;
        self.go(running)
    }

    /// Has a thread's registers lead to its script: from here on that brings it back.
    pub(in crate::capture) fn aim(&self, running: &Running, base: &Registers) -> Result<(), CaptureError> {
        let (tid, registers) = (running.tid(), running.registers(base));
        ptrace::set_registers(tid, &registers).map_err(CaptureError::trace("set the registers of", tid))
    }

    /// Lets a thread go where its registers lead.
    pub(in crate::capture) fn go(&self, running: &Running) -> Result<(), CaptureError> {
        ptrace::resume(running.tid(), 0).map_err(CaptureError::trace("resume", running.tid()))
    }

    /// Waits until the scripts have ended for which `must` says so; those and others that have are taken out. The registers of
    /// their threads lead home then: the desks are free.
    pub(in crate::capture) async fn finish(
        &mut self,
        running: &mut Vec<Running>,
        must: impl Fn(&Running) -> bool,
    ) -> Result<(), CaptureError> {
        let (mut in_time, mut failed) = (Ok(()), Ok(()));
        while running.iter().any(&must) {
            let Some((tid, report)) = self.next_report(&mut in_time).await? else { continue };
            let Some(at) = running.iter().position(|one| one.tid() == tid) else {
                self.note(tid, report)?;
                continue;
            };
            let Report::Stopped { signal, event } = report else { return Err(CaptureError::Gone { pid: self.pid }) };
            let registers = read_registers(tid)?;
            if running[at].has_ended(signal, event, &registers) {
                let home = running.swap_remove(at).home(&registers);
                ptrace::set_registers(tid, &home).map_err(CaptureError::trace("set the registers of", tid))?;
                continue;
            }
            if Running::has_failed(signal, event) {
                running.swap_remove(at);
                failed =
                    Err(CaptureError::trace("make calls in", tid)(io::Error::other("its own pages are in the way")));
                continue;
            }
            self.withheld.extend((event == 0).then_some((tid, signal)));
            ptrace::resume(tid, 0).map_err(CaptureError::trace("resume", tid))?;
        }
        in_time.and(failed)
    }

    /// Waits for the newborn of a clone.
    pub(in crate::capture) async fn wait_newborn(&mut self) -> Result<i32, CaptureError> {
        let mut in_time = Ok(());
        loop {
            if let Some(newborn) = self.newborn.take() {
                return Ok(newborn);
            }
            if let Some((tid, report)) = self.next_report(&mut in_time).await? {
                self.note(tid, report)?;
            }
            std::mem::replace(&mut in_time, Ok(()))?;
        }
    }

    /// The next stop of one thread.
    async fn next_stop(
        &mut self,
        tid: i32,
        in_time: &mut Result<(), CaptureError>,
    ) -> Result<(i32, i32), CaptureError> {
        loop {
            match self.next_report(in_time).await? {
                Some((from, Report::Stopped { signal, event })) if from == tid => return Ok((signal, event)),
                Some((from, report)) => self.note(from, report)?,
                None => {}
            }
        }
    }

    /// The next report; `None`, and `in_time` an error, each time that the deadline is found to be over.
    async fn next_report(&self, in_time: &mut Result<(), CaptureError>) -> Result<Option<(i32, Report)>, CaptureError> {
        let next = match self.post {
            Some(post) => post.next(self.pid).await,
            None => self.deadline.next_report(),
        };
        match next {
            Ok(report) => Ok(Some(report)),
            Err(Silence::TimedOut) => {
                let (limit, phase) = (self.deadline.limit(), "system calls made on its behalf");
                *in_time = Err(CaptureError::TimedOut { pid: self.pid, limit, phase });
                Ok(None)
            }
            Err(Silence::NoTracee) => Err(CaptureError::Gone { pid: self.pid }),
        }
    }

    /// A report of a thread that nothing is under way in: the newborn's first stop, or an end.
    fn note(&mut self, tid: i32, report: Report) -> Result<(), CaptureError> {
        match report {
            // A clone that somebody has killed: who uses it will find that. The threads at work must not be left for it, and the
            // kernel tells of it until it is taken.
            Report::Ended if self.post.is_some_and(|post| !post.knows(tid)) => {
                let _ = ptrace::reap(tid);
                self.newborn.get_or_insert(tid);
                Ok(())
            }
            Report::Ended => Err(CaptureError::Gone { pid: self.pid }),
            // It stands again: somebody has sent it a signal that stops or continues.
            Report::Stopped { .. } if self.post.is_some_and(|post| post.knows(tid)) => Ok(()),
            Report::Stopped { .. } => {
                self.newborn = Some(tid);
                Ok(())
            }
        }
    }
}

impl Drop for Injector<'_> {
    /// A newborn that nobody took: its parent was killed meanwhile.
    fn drop(&mut self) {
        if let Some(pid) = self.newborn.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The general registers of a stopped thread, which must run 64-bit code.
pub(in crate::capture) fn read_registers(tid: i32) -> Result<Registers, CaptureError> {
    let registers = ptrace::registers(tid).map_err(CaptureError::trace("read the registers of", tid))?;
    registers.ok_or_else(|| CaptureError::Trace {
        operation: "use",
        tid,
        source: io::Error::other("it runs 32-bit code, which farfork does not carry"),
    })
}

/// Where a process's vdso has a `syscall` instruction. The kernel maps the same one into most processes: the place of the
/// last one's is looked at first.
pub(in crate::capture) fn syscall_of_vdso(pid: i32, vdso: &MapEntry) -> io::Result<Option<u64>> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    static LAST: AtomicU64 = AtomicU64::new(0);
    let (last, mut there) = (LAST.load(Ordering::Relaxed), [0; SYSCALL.len()]);
    if last < vdso.bytes() && read_process(pid, vdso.start + last, &mut there).is_ok() && there == SYSCALL {
        return Ok(Some(vdso.start + last));
    }
    let mut code = vec![0; vdso.bytes() as usize];
    read_process(pid, vdso.start, &mut code)?;
    let Some(at) = code.windows(SYSCALL.len()).position(|window| window == SYSCALL) else { return Ok(None) };
    LAST.store(at as u64, Ordering::Relaxed);
    Ok(Some(vdso.start + at as u64))
}
