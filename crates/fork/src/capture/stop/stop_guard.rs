//! A stopped process, and how it resumes.
//!
//! `StopGuard` owns the stop: dropping it restores registers and signal masks and detaches, whatever failed.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::{ProcStat, ProcStatus};
use farfork_sys::ptrace::{self, Registers, SignalQueue};
use farfork_wire::descriptor::RestartableCall;
use rustix::process::{Pid, Signal};

use super::restart::CallMark;
use super::{interrupted_calls, restart};
use crate::capture::error::CaptureError;
use crate::capture::injection::injector::read_registers;
use crate::capture::injection::script::EndSignal;

/// Time limit for the wait until killed threads have ended. The last thread to end tears down the memory of the process.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Time between two checks for the end of killed threads.
const END_INTERVAL: Duration = Duration::from_micros(200);

/// A stopped thread.
#[derive(Debug, Clone)]
pub(in crate::capture) struct StoppedThread {
    pub(in crate::capture) tid: i32,
    /// The registers with which the thread resumes: its registers at the stop, after the rules of [`restart`].
    pub(in crate::capture) registers: Registers,
    /// Signal mask of the thread, outside of sigsuspend(2) and similar calls.
    pub(in crate::capture) signal_mask: u64,
    pub(in crate::capture) pending_signals: Vec<[u8; ptrace::SIGINFO_BYTES]>,
    pub(in crate::capture) rseq: Option<ptrace::RseqConfiguration>,
    /// Remaining time of the thread's interrupted call, if it is known.
    pub(in crate::capture) pending_call: Option<RestartableCall>,
    /// Whether a signal is pending that the thread does not block.
    has_deliverable_signal: bool,
}

/// State of a process at its stop. The first thread is the leader.
#[derive(Debug, Clone, Default)]
pub(in crate::capture) struct ProcessSnapshot {
    pub(in crate::capture) pid: i32,
    pub(in crate::capture) threads: Vec<StoppedThread>,
    /// Signals pending for the process.
    pub(in crate::capture) pending_signals: Vec<[u8; ptrace::SIGINFO_BYTES]>,
}

/// A stopped process. Dropping it resumes the process unchanged.
#[derive(Debug)]
pub(in crate::capture) struct StopGuard {
    pub(in crate::capture) snapshot: ProcessSnapshot,
    withheld_signals: Vec<(i32, i32)>,
    are_others_restored: bool,
    is_leader_restored: bool,
}

impl StopGuard {
    /// Reads the state with which stopped threads resume. From here on, dropping the guard restores and releases them.
    pub(in crate::capture) fn new(pid: i32, tids: &[i32]) -> Result<Self, CaptureError> {
        let pending = ptrace::read_pending_signals(pid, SignalQueue::Process)
            .map_err(CaptureError::tracing("read the pending signals of", pid))?;
        let mut threads = Vec::with_capacity(tids.len());
        for tid in tids {
            threads.push(StoppedThread::read(*tid, &pending)?);
        }
        let snapshot = ProcessSnapshot { pid, threads, pending_signals: pending };
        Ok(Self { snapshot, withheld_signals: Vec::new(), are_others_restored: false, is_leader_restored: false })
    }

    /// Adds signals that were withheld from threads. They are sent again when the threads are released.
    pub(in crate::capture) fn add_withheld(&mut self, signals: &mut Vec<(i32, i32)>) {
        self.withheld_signals.append(signals);
    }

    /// Restores registers and signal masks, without releasing the threads.
    pub(in crate::capture) fn restore(&mut self) {
        self.restore_others();
        if let Some(leader) = self.snapshot.threads.first().filter(|_| !self.is_leader_restored) {
            leader.restore();
        }
    }

    /// Records that the leader has its registers and its signal mask again, and makes no more calls.
    pub(in crate::capture) fn mark_leader_restored(&mut self) {
        self.is_leader_restored = true;
    }

    /// Reads signals that have arrived for the process since its stop, for example from a timer, whose expiration nothing
    /// else shows.
    pub(in crate::capture) fn read_late_signals(&mut self) -> Result<(), CaptureError> {
        let pid = self.snapshot.pid;
        let pending = ptrace::read_pending_signals(pid, SignalQueue::Process);
        self.snapshot.pending_signals = pending.map_err(CaptureError::tracing("read the pending signals of", pid))?;
        Ok(())
    }

    /// Restores all threads but the leader, which still makes calls.
    pub(in crate::capture) fn restore_others(&mut self) {
        if !std::mem::replace(&mut self.are_others_restored, true) {
            self.snapshot.threads.iter().skip(1).for_each(StoppedThread::restore);
        }
    }
}

impl ProcessSnapshot {
    /// The main thread.
    pub(in crate::capture) fn leader(&self) -> &StoppedThread {
        &self.threads[0]
    }

    /// Whether a signal is pending for the process or one of its threads.
    pub(in crate::capture) fn has_pending(&self, signal: i32) -> bool {
        let mut all = self.pending_signals.iter().chain(self.threads.iter().flat_map(|one| &one.pending_signals));
        all.any(|info| signal_number(info) == signal)
    }
}

impl StopGuard {
    /// Releases the process, and returns its snapshot.
    pub(in crate::capture) fn release(mut self) -> ProcessSnapshot {
        self.detach_all();
        std::mem::take(&mut self.snapshot)
    }

    fn detach_all(&mut self) {
        self.restore();
        let tids = self.snapshot.threads.iter().map(|thread| thread.tid);
        let mut killed: Vec<i32> = tids.filter(|tid| ptrace::detach(*tid).is_err()).collect();
        // If the process is a child of this process, the code that started it must reap it.
        killed.retain(|tid| *tid != self.snapshot.pid || !is_own_child(*tid));
        reap_killed(killed);
        for (_, signal) in &self.withheld_signals {
            if let (Some(pid), Some(signal)) = (Pid::from_raw(self.snapshot.pid), Signal::from_named_raw(*signal)) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

fn is_own_child(pid: i32) -> bool {
    ProcStat::read(pid).is_ok_and(|stat| stat.parent == std::process::id() as i32)
}

/// Reaps threads that were killed while they were stopped, and so cannot be detached. Otherwise the kernel would report the
/// end of the process to its parent only when this thread ends, perhaps with its seed.
fn reap_killed(mut killed: Vec<i32>) {
    let started_at = Instant::now();
    loop {
        // A thread that is not a tracee any more was reaped or detached.
        killed.retain(|tid| matches!(ptrace::reap(*tid), Ok(false)));
        if killed.is_empty() {
            return;
        }
        if started_at.elapsed() > END_LIMIT {
            return tracing::warn!(
                "threads {killed:?} were killed in their capture and have not ended within {END_LIMIT:?}"
            );
        }
        thread::sleep(END_INTERVAL);
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.detach_all();
    }
}

impl StoppedThread {
    fn read(tid: i32, process_pending: &[[u8; ptrace::SIGINFO_BYTES]]) -> Result<Self, CaptureError> {
        let registers = restart::resolve_restart(&read_registers(tid)?, |address| read_call_site(tid, address));
        let trace = |operation| CaptureError::tracing(operation, tid);
        let signal_mask = ptrace::read_signal_mask(tid).map_err(trace("read the signal mask of"))?;
        let own =
            ptrace::read_pending_signals(tid, SignalQueue::Thread).map_err(trace("read the pending signals of"))?;
        let rseq = ptrace::read_rseq(tid).map_err(trace("read the rseq registration of"))?;
        let signal_waits = has_deliverable(tid, signal_mask, own.iter().chain(process_pending));
        let is_in_call = restart::is_in_call(&registers);
        let mut registers = restart::parent_registers(&registers);
        // A restartable sequence makes no system calls (rseq(2)).
        if let Some(rseq) = rseq.filter(|_| !is_in_call) {
            registers = abort_rseq(tid, rseq.address, &registers);
        }
        Ok(Self {
            tid,
            registers,
            signal_mask,
            pending_signals: own,
            rseq,
            pending_call: None,
            has_deliverable_signal: signal_waits,
        })
    }

    /// Registers with which the thread starts on a kernel that has not seen its system call.
    pub(in crate::capture) fn restart_registers(&self) -> Registers {
        restart::child_registers(&self.registers, self.has_deliverable_signal)
    }

    /// Returns the state of the child's thread: its registers, and the remaining time of a call that is repeated with less
    /// time than its limit. Such a call has a mark.
    pub(in crate::capture) fn child_state(&self) -> (Registers, Option<RestartableCall>) {
        let child = self.restart_registers();
        match self.pending_call.filter(|_| restart::restarts_call(&self.registers, &child)) {
            Some(left) => (Registers { rax: CallMark::new().apply_to(child.rax), ..child }, Some(left)),
            None => (child, None),
        }
    }

    /// Blocks all signals but the one that ends scripts, so that no handler runs during injected calls.
    pub(in crate::capture) fn block_signals(&self, end: EndSignal) -> Result<(), CaptureError> {
        ptrace::write_signal_mask(self.tid, end.blocked_mask())
            .map_err(CaptureError::tracing("block the signals of", self.tid))
    }

    /// Restores the thread's signal mask and registers. The registers are last: until then they point to code that restores
    /// both if this process dies.
    pub(in crate::capture) fn restore(&self) {
        // If the thread was killed, nothing is left to restore.
        let _ = ptrace::write_signal_mask(self.tid, self.signal_mask);
        let _ = ptrace::write_registers(self.tid, &self.registers);
    }
}

/// Signals that are ignored by default and that are queued only while a process is traced: SIGCHLD, SIGCONT, SIGURG,
/// SIGWINCH. Bit N−1 is signal N.
const DEFAULT_IGNORED_SIGNALS: u64 = 1 << 16 | 1 << 17 | 1 << 22 | 1 << 27;

/// Prepares a thread that has just stopped: its interrupted call then restarts even if the tracer dies. This is the first
/// step after a stop.
pub(in crate::capture) fn mark_interrupted_call(tid: i32) {
    // If the registers cannot be read now, their next read reports the error.
    let Ok(Some(registers)) = ptrace::read_registers(tid) else { return };
    let restartable = restart::parent_registers(&registers);
    interrupted_calls::record_interrupted(tid, &registers, &restartable);
    if restartable != registers {
        let _ = ptrace::write_registers(tid, &restartable);
    }
}

/// Whether one of the signals is neither blocked nor ignored. Within sigsuspend(2) and similar calls, ptrace does not show
/// the mask that is in effect; only /proc does.
fn has_deliverable<'a>(
    tid: i32,
    mask: u64,
    mut signals: impl Iterator<Item = &'a [u8; ptrace::SIGINFO_BYTES]>,
) -> bool {
    let mut first = signals.next();
    if first.is_none() {
        return false;
    }
    let (mask, ignored) = ProcStatus::read(tid).map_or((mask, 0), |status| {
        (status.signals_blocked, status.signals_ignored | (DEFAULT_IGNORED_SIGNALS & !status.signals_caught))
    });
    while let Some(info) = first {
        let bit = (signal_number(info) - 1).clamp(0, 63);
        if (mask | ignored) & (1 << bit) == 0 {
            return true;
        }
        first = signals.next();
    }
    false
}

pub(super) fn read_call_site(tid: i32, address: u64) -> Option<[u8; restart::CALL_BYTES]> {
    let mut code = [0; restart::CALL_BYTES];
    let read = farfork_sys::process_memory::read_process(tid, address, &mut code).ok()?;
    (read == code.len()).then_some(code)
}

/// Returns the signal number: the first word of a siginfo_t.
fn signal_number(info: &[u8; ptrace::SIGINFO_BYTES]) -> i32 {
    i32::from_ne_bytes([info[0], info[1], info[2], info[3]])
}

/// Moves a thread out of a restartable sequence (rseq). Injected system calls make the kernel forget the sequence in
/// progress, and the thread would continue inside it unprotected. So parent and child continue at its abort handler.
fn abort_rseq(tid: i32, rseq_address: u64, registers: &Registers) -> Registers {
    /// Offset of the pointer `rseq_cs` in `struct rseq`.
    const RSEQ_CS_OFFSET: u64 = 8;
    let read = |address: u64, into: &mut [u8]| -> io::Result<()> {
        let read = farfork_sys::process_memory::read_process(tid, address, into)?;
        if read == into.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    };
    let mut pointer = [0; 8];
    let mut sequence = [0; restart::SEQUENCE_BYTES];
    let under_way = read(rseq_address + RSEQ_CS_OFFSET, &mut pointer).is_ok()
        && u64::from_ne_bytes(pointer) != 0
        && read(u64::from_ne_bytes(pointer), &mut sequence).is_ok();
    if under_way { restart::RseqCriticalSection::parse(&sequence).abort_registers(registers) } else { *registers }
}
