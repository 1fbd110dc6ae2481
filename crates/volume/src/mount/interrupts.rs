//! Ends calls of programs that are being killed: answers their requests with EINTR while they wait.
//!
//! The kernel reports a signal of a thread that waits for an answer, but only the first one of each request. Most signals do
//! not end the program. Then the call must continue: programs take a failed fsync(2) for lost data. So the threads of
//! interrupted requests are checked until a signal ends the program, or the request is answered.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_sys::process::ProcStatus;
use fuser::{Request, RequestId};
use rustix::process::Signal;

use super::calling_thread::visible_id;
use super::client::VolumeClient;
use super::invalidation::DeferredAnswer;

/// Interval at which the threads of interrupted requests are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of checks for which an interrupt is kept although its request does not wait. Another thread may have read the
/// request and not have registered it yet, or the request is answered already.
const UNMATCHED_CHECKS_MAX: u32 = 100;
/// Limit of the interrupts that are kept. At this number, those without a waiting request are dropped.
const INTERRUPTS_MAX: usize = 1 << 16;

/// Signals whose default action ends the process with a core dump. The kernel marks a process that any other signal ends
/// with a pending SIGKILL.
const CORE_DUMP_SIGNALS: [Signal; 10] = [
    Signal::QUIT,
    Signal::ILL,
    Signal::TRAP,
    Signal::ABORT,
    Signal::BUS,
    Signal::FPE,
    Signal::SEGV,
    Signal::SYS,
    Signal::XCPU,
    Signal::XFSZ,
];

/// A request, and the thread that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestIdentity {
    number: RequestId,
    /// Thread id, 0 if this process cannot see the thread. Such a thread cannot be checked.
    thread: u32,
}

impl RequestIdentity {
    pub(super) fn of(request: &Request) -> Self {
        Self { number: request.unique(), thread: request.pid() }
    }
}

/// Requests that wait, and interrupts of requests.
#[derive(Default)]
pub(super) struct InterruptTable {
    state: Mutex<InterruptState>,
    interrupted: Condvar,
}

#[derive(Default)]
struct InterruptState {
    waiting: HashMap<RequestId, WaitingRequest>,
    /// Interrupted requests. The value is the number of checks since the request was registered last.
    interrupted: HashMap<RequestId, u32>,
}

struct WaitingRequest {
    thread: u32,
    refuse: DeferredAnswer,
}

impl fmt::Debug for InterruptTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterruptTable").field("waiting", &self.lock().waiting.len()).finish_non_exhaustive()
    }
}

/// An answer that is given once: by the operation that waits, or because the program is killed.
pub(super) struct InterruptibleAnswer<A> {
    answer: Arc<Mutex<Option<A>>>,
    table: Arc<InterruptTable>,
    /// None for an operation of this process, which no program waits for.
    request: Option<RequestId>,
}

impl<A> InterruptibleAnswer<A> {
    /// Takes the answer. None if the request is answered because the program is killed.
    pub(super) fn claim(self) -> Option<A> {
        self.lock().take()
    }

    /// Locks the answer, so that it stays while the guard exists.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<A>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A> Drop for InterruptibleAnswer<A> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.table.lock().waiting.remove(&request);
        }
    }
}

impl InterruptTable {
    /// Registers a request before it waits. `refuse` answers it if its program is killed.
    pub(super) fn register<A: Send + 'static>(
        self: &Arc<Self>,
        request: impl Into<Option<RequestIdentity>>,
        answer: A,
        refuse: impl FnOnce(A) + Send + 'static,
    ) -> InterruptibleAnswer<A> {
        let (request, answer) = (request.into(), Arc::new(Mutex::new(Some(answer))));
        if let Some(RequestIdentity { number, thread }) = request {
            let refused = Arc::clone(&answer);
            let refuse = Box::new(move || {
                let answer = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(answer) = answer {
                    refuse(answer);
                }
            });
            self.lock().waiting.insert(number, WaitingRequest { thread, refuse });
        }
        InterruptibleAnswer { answer, table: Arc::clone(self), request: request.map(|request| request.number) }
    }

    /// Records an interrupt of the kernel.
    pub(super) fn add_interrupt(&self, request: RequestId) {
        let mut state = self.lock();
        if state.interrupted.len() >= INTERRUPTS_MAX {
            let InterruptState { waiting, interrupted } = &mut *state;
            interrupted.retain(|request, _| waiting.contains_key(request));
        }
        state.interrupted.insert(request, 0);
        self.interrupted.notify_one();
    }

    /// Waits until there is an interrupted request.
    fn wait(&self) {
        let is_empty = |state: &mut InterruptState| state.interrupted.is_empty();
        drop(self.interrupted.wait_while(self.lock(), is_empty).unwrap_or_else(PoisonError::into_inner));
    }

    /// Removes interrupted requests whose threads are being killed. Returns their refusals.
    fn take_killed(&self, is_killed: impl Fn(u32) -> bool) -> Vec<DeferredAnswer> {
        let mut state = self.lock();
        let InterruptState { waiting, interrupted } = &mut *state;
        let mut checked = Vec::new();
        interrupted.retain(|request, unmatched_checks| {
            *unmatched_checks += 1;
            if let Some(waiting) = waiting.get(request) {
                *unmatched_checks = 0;
                checked.push((*request, waiting.thread));
            }
            *unmatched_checks < UNMATCHED_CHECKS_MAX
        });
        drop(state);
        checked.retain(|(_, thread)| is_killed(*thread));
        // A request that still waits was not answered during the check. So the thread is the one that was checked.
        let mut state = self.lock();
        checked.iter().filter_map(|(request, _)| Some(state.waiting.remove(request)?.refuse)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, InterruptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VolumeClient {
    /// Answers waiting requests of programs that are being killed. Does not return.
    pub fn answer_killed(&self) -> ! {
        loop {
            self.interrupts.wait();
            self.interrupts.take_killed(is_killed).into_iter().for_each(|refuse| refuse());
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Whether a signal is ending the process of a thread.
fn is_killed(thread: u32) -> bool {
    let status = visible_id(thread).and_then(|id| ProcStatus::read(id).ok());
    status.is_some_and(|status| has_fatal_signal(&status))
}

fn has_fatal_signal(status: &ProcStatus) -> bool {
    let is_pending = |signal: Signal| status.signals_pending & bit_of(signal) != 0;
    let has_default_action = |signal: Signal| {
        let signals = status.signals_blocked | status.signals_ignored | status.signals_caught;
        signals & bit_of(signal) == 0
    };
    // A tracer may suppress any other signal than SIGKILL.
    let may_dump = status.tracer == 0;
    is_pending(Signal::KILL)
        || may_dump && CORE_DUMP_SIGNALS.into_iter().any(|signal| is_pending(signal) && has_default_action(signal))
}

fn bit_of(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const THREAD: u32 = 7;

    fn request(number: u64) -> RequestIdentity {
        RequestIdentity { number: RequestId(number), thread: THREAD }
    }

    /// Registers a request whose refusal sends its number.
    fn register(table: &Arc<InterruptTable>, number: u64) -> (InterruptibleAnswer<u64>, Receiver<u64>) {
        let (refused, refusals) = channel();
        (table.register(request(number), number, move |number| refused.send(number).unwrap()), refusals)
    }

    fn refuse_killed(table: &InterruptTable, is_killed: bool) {
        table
            .take_killed(|thread| {
                assert_eq!(thread, THREAD);
                is_killed
            })
            .into_iter()
            .for_each(|refuse| refuse());
    }

    #[test]
    fn only_an_interrupted_request_of_a_killed_thread_is_refused() {
        let table = Arc::<InterruptTable>::default();
        let (answer, refusals) = register(&table, 1);
        let (other, other_refusals) = register(&table, 2);
        refuse_killed(&table, true);
        table.add_interrupt(RequestId(1));
        refuse_killed(&table, false);
        assert!(refusals.try_recv().is_err() && answer.lock().is_some());
        refuse_killed(&table, true);
        assert_eq!(refusals.try_recv(), Ok(1));
        assert_eq!((answer.claim(), other.claim()), (None, Some(2)));
        assert!(other_refusals.try_recv().is_err());
    }

    #[test]
    fn an_interrupt_waits_for_its_request_for_a_limited_time() {
        let table = Arc::<InterruptTable>::default();
        table.add_interrupt(RequestId(1));
        (1..UNMATCHED_CHECKS_MAX).for_each(|_| refuse_killed(&table, true));
        let (answer, refusals) = register(&table, 1);
        refuse_killed(&table, true);
        assert_eq!((refusals.try_recv(), answer.claim()), (Ok(1), None));
        (0..UNMATCHED_CHECKS_MAX).for_each(|_| refuse_killed(&table, true));
        assert!(table.lock().interrupted.is_empty() && table.lock().waiting.is_empty());
    }

    #[test]
    fn an_answered_request_is_not_refused() {
        let table = Arc::<InterruptTable>::default();
        let (answer, refusals) = register(&table, 1);
        table.add_interrupt(RequestId(1));
        assert_eq!(answer.claim(), Some(1));
        refuse_killed(&table, true);
        assert!(refusals.try_recv().is_err() && table.lock().waiting.is_empty());
    }

    #[test]
    fn a_signal_with_a_handler_is_not_fatal() {
        let pending = |signal: Signal| ProcStatus { signals_pending: bit_of(signal), ..ProcStatus::default() };
        assert!(has_fatal_signal(&pending(Signal::KILL)) && has_fatal_signal(&pending(Signal::QUIT)));
        for signal in [Signal::ALARM, Signal::TERM, Signal::CHILD, Signal::STOP] {
            assert!(!has_fatal_signal(&pending(signal)), "{signal:?}: SIGKILL would be pending");
        }
        let quit = bit_of(Signal::QUIT);
        for status in [
            ProcStatus { signals_caught: quit, ..pending(Signal::QUIT) },
            ProcStatus { signals_blocked: quit, ..pending(Signal::QUIT) },
            ProcStatus { signals_ignored: quit, ..pending(Signal::QUIT) },
            ProcStatus { tracer: 1, ..pending(Signal::QUIT) },
        ] {
            assert!(!has_fatal_signal(&status), "{status:?}");
        }
    }
}
