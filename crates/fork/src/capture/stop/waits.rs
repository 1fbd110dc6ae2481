//! System calls with a time limit that a stop has interrupted, and how much of their time is left.
//!
//! ```text
//!  look ─ the process runs ─▶ note ─ at each stop ─▶ settle ─ the process runs again
//!  where each thread sleeps    which call it is in    when it entered, what is left ─▶ call timer, descriptor
//! ```
//!
//! A call that the kernel restarts with its whole limit has a mark ([`CallMark`]); the [call timer](crate::call_timer) ends it when
//! its time is over. A record across captures keeps the end of each, so that interruptions do not add up.
//! All of this is of the thread that traces: what it has noted is its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farfork_sys::ptrace::Registers;
use farfork_sys::{clock, process};
use farfork_wire::descriptor::PendingCall;

use super::entry::{ProcessorClocks, SeenCall, StoppedCall};
use super::limits::{LimitedCall, TimeLimit};
use super::restart::{self, CallMark};
use crate::call_timer::{self, CallEnd, CallSite};

/// Most calls whose ends are kept; beyond, those that are over are dropped.
const ENDS_MAX: usize = 4096;

/// How long an end is kept that is over: a call that lasts longer was restarted by somebody else.
const KEPT_NS: u64 = 60_000_000_000;

/// By how much a wait may be longer than its limit for want of a stop.
const NEGLIGIBLE_NS: u64 = 3_000_000;

/// A call that was interrupted.
#[derive(Debug, Clone, Copy)]
struct InterruptedCall {
    tid: i32,
    call: LimitedCall,
    /// The limit, unless it is a socket's.
    limit: Option<TimeLimit>,
    site: CallSite,
    /// The mark of a call that would lose time.
    mark: Option<CallMark>,
    /// Whether it was interrupted before.
    is_interrupted_again: bool,
    stopped: Option<StoppedCall>,
    stopped_at_ns: u64,
}

thread_local! {
    /// Threads as they looked before they were stopped.
    static SEEN: RefCell<BTreeMap<i32, SeenCall>> = const { RefCell::new(BTreeMap::new()) };
    /// Calls that were interrupted and have not been settled.
    static INTERRUPTED: RefCell<Vec<InterruptedCall>> = const { RefCell::new(Vec::new()) };
}

/// When calls end that were interrupted before, by thread.
static ENDS: Mutex<BTreeMap<i32, (CallSite, u64)>> = Mutex::new(BTreeMap::new());

/// Looks at a thread that runs, or sleeps, and is to be stopped.
pub(in crate::capture) fn look(tid: i32) {
    if let Some(seen) = SeenCall::look(tid) {
        SEEN.with_borrow_mut(|all| all.insert(tid, seen));
    }
}

/// Notes that a thread is told to stop after this.
pub(in crate::capture) fn tell(tid: i32) {
    SEEN.with_borrow_mut(|all| all.get_mut(&tid).into_iter().for_each(SeenCall::tell));
}

/// Looks at all threads of a process.
pub(in crate::capture) fn look_at_all(pid: i32) {
    process::threads(pid).unwrap_or_default().into_iter().for_each(look);
}

/// Notes the call of a thread that has just stopped. `before` are its registers at the stop, `restartable` those that it goes on with.
pub(in crate::capture) fn note(tid: i32, before: &Registers, restartable: &Registers) {
    let loses_time = restart::loses_time(before);
    if !loses_time && !restart::is_restarted_by_block(before) {
        return;
    }
    let named = restart::name_call(before, |address| super::stopped::read_code(tid, address));
    let Some(call) = LimitedCall::of_registers(&named) else { return };
    let limit = if call.is_of_socket() { None } else { call.limit(tid) };
    if limit.is_none() && !call.is_of_socket() {
        return;
    }
    let mark = CallMark::of(restartable);
    let seen = SEEN.with_borrow(|all| all.get(&tid).copied());
    let interrupted = InterruptedCall {
        tid,
        call,
        limit,
        site: CallSite { number: restart::number(&named), mark, rsp: before.rsp, rip: before.rip },
        mark,
        is_interrupted_again: CallMark::of(before).is_some() || restart::number(before) != restart::number(&named),
        stopped: seen.and_then(|seen| seen.stopped(tid, before.rsp, before.rip)),
        stopped_at_ns: clock::monotonic_ns(),
    };
    INTERRUPTED.with_borrow_mut(|all| all.push(interrupted));
}

/// Has the call timer end calls that go on, when their time is over; gives what each had left when it was stopped, by thread.
pub(in crate::capture) fn settle() -> BTreeMap<i32, PendingCall> {
    SEEN.with_borrow_mut(BTreeMap::clear);
    let (all, mut clocks) = (INTERRUPTED.take(), ProcessorClocks::default());
    all.into_iter().filter_map(|one| Some((one.tid, one.settle(&mut clocks)?))).collect()
}

impl InterruptedCall {
    fn settle(self, clocks: &mut ProcessorClocks) -> Option<PendingCall> {
        let TimeLimit { limit, result } = self.limit.or_else(|| self.call.limit(self.tid))?;
        let limit_ns = u64::try_from(limit.as_nanos()).ok()?;
        let end_ns = self.known_end().unwrap_or_else(|| {
            let entered = self.stopped.and_then(|stopped| stopped.entered_at_ns(clocks));
            entered.unwrap_or(u64::MAX).min(self.stopped_at_ns).saturating_add(limit_ns)
        });
        self.remember(end_ns);
        // With its whole limit from now on it would end hardly later: no stop is worth that.
        if self.stopped_at_ns.saturating_add(limit_ns) < end_ns.saturating_add(NEGLIGIBLE_NS) {
            return None;
        }
        if self.mark.is_some() {
            call_timer::watch(self.tid, self.site, CallEnd { at_ns: end_ns, result });
        }
        Some(PendingCall { left_ns: end_ns.saturating_sub(self.stopped_at_ns), result })
    }

    /// The end of a call that was interrupted before.
    fn known_end(&self) -> Option<u64> {
        let ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (site, end_ns) = ends.get(&self.tid)?;
        (self.is_interrupted_again && *site == self.site).then_some(*end_ns)
    }

    fn remember(&self, end_ns: u64) {
        let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() >= ENDS_MAX {
            let now_ns = clock::monotonic_ns();
            ends.retain(|_, (_, end_ns)| end_ns.saturating_add(KEPT_NS) > now_ns);
        }
        ends.insert(self.tid, (self.site, end_ns));
    }
}
