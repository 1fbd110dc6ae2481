//! The threads that end calls. Each expired call has one thread, which makes all attempts at it.
//!
//! The kernel detaches a traced thread when its tracer ends. So each thread of this module ends with its call, and
//! never sleeps while it traces: `expire_call` returns `ExpiryOutcome::Retry` only if it traces nothing. The threads
//! inherit the timer's priority.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use farfork_sys::{clock, priority};
use rustix::event::{EventfdFlags, eventfd};

use super::deadline::CallDeadline;
use super::expiry::{self, ExpiryOutcome};
use super::schedule::ScheduledCall;

/// Maximum number of threads at a time. It bounds the cost of many calls whose threads are all held by a debugger. An
/// attempt takes about 200 us, so other calls hardly wait for a thread.
const THREADS_MAX: usize = 64;

/// Stack size of a thread, in bytes: an attempt reads a few small files of `/proc`.
const STACK_BYTES: usize = 256 << 10;

/// Time limit for the attempts at a call, from its deadline. A capture holds a thread for less time. If a debugger holds the
/// thread for longer, the call lasts for its whole limit.
const RETRIES_NS_MAX: u64 = 30_000_000_000;

/// The running threads.
#[derive(Debug)]
pub(super) struct AttemptThreads {
    running: BTreeMap<u64, RunningCall>,
    started: u64,
    outcomes: Sender<FinishedAttempt>,
    finished: Receiver<FinishedAttempt>,
    shared: Arc<TimerShared>,
}

/// State that the threads share with the timer.
#[derive(Debug)]
struct TimerShared {
    /// Readable when a thread has finished.
    wakeup: OwnedFd,
    /// Whether due calls wait for a thread. If so, threads end instead of sleeping.
    is_crowded: AtomicBool,
    is_real_time: AtomicBool,
}

/// A call that a thread of this module must end.
#[derive(Debug)]
struct RunningCall {
    tid: i32,
    /// Set when the program's thread is in a later call.
    is_superseded: Arc<AtomicBool>,
}

/// The outcome of a finished thread; `None` if the thread panicked.
#[derive(Debug)]
struct FinishedAttempt {
    id: u64,
    outcome: Option<CallOutcome>,
}

/// The outcome of the attempts at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOutcome {
    /// The call has ended, or the attempts have ended without success.
    Done,
    /// The call must be attempted again later.
    Again(ScheduledCall),
    /// The program's thread is in a later call, which must be ended at its own deadline.
    Restarted(CallDeadline),
}

impl AttemptThreads {
    /// Creates the value without threads.
    ///
    /// # Errors
    /// As eventfd(2).
    pub(super) fn new() -> io::Result<Self> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = TimerShared { wakeup, is_crowded: AtomicBool::new(false), is_real_time: AtomicBool::new(true) };
        let (outcomes, finished) = mpsc::channel();
        Ok(Self { running: BTreeMap::new(), started: 0, outcomes, finished, shared: Arc::new(shared) })
    }

    /// Readable when a thread has finished.
    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.shared.wakeup.as_fd()
    }

    /// Whether no thread is running.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether no further thread may be started.
    pub(super) fn is_full(&self) -> bool {
        self.running.len() >= THREADS_MAX
    }

    /// Records whether due calls wait for a thread.
    pub(super) fn set_crowded(&self, is_crowded: bool) {
        self.shared.is_crowded.store(is_crowded, Ordering::Relaxed);
    }

    /// Records whether threads that begin to run from now on have real-time priority.
    pub(super) fn set_real_time(&self, is_real_time: bool) {
        self.shared.is_real_time.store(is_real_time, Ordering::Relaxed);
    }

    /// Ends the retries for earlier calls of the program's thread `tid`, which is in a later call.
    pub(super) fn supersede(&self, tid: i32) {
        let of_thread = self.running.values().filter(|running| running.tid == tid);
        of_thread.for_each(|running| running.is_superseded.store(true, Ordering::Relaxed));
    }

    /// Starts the thread of a call.
    ///
    /// # Errors
    /// As pthread_create(3).
    pub(super) fn start(&mut self, pending: ScheduledCall) -> io::Result<()> {
        self.started += 1;
        let (id, is_superseded) = (self.started, Arc::new(AtomicBool::new(false)));
        let report = OutcomeReport { id, outcome: None, outcomes: self.outcomes.clone(), shared: self.shared.clone() };
        let mut worker = AttemptThread { pending, is_superseded: is_superseded.clone(), report };
        let thread = thread::Builder::new().name(super::THREAD_NAME.to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || worker.run())?;
        self.running.insert(id, RunningCall { tid: pending.watch.tid, is_superseded });
        Ok(())
    }

    /// Removes finished threads. Returns the first call that must be scheduled: a call to attempt again, or a later
    /// call of the same thread.
    pub(super) fn take_unfinished(&mut self) -> Option<ScheduledCall> {
        while let Ok(FinishedAttempt { id, outcome }) = self.finished.try_recv() {
            // A thread that could not be started has also reported, by the drop of its `OutcomeReport`.
            let Some(running) = self.running.remove(&id) else { continue };
            match outcome {
                Some(CallOutcome::Again(pending)) if !running.is_superseded.load(Ordering::Relaxed) => {
                    return Some(pending);
                }
                Some(CallOutcome::Restarted(call_deadline)) => return Some(ScheduledCall::new(call_deadline, true)),
                Some(CallOutcome::Again(_) | CallOutcome::Done) | None => {}
            }
        }
        None
    }
}

/// Reports a thread's outcome when it is dropped, even by a panic.
struct OutcomeReport {
    id: u64,
    outcome: Option<CallOutcome>,
    outcomes: Sender<FinishedAttempt>,
    shared: Arc<TimerShared>,
}

impl Drop for OutcomeReport {
    fn drop(&mut self) {
        // Errors are harmless: without the timer, the outcome is not needed; and a full eventfd counter is readable, too.
        let _ = self.outcomes.send(FinishedAttempt { id: self.id, outcome: self.outcome.take() });
        let _ = rustix::io::write(&self.shared.wakeup, &1_u64.to_ne_bytes());
    }
}

/// The thread of one call.
struct AttemptThread {
    pending: ScheduledCall,
    is_superseded: Arc<AtomicBool>,
    report: OutcomeReport,
}

impl AttemptThread {
    fn run(&mut self) {
        if !self.report.shared.is_real_time.load(Ordering::Relaxed) {
            // The timer has lost its real-time priority since it started this thread.
            let _ = priority::make_ordinary(rustix::thread::gettid().as_raw_nonzero().get());
        }
        self.report.outcome = Some(self.outcome());
    }

    fn outcome(&mut self) -> CallOutcome {
        loop {
            match expiry::expire_call(&self.pending.watch, self.pending.is_our_own) {
                ExpiryOutcome::Done => return CallOutcome::Done,
                ExpiryOutcome::Restarted(call_deadline) => return CallOutcome::Restarted(call_deadline),
                ExpiryOutcome::Retry => {}
            }
            let now_ns = clock::monotonic_ns();
            if now_ns >= self.pending.watch.deadline_ns.saturating_add(RETRIES_NS_MAX) {
                return CallOutcome::Done;
            }
            let pause = self.pending.backoff.next_pause();
            if self.report.shared.is_crowded.load(Ordering::Relaxed) {
                let due_ns = now_ns + pause.as_nanos() as u64;
                return CallOutcome::Again(ScheduledCall { due_ns, ..self.pending });
            }
            thread::sleep(pause);
            if self.is_superseded.load(Ordering::Relaxed) {
                return CallOutcome::Done;
            }
        }
    }
}
