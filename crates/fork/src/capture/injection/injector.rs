//! Executes system calls in stopped threads: a single call, or a script of many.
//!
//! A call that has started is never abandoned: a thread released inside the call would continue with the call's registers.
//! If it outlasts the deadline (fork of a huge process, a freezer), the injector still waits for it, and the attempt
//! fails afterwards. `owner_thread` reports the timeout to the caller in time.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_sys::process::MapEntry;
use farfork_sys::process_memory::read_process;
use farfork_sys::ptrace::{self, EVENT_STOP, Registers, TraceeEvent};
use rustix::process::{Pid, Signal, kill_process};

use super::script::RunningScript;
use super::sigreturn_frame::RescueFrame;
use crate::capture::error::CaptureError;
use crate::capture::tracer::deadline::{Deadline, WaitError};
use crate::capture::tracer::executor::PauseExecutor;

/// A stop at a system call, under PTRACE_O_TRACESYSGOOD.
const SYSCALL_STOP: i32 = 5 | 0x80;

/// System calls return errors as −4095 to −1.
const ERRNO_MAX: u64 = 4095;

/// A system call of x86-64.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct InjectedCall {
    pub(in crate::capture) name: &'static str,
    pub(in crate::capture) number: u64,
    pub(in crate::capture) arguments: [u64; 6],
    /// Whether the call never fails, so that no result is an error.
    never_fails: bool,
}

impl InjectedCall {
    pub(in crate::capture) fn new<const N: usize>(name: &'static str, number: u64, arguments: [u64; N]) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&arguments);
        Self { name, number, arguments: all, never_fails: false }
    }

    /// Marks a call that never fails, and whose results may look like errors.
    pub(in crate::capture) fn never_failing(self) -> Self {
        Self { never_fails: true, ..self }
    }

    /// Registers with which a thread makes the call at `syscall_at`. The other registers are those of `base`.
    fn registers(&self, base: &Registers, syscall_at: u64) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = self.arguments;
        // orig_rax −1: the kernel must not restart the old call.
        let (rax, orig_rax, rip) = (self.number, u64::MAX, syscall_at);
        Registers { rax, orig_rax, rip, rdi, rsi, rdx, r10, r8, r9, ..*base }
    }

    /// Checks the result of the call: small negative values are errors, unless it never fails.
    pub(in crate::capture) fn check_result(&self, tid: i32, value: u64) -> Result<u64, CaptureError> {
        let errno = value.wrapping_neg();
        if !self.never_fails && (1..=ERRNO_MAX).contains(&errno) {
            let source = io::Error::from_raw_os_error(errno as i32);
            return Err(CaptureError::InjectedCall { call: self.name, tid, source });
        }
        Ok(value)
    }
}

//  call    registers → vdso's `syscall` ─ PTRACE_SYSCALL ─▶ entry ─ INTERRUPT, CONT ─▶ PTRACE_EVENT_STOP
//  script  registers → our own code     ─ CONT ─▶ all calls ─ tgkill(itself) ─▶ stop before that signal's delivery
//
// Single steps would be simpler, but the kernel forces the SIGTRAP that ends a step. The kernel then resets the parent's
// disposition of SIGTRAP if that signal is ignored or blocked, and kills the parent if the tracer dies. Neither stop above
// does harm when the tracer dies. From both, the kernel restarts an interrupted call by itself once the old registers are
// back.
/// Makes stopped threads execute system calls, and handles ptrace reports that arrive during the calls. The threads' signals
/// are blocked.
#[derive(Debug)]
pub(in crate::capture) struct Injector<'a> {
    pid: i32,
    /// Address of a `syscall` instruction, in the vdso.
    syscall_address: u64,
    deadline: &'a Deadline,
    /// A new tracee: the clone made by a call with CLONE_PTRACE.
    new_clone: Option<i32>,
    /// Receives the reports if several pauses run concurrently. `None`: this thread waits for reports itself.
    executor: Option<&'a PauseExecutor<'a>>,
    /// Signals that cannot be blocked and arrived during calls, each with its thread id. They are sent again when the thread
    /// is released.
    pub(in crate::capture) withheld_signals: Vec<(i32, i32)>,
}

impl<'a> Injector<'a> {
    pub(in crate::capture) fn new(pid: i32, syscall_at: u64, deadline: &'a Deadline) -> Self {
        Self {
            pid,
            syscall_address: syscall_at,
            deadline,
            new_clone: None,
            executor: None,
            withheld_signals: Vec::new(),
        }
    }

    /// Returns an injector for a pause that runs concurrently with others.
    pub(in crate::capture) fn with_executor(pid: i32, syscall_at: u64, pause_executor: &'a PauseExecutor<'a>) -> Self {
        let mut alone = Self::new(pid, syscall_at, pause_executor.deadline());
        alone.executor = Some(pause_executor);
        alone
    }

    /// The deadline of the attempt.
    pub(in crate::capture) fn deadline(&self) -> &'a Deadline {
        self.deadline
    }

    /// Address of the `syscall` instruction.
    pub(in crate::capture) fn syscall_address(&self) -> u64 {
        self.syscall_address
    }

    /// Makes one call in one thread, and returns its result. The thread's other registers are `base`.
    pub(in crate::capture) async fn call(
        &mut self,
        tid: i32,
        base: &Registers,
        call: InjectedCall,
    ) -> Result<u64, CaptureError> {
        let registers = call.registers(base, self.syscall_address);
        self.execute(tid, &registers, call).await
    }

    /// Makes one call in one thread, protected by `rescue`: if this process dies during the call, the frame restores the
    /// thread. Afterwards the registers still point to the frame. When they no longer do, the caller disarms the frame.
    pub(in crate::capture) async fn call_with_frame(
        &mut self,
        tid: i32,
        base: &Registers,
        call: InjectedCall,
        rescue: RescueFrame<'_>,
    ) -> Result<u64, CaptureError> {
        let Some(frame) = rescue.arm() else {
            return self.call(tid, base, call).await;
        };
        let registers = frame.redirect_call(call.registers(base, self.syscall_address));
        self.execute(tid, &registers, call).await
    }

    async fn execute(&mut self, tid: i32, registers: &Registers, call: InjectedCall) -> Result<u64, CaptureError> {
        let resume = |gone: io::Result<()>| gone.map_err(CaptureError::tracing("resume", tid));
        ptrace::write_registers(tid, registers).map_err(CaptureError::tracing("set the registers of", tid))?;
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
                // The thread would fault at this address forever.
                (false, signal, event) if RunningScript::is_fault_stop(signal, event) => {
                    let cause = io::Error::other("its vdso was moved or unmapped");
                    return Err(CaptureError::tracing("make calls in", tid)(cause));
                }
                // A group stop, or a signal that cannot be blocked. It is repeated at the release, by the kernel or by this
                // process.
                (_, signal, event) => {
                    self.withheld_signals.extend((event == 0).then_some((tid, signal)));
                    resume(if has_entered { ptrace::resume(tid, 0) } else { ptrace::resume_to_syscall(tid) })?;
                }
            }
        }
        let value = read_registers(tid)?.rax;
        in_time.and_then(|()| call.check_result(tid, value))
    }

    /// Starts the script of a thread.
    pub(in crate::capture) fn start_script(
        &self,
        running: &RunningScript,
        base: &Registers,
    ) -> Result<(), CaptureError> {
        self.point_to_script(running, base)?;
        self.resume(running)
    }

    /// Points a thread's registers to its script. From here on, the script restores the thread if this process dies.
    pub(in crate::capture) fn point_to_script(
        &self,
        running: &RunningScript,
        base: &Registers,
    ) -> Result<(), CaptureError> {
        let (tid, registers) = (running.tid(), running.start_registers(base));
        ptrace::write_registers(tid, &registers).map_err(CaptureError::tracing("set the registers of", tid))
    }

    /// Resumes a thread where its registers point.
    pub(in crate::capture) fn resume(&self, running: &RunningScript) -> Result<(), CaptureError> {
        ptrace::resume(running.tid(), 0).map_err(CaptureError::tracing("resume", running.tid()))
    }

    /// Waits until all scripts that `must` selects have ended. Removes all ended scripts from `running`. The registers of
    /// their threads then point to rt_sigreturn(2), so their slots are free.
    pub(in crate::capture) async fn wait_scripts(
        &mut self,
        running: &mut Vec<RunningScript>,
        must: impl Fn(&RunningScript) -> bool,
    ) -> Result<(), CaptureError> {
        let (mut in_time, mut failed) = (Ok(()), Ok(()));
        while running.iter().any(&must) {
            let Some((tid, report)) = self.next_report(&mut in_time).await? else { continue };
            let Some(at) = running.iter().position(|one| one.tid() == tid) else {
                self.record_report(tid, report)?;
                continue;
            };
            let TraceeEvent::Stopped { signal, event } = report else {
                return Err(CaptureError::ProcessGone { pid: self.pid });
            };
            let registers = read_registers(tid)?;
            if running[at].is_end_stop(signal, event, &registers) {
                let home = running.swap_remove(at).sigreturn_registers(&registers);
                ptrace::write_registers(tid, &home).map_err(CaptureError::tracing("set the registers of", tid))?;
                continue;
            }
            if RunningScript::is_fault_stop(signal, event) {
                running.swap_remove(at);
                failed = Err(CaptureError::tracing("make calls in", tid)(io::Error::other(
                    "the pages for injected calls are not accessible to it",
                )));
                continue;
            }
            self.withheld_signals.extend((event == 0).then_some((tid, signal)));
            ptrace::resume(tid, 0).map_err(CaptureError::tracing("resume", tid))?;
        }
        in_time.and(failed)
    }

    /// Waits for a new clone.
    pub(in crate::capture) async fn wait_clone(&mut self) -> Result<i32, CaptureError> {
        let mut in_time = Ok(());
        loop {
            if let Some(newborn) = self.new_clone.take() {
                return Ok(newborn);
            }
            if let Some((tid, report)) = self.next_report(&mut in_time).await? {
                self.record_report(tid, report)?;
            }
            std::mem::replace(&mut in_time, Ok(()))?;
        }
    }

    /// Waits for the next stop of one thread.
    async fn next_stop(
        &mut self,
        tid: i32,
        in_time: &mut Result<(), CaptureError>,
    ) -> Result<(i32, i32), CaptureError> {
        loop {
            match self.next_report(in_time).await? {
                Some((from, TraceeEvent::Stopped { signal, event })) if from == tid => return Ok((signal, event)),
                Some((from, report)) => self.record_report(from, report)?,
                None => {}
            }
        }
    }

    /// Waits for the next report. Each time that the deadline has passed, returns `None` and sets `in_time` to an error.
    async fn next_report(
        &self,
        in_time: &mut Result<(), CaptureError>,
    ) -> Result<Option<(i32, TraceeEvent)>, CaptureError> {
        let next = match self.executor {
            Some(pause_executor) => pause_executor.next_report(self.pid).await,
            None => self.deadline.wait_report(),
        };
        match next {
            Ok(report) => Ok(Some(report)),
            Err(WaitError::TimedOut) => {
                let (limit, phase) = (self.deadline.limit(), "system calls made on its behalf");
                *in_time = Err(CaptureError::TimedOut { pid: self.pid, limit, phase });
                Ok(None)
            }
            Err(WaitError::NoTracee) => Err(CaptureError::ProcessGone { pid: self.pid }),
        }
    }

    /// Whether this is a thread of the process, or of another process of the executor. Otherwise it is a clone, such as a
    /// template.
    fn is_own_thread(&self, tid: i32) -> bool {
        match self.executor {
            Some(pause_executor) => pause_executor.contains(tid),
            None => Path::new(&format!("/proc/{}/task/{tid}", self.pid)).exists(),
        }
    }

    /// Records a report of a thread that runs no script: the first stop of a new clone, or an end.
    fn record_report(&mut self, tid: i32, report: TraceeEvent) -> Result<(), CaptureError> {
        match report {
            // A clone was killed. The next function that uses the clone reports that. Threads that make calls must still be
            // waited for. Reap the clone: until then, the kernel repeats the report of its end.
            TraceeEvent::Ended if !self.is_own_thread(tid) => {
                let _ = ptrace::reap(tid);
                self.new_clone.get_or_insert(tid);
                Ok(())
            }
            TraceeEvent::Ended => Err(CaptureError::ProcessGone { pid: self.pid }),
            // The thread has stopped again, because another process sent it a signal that stops or continues.
            TraceeEvent::Stopped { .. } if self.executor.is_some_and(|pause_executor| pause_executor.contains(tid)) => {
                Ok(())
            }
            TraceeEvent::Stopped { .. } => {
                self.new_clone = Some(tid);
                Ok(())
            }
        }
    }
}

impl Drop for Injector<'_> {
    /// Kills a clone that `wait_clone` did not take, because the parent was killed for example.
    fn drop(&mut self) {
        if let Some(pid) = self.new_clone.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Reads the general registers of a stopped thread. Fails if the thread runs 32-bit code.
pub(in crate::capture) fn read_registers(tid: i32) -> Result<Registers, CaptureError> {
    let registers = ptrace::read_registers(tid).map_err(CaptureError::tracing("read the registers of", tid))?;
    registers.ok_or_else(|| CaptureError::Trace {
        operation: "use",
        tid,
        source: io::Error::other("it runs 32-bit code, which farfork does not carry"),
    })
}

/// Finds the address of a `syscall` instruction in a process's vdso. The kernel maps the same vdso into most processes, so
/// tries the last found offset first.
pub(in crate::capture) fn find_vdso_syscall(pid: i32, vdso: &MapEntry) -> io::Result<Option<u64>> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    static LAST_OFFSET: AtomicU64 = AtomicU64::new(0);
    let (last, mut there) = (LAST_OFFSET.load(Ordering::Relaxed), [0; SYSCALL.len()]);
    if last < vdso.bytes() && read_process(pid, vdso.start + last, &mut there).is_ok() && there == SYSCALL {
        return Ok(Some(vdso.start + last));
    }
    let mut code = vec![0; vdso.bytes() as usize];
    read_process(pid, vdso.start, &mut code)?;
    let Some(at) = code.windows(SYSCALL.len()).position(|window| window == SYSCALL) else { return Ok(None) };
    LAST_OFFSET.store(at as u64, Ordering::Relaxed);
    Ok(Some(vdso.start + at as u64))
}
