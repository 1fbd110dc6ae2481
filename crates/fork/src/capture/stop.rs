//! Stopping every thread of a process, or saying why that cannot be.
//!
//! A thread is seized, then interrupted; the list of threads is read again until it holds no new one while all known
//! ones stand. What has not stopped cannot be let go either: that takes the end of the tracing thread.

pub(crate) mod entry;
pub(super) mod freezer;
pub(super) mod inexact;
pub(crate) mod limits;
pub(crate) mod questions;
pub(crate) mod restart;
pub(crate) mod standstill;
pub(super) mod stopped;
pub(super) mod tracers;
pub(super) mod vfork;
pub(super) mod waits;

use std::io;
use std::time::Duration;

use farfork_sys::process::{self, Status};
use farfork_sys::ptrace::{self, EVENT_STOP, Report};

use stopped::make_restartable;

use super::error::{CaptureError, Refusal};
use super::tracer::deadline::{Deadline, Silence};

/// How long threads may take to stop that are let go at once.
const LET_GO_LIMIT: Duration = Duration::from_millis(100);

/// Threads that were told to stop before they are waited for: all processes of a tree take the time of one.
#[derive(Debug, Default)]
pub(super) struct Told {
    awaited: Vec<i32>,
    standing: Vec<i32>,
}

impl Told {
    /// Has the threads of a process stop. What does not work out is found when it is waited for.
    pub(super) fn tell(&mut self, pid: i32) {
        for tid in threads(pid).unwrap_or_default() {
            if matches!(seize(pid, tid), Ok(true)) {
                let _ = interrupt(tid);
                self.awaited.push(tid);
            }
        }
    }

    /// Whether a thread was told to stop, and nobody has heard of its end.
    pub(super) fn knows(&self, tid: i32) -> bool {
        self.standing.contains(&tid) || self.awaited.contains(&tid)
    }

    /// Whether a thread stands already, or was told to stop; then it is for the caller to wait for.
    fn take(&mut self, tid: i32) -> Option<Progress> {
        let taken = |tids: &mut Vec<i32>| tids.iter().position(|known| *known == tid).map(|at| tids.swap_remove(at));
        match (taken(&mut self.standing), taken(&mut self.awaited)) {
            (Some(_), _) => Some(Progress::Stands),
            (None, Some(_)) => Some(Progress::Told),
            (None, None) => None,
        }
    }

    /// Hears of a thread that somebody else waits for.
    fn hear(&mut self, tid: i32, report: Report) {
        let known = self.awaited.contains(&tid);
        if known && matches!(report, Report::Stopped { event: EVENT_STOP, .. }) {
            make_restartable(tid);
        }
        self.awaited.retain(|other| {
            *other != tid || !matches!(report, Report::Ended | Report::Stopped { event: EVENT_STOP, .. })
        });
        if known && matches!(report, Report::Stopped { event: EVENT_STOP, .. }) {
            self.standing.push(tid);
        }
    }

    /// Lets go of all that nobody has waited for, and that go on as they were.
    pub(super) fn let_go(&mut self) {
        // A timer costs more than to look.
        let deadline = (!self.awaited.is_empty()).then(|| Deadline::after(LET_GO_LIMIT));
        while let Some(deadline) = deadline.as_ref().filter(|_| !self.awaited.is_empty()) {
            match deadline.next_report() {
                Ok((tid, Report::Ended)) if self.awaited.contains(&tid) => {
                    // Until it is taken, the kernel tells of this end in the place of others' stops.
                    let _ = ptrace::reap(tid);
                    self.hear(tid, Report::Ended);
                }
                Ok((tid, report @ Report::Stopped { signal, event: 0 })) if self.awaited.contains(&tid) => {
                    self.hear(tid, report);
                    drop(ptrace::resume(tid, signal));
                }
                Ok((tid, report)) => self.hear(tid, report),
                Err(_) => break,
            }
        }
        self.standing.drain(..).for_each(|tid| drop(ptrace::detach(tid)));
    }
}

/// How far a thread has come that was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Told,
    Stands,
}

/// Seizes and interrupts every thread, and waits until all stand.
pub(super) fn stop_threads(pid: i32, deadline: &Deadline) -> Result<Vec<i32>, CaptureError> {
    stop_told(pid, deadline, &mut Told::default())
}

/// The same of a process whose threads may have been told to stop.
pub(super) fn stop_told(pid: i32, deadline: &Deadline, told: &mut Told) -> Result<Vec<i32>, CaptureError> {
    let mut standing: Vec<i32> = Vec::new();
    let mut ended: Vec<i32> = Vec::new();
    let mut all = threads(pid)?;
    loop {
        let is_new = |tid: &i32| !standing.contains(tid) && !ended.contains(tid);
        let new: Vec<i32> = all.into_iter().filter(is_new).collect();
        if new.is_empty() {
            break;
        }
        let (mut awaited, mut seized) = (Vec::with_capacity(new.len()), Vec::with_capacity(new.len()));
        for tid in new {
            match told.take(tid) {
                Some(Progress::Stands) => standing.push(tid),
                Some(Progress::Told) => awaited.push(tid),
                None if seize(pid, tid)? => seized.push(tid),
                None => ended.push(tid),
            }
        }
        for tid in &seized {
            // ESRCH: it has ended meanwhile, which the wait reports.
            let _ = interrupt(*tid);
        }
        awaited.append(&mut seized);
        await_stops(pid, awaited, deadline, (&mut standing, &mut ended), told)?;
        // Who stands makes no other: where the kernel counts as many, there is none.
        if process::thread_count(pid).is_ok_and(|count| count == standing.len()) {
            break;
        }
        all = listed(pid)?;
    }
    // The leader first, as everywhere.
    standing.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    Ok(standing)
}

/// The threads of a process; one needs no list.
fn threads(pid: i32) -> Result<Vec<i32>, CaptureError> {
    if matches!(process::thread_count(pid), Ok(1)) { Ok(vec![pid]) } else { listed(pid) }
}

fn listed(pid: i32) -> Result<Vec<i32>, CaptureError> {
    process::threads(pid).map_err(|_| CaptureError::Gone { pid })
}

/// Seizes and interrupts one thread alone, the others run on.
pub(super) fn stop_one(tid: i32, deadline: &Deadline) -> Result<(), CaptureError> {
    if !seize(tid, tid)? {
        return Err(CaptureError::Gone { pid: tid });
    }
    interrupt(tid).map_err(CaptureError::trace("interrupt", tid))?;
    await_stops(tid, vec![tid], deadline, (&mut Vec::new(), &mut Vec::new()), &mut Told::default())
}

fn interrupt(tid: i32) -> io::Result<()> {
    waits::tell(tid);
    ptrace::interrupt(tid)
}

/// Whether a thread was seized; not if it has ended meanwhile.
fn seize(pid: i32, tid: i32) -> Result<bool, CaptureError> {
    let Err(source) = tracers::seize(tid) else { return Ok(true) };
    let Ok(status) = Status::read(tid) else {
        return if tid == pid { Err(CaptureError::Gone { pid }) } else { Ok(false) };
    };
    let is_dead = matches!(status.state.as_str(), "Z" | "X");
    if is_dead && tid != pid {
        return Ok(false);
    }
    if is_dead {
        let object = format!("pid {pid}, thread {tid}");
        let reason = "its main thread has ended while others go on; prepare it before that";
        return Err(CaptureError::refused(pid, vec![Refusal::new(object, reason)]));
    }
    if status.tracer != 0 {
        return Err(CaptureError::refused(pid, vec![tracers::refusal(tid, status.tracer)]));
    }
    Err(CaptureError::Trace { operation: "attach to", tid, source })
}

fn await_stops(
    pid: i32,
    mut awaited: Vec<i32>,
    deadline: &Deadline,
    (standing, ended): (&mut Vec<i32>, &mut Vec<i32>),
    told: &mut Told,
) -> Result<(), CaptureError> {
    while !awaited.is_empty() {
        let next =
            if awaited.len() + told.awaited.len() > 1 { deadline.next_of_several() } else { deadline.next_report() };
        let (tid, report) = match next {
            Ok(report) => report,
            Err(Silence::TimedOut) => return Err(not_stopped(pid, awaited[0], deadline)),
            Err(Silence::NoTracee) => return Err(CaptureError::Gone { pid }),
        };
        if !awaited.contains(&tid) && !standing.contains(&tid) {
            told.hear(tid, report);
        }
        match report {
            // The kernel passes the leader's end on to its parent when we are gone.
            Report::Ended if tid == pid => return Err(CaptureError::Gone { pid }),
            Report::Ended => {
                let _ = ptrace::reap(tid);
                awaited.retain(|other| *other != tid);
                standing.retain(|other| *other != tid);
                ended.push(tid);
            }
            Report::Stopped { event: EVENT_STOP, .. } => {
                // Those of other processes of the tree stand already.
                if awaited.contains(&tid) {
                    make_restartable(tid);
                    awaited.retain(|other| *other != tid);
                    standing.push(tid);
                }
            }
            // A signal came first: it is delivered, and the stop follows.
            Report::Stopped { signal, event: 0 } => drop(ptrace::resume(tid, signal)),
            Report::Stopped { .. } => drop(ptrace::resume(tid, 0)),
        }
    }
    Ok(())
}

/// Says in which state a thread is that did not stop, why that is so, and what to do.
fn not_stopped(pid: i32, tid: i32, deadline: &Deadline) -> CaptureError {
    let state = Status::read(tid).map_or_else(|_| "?".to_owned(), |status| status.state);
    let state = if let Some(group) = freezer::frozen_by(pid) {
        format!("it is frozen by the control group {}; thaw that first", group.display())
    } else if vfork::holds(tid) {
        "it waits in vfork(2) for a child that has not yet called exec or exit; try again when that has".to_owned()
    } else if state == "D" {
        let place = std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
        format!(
            "it is in uninterruptible sleep (state D, in `{place}`), mostly for a disk or a network file system; try again later"
        )
    } else {
        format!("it is in state {state}; is the machine overloaded? try again")
    };
    CaptureError::NotStopped { pid, tid, waited: deadline.limit(), state }
}
