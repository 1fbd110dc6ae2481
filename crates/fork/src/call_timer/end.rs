//! The end of one call whose time is over.

use std::time::Duration;

use farfork_sys::process::{Stat, Status, SystemCall};
use farfork_sys::ptrace::{self, EVENT_STOP, Registers, Report};

use super::watch::{CallSite, Watch};
use crate::capture::{CallMark, Deadline, LimitedCall, ProcessorClocks, SeenCall, StoppedCall, restart};

/// How long a thread may take to stop. It sleeps, so it stops at once where a CPU is free; on a crowded machine it waits for one for
/// seconds. A thread that is released before its stop was seen finds its call interrupted: many calls return EINTR then (signal(7)),
/// and the program sees what a program without farfork never does.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The call was ended, or has ended by itself.
    Done,
    /// Another process traces the thread, or it runs just now. The caller traces nothing: it may sleep before it tries again.
    Again,
    /// The thread was in a later call, which the stop has restarted: this watch is of that.
    Restarted(Watch),
}

/// Ends the call if its thread still is in it. `is_our_own`: its mark is of a stop of ours, for which no thread is stopped in vain
/// once more.
pub(super) fn attempt(watch: &Watch, is_our_own: bool) -> Attempt {
    let tid = watch.tid;
    if !Stat::read(tid).is_ok_and(|stat| stat.start_ticks == watch.start_ticks) {
        return Attempt::Done;
    }
    match is_in_call(watch, is_our_own) {
        Some(true) => {}
        Some(false) => return Attempt::Done,
        None => return Attempt::Again,
    }
    let mut seen = SeenCall::look(tid);
    match ptrace::seize(tid, 0) {
        Ok(()) => {}
        Err(_) if is_traced(tid) => return Attempt::Again,
        Err(_) => return Attempt::Done,
    }
    seen.iter_mut().for_each(SeenCall::tell);
    if ptrace::interrupt(tid).is_err() || !has_stopped(tid) {
        return Attempt::Done;
    }
    let outcome = ptrace::registers(tid).ok().flatten().map(|registers| finish(watch, &registers, seen));
    let _ = ptrace::detach(tid);
    let Some((attempt, restarted)) = outcome else { return Attempt::Done };
    restarted.and_then(|restarted| restarted.watch(watch)).map_or(attempt, Attempt::Restarted)
}

/// Whether the thread is in the call; `None` where that cannot be told just now.
fn is_in_call(watch: &Watch, is_our_own: bool) -> Option<bool> {
    let (tid, site) = (watch.tid, &watch.site);
    let was_traced = is_traced(tid);
    match SystemCall::of(tid) {
        Ok(Some(call))
            if (call.number, call.stack_pointer, call.instruction_pointer) == (site.number, site.rsp, site.rip) =>
        {
            Some(true)
        }
        // A capture has a thread make other calls meanwhile, and lets it go in its own.
        _ if was_traced || is_traced(tid) => None,
        // It has just been woken, or waits for a CPU or a page: it may still be in the call, or, in a new child, not yet.
        Ok(None) if !is_our_own => None,
        _ => Some(false),
    }
}

fn is_traced(tid: i32) -> bool {
    Status::read(tid).is_ok_and(|status| status.tracer != 0)
}

/// Waits until a thread stands that was told to stop.
fn has_stopped(tid: i32) -> bool {
    let deadline = Deadline::after(STOP_LIMIT);
    loop {
        match deadline.next_report() {
            Ok((_, Report::Stopped { event: EVENT_STOP, .. })) => return true,
            // A signal came first: it is delivered, and the stop follows.
            Ok((_, Report::Stopped { signal, event: 0 })) => drop(ptrace::resume(tid, signal)),
            Ok((_, Report::Stopped { .. })) => drop(ptrace::resume(tid, 0)),
            Ok((_, Report::Ended)) => {
                let _ = ptrace::reap(tid);
                return false;
            }
            Err(_) => return false,
        }
    }
}

/// A later call of the thread's, which the stop has interrupted.
struct LaterCall {
    call: LimitedCall,
    site: CallSite,
    stopped: Option<StoppedCall>,
}

/// Gives the marked call its result; another one is restarted.
fn finish(watch: &Watch, registers: &Registers, seen: Option<SeenCall>) -> (Attempt, Option<LaterCall>) {
    let site = site_of(registers);
    if site == watch.site && restart::is_interrupted(registers) {
        let over = Registers { rax: watch.result.cast_unsigned(), orig_rax: u64::MAX, ..*registers };
        let _ = ptrace::set_registers(watch.tid, &over);
        return (Attempt::Done, None);
    }
    let restartable = restart::for_parent(registers);
    if restartable == *registers {
        return (Attempt::Done, None);
    }
    let _ = ptrace::set_registers(watch.tid, &restartable);
    let stopped = seen.and_then(|seen| seen.stopped(watch.tid, registers.rsp, registers.rip));
    let later = LimitedCall::of_registers(registers);
    let later = later.map(|call| LaterCall { call, site: site_of(&restartable), stopped });
    (Attempt::Done, later)
}

fn site_of(registers: &Registers) -> CallSite {
    let (number, mark) = (restart::number(registers), CallMark::of(registers));
    CallSite { number, mark, rsp: registers.rsp, rip: registers.rip }
}

impl LaterCall {
    fn watch(self, watch: &Watch) -> Option<Watch> {
        let limit = self.call.limit(watch.tid)?;
        let entered_ns = self.stopped?.entered_at_ns(&mut ProcessorClocks::default())?;
        let end_ns = entered_ns.checked_add(u64::try_from(limit.limit.as_nanos()).ok()?)?;
        Some(Watch { site: self.site, end_ns, result: limit.result, ..*watch })
    }
}
