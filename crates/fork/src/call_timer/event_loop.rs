//! The timer's main loop: receives `CallDeadline`s, starts a thread for each expired call, and keeps to the CPU budget.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use farfork_sys::{clock, priority, process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::attempts::AttemptThreads;
use super::budget::RealTimeBudget;
use super::deadline::{CallDeadline, DEADLINE_BYTES};
use super::schedule::{CallSchedule, ScheduledCall};

/// How long the timer continues after its daemon has ended, to end the calls that are due within this time. Calls that are
/// due later last for their whole limits.
const ORPHAN_NS_MAX: u64 = 600_000_000_000;

/// Runs the timer until `input` is at its end and no call is left, or ten minutes have passed since that end.
pub fn run(input: &OwnedFd) {
    match CallTimerLoop::new() {
        Ok(mut timer) => timer.serve(input),
        Err(error) => tracing::warn!(%error, "the call timer cannot run"),
    }
}

struct CallTimerLoop {
    schedule: CallSchedule,
    threads: AttemptThreads,
    budget: RealTimeBudget,
    /// When the daemon ended, if it has.
    input_ended_ns: Option<u64>,
}

impl CallTimerLoop {
    fn new() -> io::Result<Self> {
        let budget = RealTimeBudget::new(clock::monotonic_ns(), used_ns());
        Ok(Self { schedule: CallSchedule::default(), threads: AttemptThreads::new()?, budget, input_ended_ns: None })
    }

    fn serve(&mut self, input: &OwnedFd) {
        // Expired calls depend on this thread and the threads that it starts. Failure is harmless: real-time priority
        // needs CAP_SYS_NICE.
        set_real_time(true);
        loop {
            self.collect_outcomes();
            self.expire_due_calls();
            self.keep_budget();
            let now_ns = clock::monotonic_ns();
            let is_idle = self.schedule.next_due_ns().is_none() && self.threads.is_empty();
            if self.input_ended_ns.is_some_and(|ended_ns| is_idle || now_ns > ended_ns + ORPHAN_NS_MAX) {
                return;
            }
            self.wait(input, now_ns);
        }
    }

    /// Waits for input, for a thread to finish, or until the next call or sample is due.
    fn wait(&mut self, input: &OwnedFd, now_ns: u64) {
        let limit = self.next_ns().map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns)));
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() });
        let wakeup = self.threads.wakeup();
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        // Do not poll an input at its end: it is always readable.
        let mut fds =
            if self.input_ended_ns.is_none() { vec![of(wakeup), of(input.as_fd())] } else { vec![of(wakeup)] };
        if !matches!(poll(&mut fds, limit.as_ref()), Ok(1..)) {
            return;
        }
        let [has_finished, has_input] = [0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
        if has_finished {
            let _ = rustix::io::read(wakeup, &mut [0; 8]);
        }
        if has_input && !self.receive_deadline(input) {
            let ended_ns = clock::monotonic_ns();
            self.input_ended_ns = Some(ended_ns);
            self.schedule.drop_later_than(ended_ns + ORPHAN_NS_MAX);
        }
    }

    /// Returns when the timer must act next if there is no other event.
    fn next_ns(&self) -> Option<u64> {
        // If the maximum of threads is running, a due call waits until one finishes.
        let due_ns = self.schedule.next_due_ns().filter(|_| !self.threads.is_full());
        let may_change = !self.threads.is_empty() || !self.budget.is_real_time();
        let sample_ns = may_change.then(|| self.budget.next_sample_ns());
        due_ns.into_iter().chain(sample_ns).min()
    }

    /// Reads one request. Returns false at the end of the input.
    fn receive_deadline(&mut self, input: &OwnedFd) -> bool {
        let mut bytes = [0; DEADLINE_BYTES];
        match rustix::io::read(input, &mut bytes) {
            Ok(0) => false,
            Ok(DEADLINE_BYTES) => {
                let call_deadline = CallDeadline::from_bytes(&bytes);
                self.add_pending(ScheduledCall::new(call_deadline, false));
                true
            }
            // Ignore a partial request: the kernel does not split a write of this size.
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    fn collect_outcomes(&mut self) {
        while let Some(pending) = self.threads.take_unfinished() {
            self.add_pending(pending);
        }
    }

    /// Adds a call, and ends the attempts at earlier calls of its thread: a thread has one call at a time.
    fn add_pending(&mut self, pending: ScheduledCall) {
        self.threads.supersede(pending.watch.tid);
        self.schedule.add(pending);
    }

    fn expire_due_calls(&mut self) {
        let now_ns = clock::monotonic_ns();
        while !self.threads.is_full() {
            let Some(due) = self.schedule.take_due(now_ns) else { break };
            if self.threads.start(due).is_err() {
                // The machine or the control group has reached its limit on threads: retry later.
                let mut backoff = due.backoff;
                let due_ns = now_ns + backoff.next_pause().as_nanos() as u64;
                self.schedule.add(ScheduledCall { due_ns, backoff, ..due });
                break;
            }
        }
        let is_due = self.schedule.next_due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        self.threads.set_crowded(is_due && self.threads.is_full());
    }

    /// Takes a sample of the CPU time if one is due. Sets the priority that the budget then allows.
    fn keep_budget(&mut self) {
        let now_ns = clock::monotonic_ns();
        if self.budget.is_due(now_ns)
            && let Some(is_real_time) = self.budget.sample(now_ns, used_ns())
        {
            self.threads.set_real_time(is_real_time);
            set_real_time(is_real_time);
        }
    }
}

/// Returns the CPU time of this process. If the timer is a thread of another program, the time of that program counts,
/// too, and the timer loses its priority earlier.
fn used_ns() -> u64 {
    clock::process_cpu_time().as_nanos() as u64
}

/// Sets real-time or ordinary priority for the calling thread and the running attempt threads. Without SCHED_RESET_ON_FORK,
/// new threads inherit the caller's priority, so they need not wait for a CPU to raise it.
fn set_real_time(is_real_time: bool) {
    let set = if is_real_time { priority::make_real_time } else { priority::make_ordinary };
    let _ = set(rustix::thread::gettid().as_raw_nonzero().get());
    let pid = std::process::id().cast_signed();
    for tid in process::thread_ids(pid).unwrap_or_default() {
        if process::thread_name(pid, tid).is_ok_and(|name| name == super::THREAD_NAME.as_bytes()) {
            let _ = set(tid);
        }
    }
}
