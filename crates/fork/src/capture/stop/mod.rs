//! Stops every thread of a process, or explains why that fails.
//!
//! A thread is seized, then interrupted. The list of threads is read again until it holds no new one while all known
//! threads are stopped. A thread that did not stop cannot be detached either: only the end of the tracing thread releases
//! it.

pub(crate) mod call_entry;
pub(crate) mod call_timeouts;
pub(super) mod freezer;
pub(super) mod inexact_waits;
pub(crate) mod interrupted_calls;
pub(crate) mod queries;
pub(crate) mod restart;
pub(super) mod stop_guard;
pub(crate) mod stopped_process;
pub(super) mod tracers;
pub(super) mod vfork;

use std::io;
use std::time::Duration;

use farfork_sys::process::{self, ProcStatus};
use farfork_sys::ptrace::{self, EVENT_STOP, TraceeEvent};

use stop_guard::mark_interrupted_call;

use super::error::{CaptureError, Refusal};
use super::survey::MAIN_THREAD_ENDED_REASON;
use super::tracer::deadline::{Deadline, WaitError};

/// Time limit for the wait until interrupted threads have stopped and can be released.
const RELEASE_LIMIT: Duration = Duration::from_millis(100);

/// Threads that were interrupted before the stop of their process is finished: some still run, others have stopped. If all
/// processes of a tree are interrupted first, their stops take the time of one.
#[derive(Debug, Default)]
pub(super) struct PendingStops {
    awaited: Vec<i32>,
    stopped: Vec<i32>,
}

impl PendingStops {
    /// Interrupts the threads of a process. Ignores errors: the wait for the threads finds them.
    pub(super) fn interrupt_process(&mut self, pid: i32) {
        for tid in list_threads(pid).unwrap_or_default() {
            if matches!(seize_thread(pid, tid), Ok(true)) {
                let _ = interrupt_thread(tid);
                self.awaited.push(tid);
            }
        }
    }

    /// Whether a thread was interrupted, and its end was not reported.
    pub(super) fn contains(&self, tid: i32) -> bool {
        self.stopped.contains(&tid) || self.awaited.contains(&tid)
    }

    /// Removes a thread, and returns the progress of its stop. The caller must wait for an interrupted thread.
    fn remove(&mut self, tid: i32) -> Option<StopProgress> {
        let taken = |tids: &mut Vec<i32>| tids.iter().position(|known| *known == tid).map(|at| tids.swap_remove(at));
        match (taken(&mut self.stopped), taken(&mut self.awaited)) {
            (Some(_), _) => Some(StopProgress::Stopped),
            (None, Some(_)) => Some(StopProgress::Interrupted),
            (None, None) => None,
        }
    }

    /// Records a report that another wait has received.
    fn record_report(&mut self, tid: i32, report: TraceeEvent) {
        let known = self.awaited.contains(&tid);
        if known && matches!(report, TraceeEvent::Stopped { event: EVENT_STOP, .. }) {
            mark_interrupted_call(tid);
        }
        self.awaited.retain(|other| {
            *other != tid || !matches!(report, TraceeEvent::Ended | TraceeEvent::Stopped { event: EVENT_STOP, .. })
        });
        if known && matches!(report, TraceeEvent::Stopped { event: EVENT_STOP, .. }) {
            self.stopped.push(tid);
        }
    }

    /// Releases all threads that no stop has taken. They resume unchanged.
    pub(super) fn release(&mut self) {
        // Without threads to wait for, create no deadline: its timer costs more than this check.
        let deadline = (!self.awaited.is_empty()).then(|| Deadline::after(RELEASE_LIMIT));
        while let Some(deadline) = deadline.as_ref().filter(|_| !self.awaited.is_empty()) {
            match deadline.wait_report() {
                Ok((tid, TraceeEvent::Ended)) if self.awaited.contains(&tid) => {
                    // Until this thread is reaped, the kernel repeats this report, instead of other stops.
                    let _ = ptrace::reap(tid);
                    self.record_report(tid, TraceeEvent::Ended);
                }
                Ok((tid, report @ TraceeEvent::Stopped { signal, event: 0 })) if self.awaited.contains(&tid) => {
                    self.record_report(tid, report);
                    drop(ptrace::resume(tid, signal));
                }
                Ok((tid, report)) => self.record_report(tid, report),
                Err(_) => break,
            }
        }
        self.stopped.drain(..).for_each(|tid| drop(ptrace::detach(tid)));
    }
}

/// Progress of the stop of an interrupted thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopProgress {
    Interrupted,
    Stopped,
}

/// Seizes and interrupts every thread, and waits until all have stopped.
pub(super) fn stop_threads(pid: i32, deadline: &Deadline) -> Result<Vec<i32>, CaptureError> {
    finish_stop(pid, deadline, &mut PendingStops::default())
}

/// Stops a process, some of whose threads may have been interrupted already.
pub(super) fn finish_stop(
    pid: i32,
    deadline: &Deadline,
    pending_stops: &mut PendingStops,
) -> Result<Vec<i32>, CaptureError> {
    let mut stopped: Vec<i32> = Vec::new();
    let mut ended: Vec<i32> = Vec::new();
    let mut all = list_threads(pid)?;
    loop {
        let is_new = |tid: &i32| !stopped.contains(tid) && !ended.contains(tid);
        let new: Vec<i32> = all.into_iter().filter(is_new).collect();
        if new.is_empty() {
            break;
        }
        let (mut awaited, mut seized) = (Vec::with_capacity(new.len()), Vec::with_capacity(new.len()));
        for tid in new {
            match pending_stops.remove(tid) {
                Some(StopProgress::Stopped) => stopped.push(tid),
                Some(StopProgress::Interrupted) => awaited.push(tid),
                None if seize_thread(pid, tid)? => seized.push(tid),
                None => ended.push(tid),
            }
        }
        for tid in &seized {
            // ESRCH: the thread has ended, which the wait reports.
            let _ = interrupt_thread(*tid);
        }
        awaited.append(&mut seized);
        wait_stops(pid, awaited, deadline, (&mut stopped, &mut ended), pending_stops)?;
        // Stopped threads create no others: if the kernel counts the same number, none is missing.
        if process::thread_count(pid).is_ok_and(|count| count == stopped.len()) {
            break;
        }
        all = list_proc_threads(pid)?;
    }
    // Put the leader first, as callers expect.
    stopped.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    Ok(stopped)
}

/// Lists the threads of a process. Does not read `/proc/PID/task` if there is only one.
fn list_threads(pid: i32) -> Result<Vec<i32>, CaptureError> {
    if matches!(process::thread_count(pid), Ok(1)) { Ok(vec![pid]) } else { list_proc_threads(pid) }
}

fn list_proc_threads(pid: i32) -> Result<Vec<i32>, CaptureError> {
    process::thread_ids(pid).map_err(|_| CaptureError::ProcessGone { pid })
}

/// Seizes and interrupts one thread. The other threads continue to run.
pub(super) fn stop_thread(tid: i32, deadline: &Deadline) -> Result<(), CaptureError> {
    if !seize_thread(tid, tid)? {
        return Err(CaptureError::ProcessGone { pid: tid });
    }
    interrupt_thread(tid).map_err(CaptureError::tracing("interrupt", tid))?;
    wait_stops(tid, vec![tid], deadline, (&mut Vec::new(), &mut Vec::new()), &mut PendingStops::default())
}

fn interrupt_thread(tid: i32) -> io::Result<()> {
    interrupted_calls::mark_interrupted(tid);
    ptrace::interrupt(tid)
}

/// Seizes a thread. Returns false if it has ended.
fn seize_thread(pid: i32, tid: i32) -> Result<bool, CaptureError> {
    let Err(source) = tracers::seize(tid) else { return Ok(true) };
    let Ok(status) = ProcStatus::read(tid) else {
        return if tid == pid { Err(CaptureError::ProcessGone { pid }) } else { Ok(false) };
    };
    let is_dead = matches!(status.state.as_str(), "Z" | "X");
    if is_dead && tid != pid {
        return Ok(false);
    }
    if is_dead {
        let object = format!("pid {pid}, thread {tid}");
        return Err(CaptureError::refused(pid, vec![Refusal::new(object, MAIN_THREAD_ENDED_REASON)]));
    }
    if status.tracer != 0 {
        return Err(CaptureError::refused(pid, vec![tracers::refusal(tid, status.tracer)]));
    }
    Err(CaptureError::Trace { operation: "attach to", tid, source })
}

fn wait_stops(
    pid: i32,
    mut awaited: Vec<i32>,
    deadline: &Deadline,
    (stopped, ended): (&mut Vec<i32>, &mut Vec<i32>),
    pending_stops: &mut PendingStops,
) -> Result<(), CaptureError> {
    while !awaited.is_empty() {
        let next = if awaited.len() + pending_stops.awaited.len() > 1 {
            deadline.poll_or_wait_report()
        } else {
            deadline.wait_report()
        };
        let (tid, report) = match next {
            Ok(report) => report,
            Err(WaitError::TimedOut) => return Err(not_stopped_error(pid, awaited[0], deadline)),
            Err(WaitError::NoTracee) => return Err(CaptureError::ProcessGone { pid }),
        };
        if !awaited.contains(&tid) && !stopped.contains(&tid) {
            pending_stops.record_report(tid, report);
        }
        match report {
            // Do not reap the leader. The kernel notifies the leader's parent when this tracer has ended.
            TraceeEvent::Ended if tid == pid => return Err(CaptureError::ProcessGone { pid }),
            TraceeEvent::Ended => {
                let _ = ptrace::reap(tid);
                awaited.retain(|other| *other != tid);
                stopped.retain(|other| *other != tid);
                ended.push(tid);
            }
            TraceeEvent::Stopped { event: EVENT_STOP, .. } => {
                // Threads of other processes of the tree were recorded above.
                if awaited.contains(&tid) {
                    mark_interrupted_call(tid);
                    awaited.retain(|other| *other != tid);
                    stopped.push(tid);
                }
            }
            // A signal arrived first. It is delivered, and the stop follows.
            TraceeEvent::Stopped { signal, event: 0 } => drop(ptrace::resume(tid, signal)),
            TraceeEvent::Stopped { .. } => drop(ptrace::resume(tid, 0)),
        }
    }
    Ok(())
}

/// Explains why a thread did not stop: its state, the cause, and what to do.
fn not_stopped_error(pid: i32, tid: i32, deadline: &Deadline) -> CaptureError {
    let state = ProcStatus::read(tid).map_or_else(|_| "?".to_owned(), |status| status.state);
    let state = if let Some(group) = freezer::freezing_group(pid) {
        format!("it is frozen by the control group {}; thaw that first", group.display())
    } else if vfork::is_in_vfork(tid) {
        "it waits in vfork(2) for a child that has not yet called exec or exit; try again when that has".to_owned()
    } else if state == "D" {
        let wait_channel = std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
        format!(
            "it is in uninterruptible sleep (state D, in `{wait_channel}`), mostly for a disk or a network file system; try again later"
        )
    } else {
        format!("it is in state {state}; is the machine overloaded? try again")
    };
    CaptureError::NotStopped { pid, tid, waited: deadline.limit(), state }
}
