//! Runs the pauses of several processes in one tracer thread. Each pause is a future that awaits only reports.
//!
//! `tree_pause` calls `PauseExecutor::run`. While the threads of one process work, the pauses of the others proceed. Reports
//! of a process without a pending pause are dropped: its threads are stopped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use farfork_sys::process::ProcStat;
use farfork_sys::ptrace::{self, TraceeEvent};

use super::deadline::{Deadline, WaitError};

/// The result of a wait.
type WaitResult = Result<(i32, TraceeEvent), WaitError>;

/// The pause of one process.
pub(in crate::capture) type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

//             ┌─▶ pause of process 1 ─ starts its threads ─ waits ┐
//  report ────┤   pause of process 2 ─ · · ·                      ├─ none can go on ─ waitid(2) ─ report …
//             └─  pause of process 3 ─ · · ·                      ┘
/// Distributes the reports of a tree's threads to the pauses of their processes.
#[derive(Debug)]
pub(in crate::capture) struct PauseExecutor<'a> {
    deadline: &'a Deadline,
    /// The process of each thread.
    threads: BTreeMap<i32, i32>,
    is_single: bool,
    /// Reports that were not taken yet, each with its process, in the order of arrival.
    reports: RefCell<Vec<(i32, WaitResult)>>,
}

impl<'a> PauseExecutor<'a> {
    /// Returns an executor for stopped processes. `processes`: the threads of each, the leader first.
    pub(in crate::capture) fn new(processes: &[Vec<i32>], deadline: &'a Deadline) -> Self {
        let threads = processes.iter().flat_map(|tids| tids.iter().map(|tid| (*tid, tids[0])));
        let is_of_one = processes.len() == 1;
        Self { deadline, threads: threads.collect(), is_single: is_of_one, reports: RefCell::default() }
    }

    /// The deadline of the attempt.
    pub(in crate::capture) fn deadline(&self) -> &'a Deadline {
        self.deadline
    }

    /// Whether a thread is one of those that were stopped at the start.
    pub(in crate::capture) fn contains(&self, tid: i32) -> bool {
        self.threads.contains_key(&tid)
    }

    /// Waits for the next report of a thread or a clone of the process.
    pub(in crate::capture) async fn next_report(&self, pid: i32) -> WaitResult {
        poll_fn(|_| self.take_report(pid).map_or(Poll::Pending, Poll::Ready)).await
    }

    fn take_report(&self, pid: i32) -> Option<WaitResult> {
        let mut reports = self.reports.borrow_mut();
        let at = reports.iter().position(|(of, _)| *of == pid)?;
        Some(reports.remove(at).1)
    }

    /// Runs the pauses, each given with its process id. Returns the outcomes in the same order.
    pub(in crate::capture) fn run<T>(&self, pauses: Vec<(i32, BoxedFuture<'_, T>)>) -> Vec<T> {
        let mut context = Context::from_waker(Waker::noop());
        let mut outcomes: Vec<Option<T>> = pauses.iter().map(|_| None).collect();
        let mut pending: Vec<(usize, i32, BoxedFuture<'_, T>)> =
            pauses.into_iter().enumerate().map(|(index, (pid, pause))| (index, pid, pause)).collect();
        // At first poll all pauses, then only those with a new report.
        let mut is_for: Option<i32> = None;
        loop {
            pending.retain_mut(|(index, pid, pause)| {
                if is_for.is_some_and(|one| one != *pid) {
                    return true;
                }
                let Poll::Ready(outcome) = pause.as_mut().poll(&mut context) else { return true };
                outcomes[*index] = Some(outcome);
                false
            });
            if pending.is_empty() {
                return outcomes.into_iter().flatten().collect();
            }
            is_for = self.wait_report(&pending.iter().map(|(_, pid, _)| *pid).collect::<Vec<_>>());
        }
    }

    /// Waits for one report. Returns its process; `None` if the wait failed, which is reported to all of them.
    fn wait_report(&self, pending: &[i32]) -> Option<i32> {
        let arrival = if self.is_single { self.deadline.wait_report() } else { self.deadline.poll_or_wait_report() };
        let mut reports = self.reports.borrow_mut();
        let Ok((tid, report)) = arrival else {
            reports.extend(pending.iter().map(|pid| (*pid, arrival)));
            return None;
        };
        let pid = self.process_of(tid, pending);
        if report == TraceeEvent::Ended && !self.is_single {
            // Until the thread is reaped, the kernel repeats this report, instead of other stops. Reaping also notifies its
            // parent.
            let _ = ptrace::reap(tid);
        }
        if pending.contains(&pid) {
            reports.push((pid, arrival));
        }
        Some(pid)
    }

    /// Returns the process whose thread or new clone this is.
    fn process_of(&self, tid: i32, pending: &[i32]) -> i32 {
        match (self.threads.get(&tid), pending) {
            (Some(pid), _) => *pid,
            (None, [alone]) => *alone,
            (None, _) => ProcStat::read(tid).map_or(0, |stat| stat.parent),
        }
    }
}

/// Returns the result of a future that waits in place, and so is never pending.
pub(in crate::capture) fn run_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("without an executor, the future waits for reports in place"),
    }
}
