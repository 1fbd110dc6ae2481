//! Ends one expired call: stops its thread, checks that it is still in the call, and sets the call's result.

use std::io;
use std::time::Duration;

use farfork_sys::process::{ProcStat, ProcStatus, SystemCall};
use farfork_sys::ptrace::{self, EVENT_STOP, Registers, TraceeEvent};

use super::deadline::{CallDeadline, CallSite};
use crate::capture::{CallMark, Deadline, LimitedCall, ProcessorClocks, SleepingCall, StoppedCall, restart};

/// How long a thread may take to stop. A sleeping thread stops at once if a CPU is free; on a busy machine it may wait for
/// seconds. The limit is long, because a detach before the stop still interrupts the call. Many calls would then return
/// EINTR, which they would not do without farfork (signal(7)).
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpiryOutcome {
    /// The call was ended, or has ended by itself.
    Done,
    /// Another process traces the thread, or the thread is running. The caller traces nothing, so it may sleep before
    /// it tries again.
    Retry,
    /// The thread was in a later call, which the stop has interrupted and restarted. Contains the deadline of this
    /// later call.
    Restarted(CallDeadline),
}

/// Ends the call if its thread is still in the call. `is_our_own`: the timer itself has set the mark, in an earlier stop. If
/// so, a running thread counts as out of the call, and is not stopped again.
pub(super) fn expire_call(call_deadline: &CallDeadline, is_our_own: bool) -> ExpiryOutcome {
    let tid = call_deadline.tid;
    if !ProcStat::read(tid).is_ok_and(|stat| stat.start_ticks == call_deadline.start_ticks) {
        return ExpiryOutcome::Done;
    }
    match is_in_call(call_deadline, is_our_own) {
        Some(true) => {}
        Some(false) => return ExpiryOutcome::Done,
        None => return ExpiryOutcome::Retry,
    }
    let mut seen = SleepingCall::observe(tid);
    match ptrace::seize(tid, 0) {
        Ok(()) => {}
        // EPERM: another process traces the thread. The tracer cannot be checked here: it may have detached after ptrace(2)
        // failed.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return ExpiryOutcome::Retry,
        Err(_) => return ExpiryOutcome::Done,
    }
    seen.iter_mut().for_each(SleepingCall::mark_interrupted);
    if ptrace::interrupt(tid).is_err() || !wait_stopped(tid) {
        return ExpiryOutcome::Done;
    }
    let outcome =
        ptrace::read_registers(tid).ok().flatten().map(|registers| finish_call(call_deadline, &registers, seen));
    let _ = ptrace::detach(tid);
    let Some((attempt, restarted)) = outcome else { return ExpiryOutcome::Done };
    restarted.and_then(|restarted| restarted.into_deadline(call_deadline)).map_or(attempt, ExpiryOutcome::Restarted)
}

/// Whether the thread is in the call; `None` if that cannot be determined now.
fn is_in_call(call_deadline: &CallDeadline, is_our_own: bool) -> Option<bool> {
    let (tid, site) = (call_deadline.tid, &call_deadline.site);
    let was_traced = is_traced(tid);
    match SystemCall::read(tid) {
        Ok(Some(call))
            if (call.number, call.stack_pointer, call.instruction_pointer) == (site.number, site.rsp, site.rip) =>
        {
            Some(true)
        }
        // A capture injects calls into the thread, and then returns it to its own call.
        _ if was_traced || is_traced(tid) => None,
        // The thread was just woken, or waits for a CPU or a page. It may still be in the call. In a new child, it may not
        // have entered the call yet.
        Ok(None) if !is_our_own => None,
        _ => Some(false),
    }
}

fn is_traced(tid: i32) -> bool {
    ProcStatus::read(tid).is_ok_and(|status| status.tracer != 0)
}

/// Waits until a thread has stopped after PTRACE_INTERRUPT. Returns false if it ended, or did not stop in time.
fn wait_stopped(tid: i32) -> bool {
    let deadline = Deadline::after(STOP_LIMIT);
    loop {
        match deadline.wait_report() {
            Ok((_, TraceeEvent::Stopped { event: EVENT_STOP, .. })) => return true,
            // A signal arrived first: deliver it. The stop follows.
            Ok((_, TraceeEvent::Stopped { signal, event: 0 })) => drop(ptrace::resume(tid, signal)),
            Ok((_, TraceeEvent::Stopped { .. })) => drop(ptrace::resume(tid, 0)),
            Ok((_, TraceeEvent::Ended)) => {
                let _ = ptrace::reap(tid);
                return false;
            }
            Err(_) => return false,
        }
    }
}

/// A later call of the thread, which the stop has interrupted.
struct RestartedCall {
    call: LimitedCall,
    site: CallSite,
    stopped_call: Option<StoppedCall>,
}

/// Sets the result of the marked call; restarts any other call.
fn finish_call(
    call_deadline: &CallDeadline,
    registers: &Registers,
    seen: Option<SleepingCall>,
) -> (ExpiryOutcome, Option<RestartedCall>) {
    let site = call_site(registers);
    if site == call_deadline.site && restart::is_interrupted(registers) {
        let over = Registers { rax: call_deadline.result.cast_unsigned(), orig_rax: u64::MAX, ..*registers };
        let _ = ptrace::write_registers(call_deadline.tid, &over);
        return (ExpiryOutcome::Done, None);
    }
    let restartable = restart::parent_registers(registers);
    if restartable == *registers {
        return (ExpiryOutcome::Done, None);
    }
    let _ = ptrace::write_registers(call_deadline.tid, &restartable);
    let stopped = seen.and_then(|seen| seen.to_stopped(call_deadline.tid, registers.rsp, registers.rip));
    let later = LimitedCall::from_registers(registers);
    let later = later.map(|call| RestartedCall { call, site: call_site(&restartable), stopped_call: stopped });
    (ExpiryOutcome::Done, later)
}

fn call_site(registers: &Registers) -> CallSite {
    let (number, mark) = (restart::call_number(registers), CallMark::from_registers(registers));
    CallSite { number, mark, rsp: registers.rsp, rip: registers.rip }
}

impl RestartedCall {
    fn into_deadline(self, call_deadline: &CallDeadline) -> Option<CallDeadline> {
        let limit = self.call.read_limit(call_deadline.tid)?;
        let entered_ns = self.stopped_call?.entered_at_ns(&mut ProcessorClocks::default())?;
        let end_ns = entered_ns.checked_add(u64::try_from(limit.limit.as_nanos()).ok()?)?;
        Some(CallDeadline { site: self.site, deadline_ns: end_ns, result: limit.result, ..*call_deadline })
    }
}
