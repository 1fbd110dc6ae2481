//! A process that stands still, and how it goes on.
//!
//! [`Stopped`] owns the stop: dropping it puts registers and signal masks back and lets go, whatever went wrong.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::{Stat, Status};
use farfork_sys::ptrace::{self, Registers, SignalQueue};
use farfork_wire::descriptor::PendingCall;
use rustix::process::{Pid, Signal};

use super::restart::CallMark;
use super::{restart, waits};
use crate::capture::calls::inject::read_registers;
use crate::capture::calls::script::EndSignal;
use crate::capture::error::CaptureError;

/// How long killed threads may take to end: as long as tearing down the memory of the last of them.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks whether they have.
const END_INTERVAL: Duration = Duration::from_micros(200);

/// A thread that stands still.
#[derive(Debug, Clone)]
pub(in crate::capture) struct StoppedThread {
    pub(in crate::capture) tid: i32,
    /// What it goes on with: its registers at the stop, after the rules of [`restart`].
    pub(in crate::capture) registers: Registers,
    /// Its blocked signals, outside of sigsuspend(2) and the like.
    pub(in crate::capture) signal_mask: u64,
    pub(in crate::capture) pending_signals: Vec<[u8; ptrace::SIGINFO_BYTES]>,
    pub(in crate::capture) rseq: Option<ptrace::RseqConfiguration>,
    /// How much time its call had left, where it is known.
    pub(in crate::capture) pending_call: Option<PendingCall>,
    /// Whether a signal is pending that it does not block.
    signal_waits: bool,
}

/// A process as it stood, the leader first.
#[derive(Debug, Clone, Default)]
pub(in crate::capture) struct Snapshot {
    pub(in crate::capture) pid: i32,
    pub(in crate::capture) threads: Vec<StoppedThread>,
    /// Signals pending for the process.
    pub(in crate::capture) pending_signals: Vec<[u8; ptrace::SIGINFO_BYTES]>,
}

/// A process that stands still. Dropping it lets it go on as it was.
#[derive(Debug)]
pub(in crate::capture) struct Stopped {
    pub(in crate::capture) snapshot: Snapshot,
    withheld: Vec<(i32, i32)>,
    others_are_restored: bool,
    leader_is_restored: bool,
}

impl Stopped {
    /// Reads, of threads that stand, what decides how they go on. From here on the drop restores them.
    pub(in crate::capture) fn take(pid: i32, tids: &[i32]) -> Result<Self, CaptureError> {
        let pending = ptrace::pending_signals(pid, SignalQueue::Process)
            .map_err(CaptureError::trace("read the pending signals of", pid))?;
        let mut threads = Vec::with_capacity(tids.len());
        for tid in tids {
            threads.push(StoppedThread::read(*tid, &pending)?);
        }
        let snapshot = Snapshot { pid, threads, pending_signals: pending };
        Ok(Self { snapshot, withheld: Vec::new(), others_are_restored: false, leader_is_restored: false })
    }

    /// Stop signals to be sent again when the threads are let go.
    pub(in crate::capture) fn withhold(&mut self, signals: &mut Vec<(i32, i32)>) {
        self.withheld.append(signals);
    }

    /// Puts registers and signal masks back, without letting go.
    pub(in crate::capture) fn restore(&mut self) {
        self.restore_others();
        if let Some(leader) = self.snapshot.threads.first().filter(|_| !self.leader_is_restored) {
            leader.restore();
        }
    }

    /// The leader has its registers and its signal mask again, and makes no more calls.
    pub(in crate::capture) fn note_restored_leader(&mut self) {
        self.leader_is_restored = true;
    }

    /// Signals that have come for the process since it was stopped: a timer's, whose expiration nobody else tells.
    pub(in crate::capture) fn take_late_signals(&mut self) -> Result<(), CaptureError> {
        let pid = self.snapshot.pid;
        let pending = ptrace::pending_signals(pid, SignalQueue::Process);
        self.snapshot.pending_signals = pending.map_err(CaptureError::trace("read the pending signals of", pid))?;
        Ok(())
    }

    /// The same for all but the leader, which is not done with yet.
    pub(in crate::capture) fn restore_others(&mut self) {
        if !std::mem::replace(&mut self.others_are_restored, true) {
            self.snapshot.threads.iter().skip(1).for_each(StoppedThread::restore);
        }
    }
}

impl Snapshot {
    /// The main thread.
    pub(in crate::capture) fn leader(&self) -> &StoppedThread {
        &self.threads[0]
    }

    /// Whether a signal waits in any queue.
    pub(in crate::capture) fn has_pending(&self, signal: i32) -> bool {
        let mut all = self.pending_signals.iter().chain(self.threads.iter().flat_map(|one| &one.pending_signals));
        all.any(|info| signal_number(info) == signal)
    }
}

impl Stopped {
    /// Lets go, and tells how it stood.
    pub(in crate::capture) fn release(mut self) -> Snapshot {
        self.let_go();
        std::mem::take(&mut self.snapshot)
    }

    fn let_go(&mut self) {
        self.restore();
        let tids = self.snapshot.threads.iter().map(|thread| thread.tid);
        let mut killed: Vec<i32> = tids.filter(|tid| ptrace::detach(*tid).is_err()).collect();
        // The end of a child of our own is for who started it.
        killed.retain(|tid| *tid != self.snapshot.pid || !is_own_child(*tid));
        take_ends(killed);
        for (_, signal) in &self.withheld {
            if let (Some(pid), Some(signal)) = (Pid::from_raw(self.snapshot.pid), Signal::from_named_raw(*signal)) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }
}

fn is_own_child(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.parent == std::process::id() as i32)
}

/// Threads that were killed while they stood still cannot be let go. Their ends must be taken: whoever waits for the process
/// hears nothing of its end before, and this thread may live as long as a seed.
fn take_ends(mut killed: Vec<i32>) {
    let begun = Instant::now();
    loop {
        // Who is no tracee any more was taken, or has been let go after all.
        killed.retain(|tid| matches!(ptrace::reap(*tid), Ok(false)));
        if killed.is_empty() {
            return;
        }
        if begun.elapsed() > END_LIMIT {
            return tracing::warn!(
                "threads {killed:?} were killed in their capture and have not ended within {END_LIMIT:?}"
            );
        }
        thread::sleep(END_INTERVAL);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl StoppedThread {
    fn read(tid: i32, process_pending: &[[u8; ptrace::SIGINFO_BYTES]]) -> Result<Self, CaptureError> {
        let registers = restart::name_call(&read_registers(tid)?, |address| read_code(tid, address));
        let trace = |operation| CaptureError::trace(operation, tid);
        let signal_mask = ptrace::signal_mask(tid).map_err(trace("read the signal mask of"))?;
        let own = ptrace::pending_signals(tid, SignalQueue::Thread).map_err(trace("read the pending signals of"))?;
        let rseq = ptrace::rseq(tid).map_err(trace("read the rseq registration of"))?;
        let signal_waits = has_deliverable(tid, signal_mask, own.iter().chain(process_pending));
        let is_in_call = restart::is_in_call(&registers);
        let mut registers = restart::for_parent(&registers);
        // No sequence makes system calls (rseq(2)).
        if let Some(rseq) = rseq.filter(|_| !is_in_call) {
            registers = abort_sequence(tid, rseq.address, &registers);
        }
        Ok(Self { tid, registers, signal_mask, pending_signals: own, rseq, pending_call: None, signal_waits })
    }

    /// Registers of a thread that a kernel lets begin which has not seen its system call.
    pub(in crate::capture) fn resumed_elsewhere(&self) -> Registers {
        restart::for_child(&self.registers, self.signal_waits)
    }

    /// The same for a child: a call that is made again with less time than its limit has a mark, and that time.
    pub(in crate::capture) fn resumed_in_child(&self) -> (Registers, Option<PendingCall>) {
        let child = self.resumed_elsewhere();
        match self.pending_call.filter(|_| restart::is_made_again(&self.registers, &child)) {
            Some(left) => (Registers { rax: CallMark::new().put_on(child.rax), ..child }, Some(left)),
            None => (child, None),
        }
    }

    /// Blocks its signals, so that no handler runs on our behalf; but the one that ends scripts.
    pub(in crate::capture) fn block_signals(&self, end: EndSignal) -> Result<(), CaptureError> {
        ptrace::set_signal_mask(self.tid, end.mask()).map_err(CaptureError::trace("block the signals of", self.tid))
    }

    /// Puts its signal mask and registers back. The registers last: until then they lead to what puts back both, should we die.
    pub(in crate::capture) fn restore(&self) {
        // A thread that was killed meanwhile has nothing left to restore.
        let _ = ptrace::set_signal_mask(self.tid, self.signal_mask);
        let _ = ptrace::set_registers(self.tid, &self.registers);
    }
}

/// Signals that do nothing where they have no handler, and that wait only while a process is traced: SIGCHLD, SIGCONT, SIGURG,
/// SIGWINCH. Bit N−1 is signal N.
const IGNORED_BY_DEFAULT: u64 = 1 << 16 | 1 << 17 | 1 << 22 | 1 << 27;

/// Has a call of a thread that has just stopped restarted whatever becomes of its tracer: the first that is done with it.
pub(in crate::capture) fn make_restartable(tid: i32) {
    // What cannot be read now is told when it is read again.
    let Ok(Some(registers)) = ptrace::registers(tid) else { return };
    let restartable = restart::for_parent(&registers);
    waits::note(tid, &registers, &restartable);
    if restartable != registers {
        let _ = ptrace::set_registers(tid, &restartable);
    }
}

/// Whether one of the signals is neither blocked nor ignored. Within sigsuspend(2) and the like another mask holds than the one that
/// ptrace tells; only /proc knows it.
fn has_deliverable<'a>(
    tid: i32,
    mask: u64,
    mut signals: impl Iterator<Item = &'a [u8; ptrace::SIGINFO_BYTES]>,
) -> bool {
    let mut first = signals.next();
    if first.is_none() {
        return false;
    }
    let (mask, ignored) = Status::read(tid).map_or((mask, 0), |status| {
        (status.signals_blocked, status.signals_ignored | (IGNORED_BY_DEFAULT & !status.signals_caught))
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

pub(super) fn read_code(tid: i32, address: u64) -> Option<[u8; restart::CALL_BYTES]> {
    let mut code = [0; restart::CALL_BYTES];
    let read = farfork_sys::memory::read_process(tid, address, &mut code).ok()?;
    (read == code.len()).then_some(code)
}

/// The first word of a siginfo_t.
fn signal_number(info: &[u8; ptrace::SIGINFO_BYTES]) -> i32 {
    i32::from_ne_bytes([info[0], info[1], info[2], info[3]])
}

/// The rule for restartable sequences: our system calls would make the kernel forget the sequence under way, and the
/// thread would go on inside it unprotected. So it goes on at the abort handler, in parent and child.
fn abort_sequence(tid: i32, area: u64, registers: &Registers) -> Registers {
    /// Offset of the pointer `rseq_cs` in `struct rseq`.
    const POINTER_OFFSET: u64 = 8;
    let read = |address: u64, into: &mut [u8]| -> io::Result<()> {
        let read = farfork_sys::memory::read_process(tid, address, into)?;
        if read == into.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    };
    let mut pointer = [0; 8];
    let mut sequence = [0; restart::SEQUENCE_BYTES];
    let under_way = read(area + POINTER_OFFSET, &mut pointer).is_ok()
        && u64::from_ne_bytes(pointer) != 0
        && read(u64::from_ne_bytes(pointer), &mut sequence).is_ok();
    if under_way { restart::Sequence::parse(&sequence).abort(registers) } else { *registers }
}
