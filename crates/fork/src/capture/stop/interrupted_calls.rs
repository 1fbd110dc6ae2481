//! System calls with a time limit that a stop has interrupted, and how much of their time is left.
//!
//! A call that the kernel restarts with its whole limit has a mark (`CallMark`), and the call timer ends it in time.
//! A record across captures (`CALL_ENDS`) keeps the end of each call, so that interruptions do not add up.
//! All other state here is local to the tracing thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farfork_sys::clock;
use farfork_sys::process::{self, ProcStatus};
use farfork_sys::ptrace::Registers;
use farfork_wire::descriptor::RestartableCall;

use super::call_entry::{ProcessorClocks, SleepingCall, StoppedCall};
use super::call_timeouts::{LimitedCall, TimeLimit};
use super::restart::{self, CallMark};
use crate::call_timer::{self, CallExpiry, CallSite};

/// Number of recorded call ends above which ends that are long over are dropped.
const CALL_ENDS_MAX: usize = 4096;

/// How long the end of a call is kept after it has passed. If the call still runs then, another process has restarted it.
const KEEP_END_NS: u64 = 60_000_000_000;

/// Maximum time by which a wait may exceed its limit. Ending it earlier is not worth another stop.
const NEGLIGIBLE_NS: u64 = 3_000_000;

/// A call that was interrupted.
#[derive(Debug, Clone, Copy)]
struct InterruptedCall {
    tid: i32,
    call: LimitedCall,
    /// Time limit of the call; `None` if a socket option holds it.
    limit: Option<TimeLimit>,
    site: CallSite,
    /// The mark, if the kernel would restart the call with its whole limit.
    mark: Option<CallMark>,
    /// Whether the call was already interrupted by an earlier stop.
    is_interrupted_again: bool,
    /// Number of voluntary context switches of its thread, if a recorded end may belong to an earlier call.
    voluntary_switches: Option<u64>,
    stopped_call: Option<StoppedCall>,
    stopped_at_ns: u64,
}

//  observe_process ─ the process runs ─▶ record_interrupted, at each stop ─▶ schedule_call_timeouts ─ the process runs again
//  where each thread sleeps              the call that it is in              when it entered the call, and the time
//                                                                            left ─▶ call timer, descriptor
thread_local! {
    /// Threads as observed before their stops.
    static SEEN: RefCell<BTreeMap<i32, SleepingCall>> = const { RefCell::new(BTreeMap::new()) };
    /// Calls that were interrupted and have no timeout scheduled yet.
    static INTERRUPTED: RefCell<Vec<InterruptedCall>> = const { RefCell::new(Vec::new()) };
}

/// The end of a call that was interrupted before.
#[derive(Debug, Clone, Copy)]
struct RecordedEnd {
    site: CallSite,
    end_ns: u64,
    /// Number of voluntary context switches of its thread when the thread ran again. 0 if the site has a mark.
    voluntary_switches: u64,
}

/// Ends of calls that were interrupted before, by thread.
static CALL_ENDS: Mutex<BTreeMap<i32, RecordedEnd>> = Mutex::new(BTreeMap::new());

/// Observes a running or sleeping thread that will be stopped.
pub(in crate::capture) fn observe_thread(tid: i32) {
    if let Some(seen) = SleepingCall::observe(tid) {
        SEEN.with_borrow_mut(|all| all.insert(tid, seen));
    }
}

/// Records the time of the interruption. Call it just before the thread is interrupted.
pub(in crate::capture) fn mark_interrupted(tid: i32) {
    SEEN.with_borrow_mut(|all| all.get_mut(&tid).into_iter().for_each(SleepingCall::mark_interrupted));
}

/// Observes all threads of a process.
pub(in crate::capture) fn observe_process(pid: i32) {
    process::thread_ids(pid).unwrap_or_default().into_iter().for_each(observe_thread);
}

/// Records the call of a thread that has just stopped. `before` are its registers at the stop, `restartable` those with
/// which it resumes.
pub(in crate::capture) fn record_interrupted(tid: i32, before: &Registers, restartable: &Registers) {
    let loses_time = restart::restarts_full_timeout(before);
    if !loses_time && !restart::uses_restart_block(before) {
        return;
    }
    let named = restart::resolve_restart(before, |address| super::stop_guard::read_call_site(tid, address));
    let Some(call) = LimitedCall::from_registers(&named) else { return };
    let limit = if call.is_socket_limit() { None } else { call.read_limit(tid) };
    if limit.is_none() && !call.is_socket_limit() {
        return;
    }
    let mark = CallMark::from_registers(restartable);
    let seen = SEEN.with_borrow(|all| all.get(&tid).copied());
    let is_interrupted_again =
        CallMark::from_registers(before).is_some() || restart::call_number(before) != restart::call_number(&named);
    let interrupted = InterruptedCall {
        tid,
        call,
        limit,
        site: CallSite { number: restart::call_number(&named), mark, rsp: before.rsp, rip: before.rip },
        mark,
        is_interrupted_again,
        voluntary_switches: if is_interrupted_again && mark.is_none() { read_voluntary_switches(tid) } else { None },
        stopped_call: seen.and_then(|seen| seen.to_stopped(tid, before.rsp, before.rip)),
        stopped_at_ns: clock::monotonic_ns(),
    };
    INTERRUPTED.with_borrow_mut(|all| all.push(interrupted));
}

/// Makes the call timer end resumed calls when their time is over. Returns the time that each had left at its stop, by
/// thread.
pub(in crate::capture) fn schedule_call_timeouts() -> BTreeMap<i32, RestartableCall> {
    SEEN.with_borrow_mut(BTreeMap::clear);
    let (all, mut clocks) = (INTERRUPTED.take(), ProcessorClocks::default());
    all.into_iter().filter_map(|one| Some((one.tid, one.schedule_timeout(&mut clocks)?))).collect()
}

impl InterruptedCall {
    fn schedule_timeout(self, clocks: &mut ProcessorClocks) -> Option<RestartableCall> {
        let TimeLimit { limit, result } = self.limit.or_else(|| self.call.read_limit(self.tid))?;
        let limit_ns = u64::try_from(limit.as_nanos()).ok()?;
        let end_ns = self.remembered_end().unwrap_or_else(|| {
            let entered = self.stopped_call.and_then(|stopped| stopped.entered_at_ns(clocks));
            entered.unwrap_or(u64::MAX).min(self.stopped_at_ns).saturating_add(limit_ns)
        });
        self.remember_end(end_ns);
        // Even with its whole limit from now on, the call would end at most `NEGLIGIBLE_NS` late: not worth a stop.
        if self.stopped_at_ns.saturating_add(limit_ns) < end_ns.saturating_add(NEGLIGIBLE_NS) {
            return None;
        }
        if self.mark.is_some() {
            call_timer::watch_call(self.tid, self.site, CallExpiry { deadline_ns: end_ns, result });
        }
        Some(RestartableCall { remaining_ns: end_ns.saturating_sub(self.stopped_at_ns), timeout_result: result })
    }

    /// The recorded end of a call that was interrupted before. A call without a mark may be a later one at the same site,
    /// which another process has stopped (SIGSTOP). In one call, the thread has slept twice since: to continue the call, and
    /// to stop now.
    fn remembered_end(&self) -> Option<u64> {
        const SWITCHES_IN_ONE_CALL: u64 = 2;
        let ends = CALL_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded =
            ends.get(&self.tid).filter(|recorded| self.is_interrupted_again && recorded.site == self.site)?;
        let slept = || self.voluntary_switches?.checked_sub(recorded.voluntary_switches);
        let is_same_call = self.mark.is_some() || slept().is_some_and(|slept| slept <= SWITCHES_IN_ONE_CALL);
        is_same_call.then_some(recorded.end_ns)
    }

    fn remember_end(&self, end_ns: u64) {
        let switches = if self.mark.is_some() { Some(0) } else { read_voluntary_switches(self.tid) };
        let Some(voluntary_switches) = switches else { return };
        insert_end(self.tid, RecordedEnd { site: self.site, end_ns, voluntary_switches });
    }
}

/// Records the end of a marked call that a child repeats, for later captures of the child. `end_ns` is a time of
/// CLOCK_MONOTONIC.
pub(crate) fn remember_marked_end(tid: i32, site: CallSite, end_ns: u64) {
    insert_end(tid, RecordedEnd { site, end_ns, voluntary_switches: 0 });
}

fn insert_end(tid: i32, recorded: RecordedEnd) {
    let mut ends = CALL_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if ends.len() >= CALL_ENDS_MAX {
        let now_ns = clock::monotonic_ns();
        ends.retain(|_, recorded| recorded.end_ns.saturating_add(KEEP_END_NS) > now_ns);
    }
    ends.insert(tid, recorded);
}

fn read_voluntary_switches(tid: i32) -> Option<u64> {
    ProcStatus::read(tid).ok().map(|status| status.voluntary_switches)
}
