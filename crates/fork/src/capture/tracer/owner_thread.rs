//! The tracer thread: captures a process, and then owns the template until the seed is dropped.
//!
//! ptrace(2) ties a tracee to one thread. If the daemon keeps threads ready, this is one of `thread_pool`. A template
//! that ends by itself, as a child's does with the child, is reaped at once, although its seed may be in use: the
//! kernel ends no pid namespace, and so no child, before all processes in it have ended.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use farfork_sys::companion::{self, CriticalSection};
use farfork_sys::{pidfd, poll};

use super::deadline::Deadline;
use super::thread_pool;
use crate::capture::attempt::{self, CaptureAttempt, CapturedProcess, SharedTreeState, TemplateProcess};
use crate::capture::describe::{self, DescribedTree, LeftoverPages};
use crate::capture::error::CaptureError;
use crate::capture::stop::interrupted_calls;
use crate::capture::{CaptureOptions, CaptureTimes, CapturedTree};

/// How much longer than its limit an attempt, or the completion after it, may take until it is given up: its thread then
/// hangs in a system call of the kernel's own making (a file of /proc whose lock is held). A look before the pause, or behind it, has no
/// limit of its own, and takes seconds where some dozen others want each processor.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(20);

/// How long the end of a template may take: its kill and its reaping have limits that add up to less.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Stack of a tracer, in bytes; one is parked for each seed.
const STACK_BYTES: usize = 256 << 10;

/// Stack of the thread that waits for a tracer's end, in bytes.
const WAITER_STACK_BYTES: usize = 64 << 10;

/// The name of a tracer.
pub(super) const TRACER_NAME: &str = "tracer";

/// The process that holds a seed's memory. Dropping it ends a template; a frozen parent runs on.
#[derive(Debug)]
pub struct TemplateGuard {
    /// Of each process, in the order of the descriptor's.
    pids: Vec<i32>,
    owner: ThreadId,
    /// Its end lets the owner thread go on.
    release_pipe: Option<PipeWriter>,
    /// Ends with the owner thread.
    owner_ended: Mutex<Receiver<()>>,
}

impl TemplateGuard {
    /// The template of the first process.
    pub fn pid(&self) -> i32 {
        self.pids[0]
    }

    /// The processes whose memory the seed's extents name, by their numbers.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }
}

impl Drop for TemplateGuard {
    fn drop(&mut self) {
        drop(self.release_pipe.take());
        // An observer that does not want it: its thread ends it when it comes back.
        if thread::current().id() == self.owner {
            return;
        }
        let ended = self.owner_ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(template = self.pid(), "a template did not end within {END_LIMIT:?}");
        }
    }
}

/// A process that was captured as far as it is concerned: it runs, and nothing of it is refused any more but what only
/// the kernel's own flags of an area tell. What its descriptor lacks is read of the template then.
#[derive(Debug, Clone)]
pub struct ReadyTemplate {
    /// The process that holds the memory.
    pub template_pid: i32,
    /// The process's program and arguments.
    pub arguments: Vec<String>,
    /// Pages of its own that the template holds, in bytes.
    pub populated_bytes: u64,
    /// What is good to know of its children: what stays behind, what will differ.
    pub notes: Vec<String>,
    /// How long it took so far.
    pub times: CaptureTimes,
}

/// Hears how a capture goes, in the thread that makes it: each hand-over to another would be one more wake-up on the way
/// to the answer.
pub trait CaptureCallbacks: Send {
    /// It was begun, or failed. Tells whether the seed is wanted; else the template is ended, and nothing follows.
    fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool;

    /// It was completed, or failed after all; then the template has ended already.
    fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>);
}

/// A capture that a thread is to make.
pub(in crate::capture) struct CaptureJob {
    pid: i32,
    options: CaptureOptions,
    /// The phases of an attempt are parts of what the thread is in that asks for it.
    phase: tracing::Span,
    callbacks: Box<dyn CaptureCallbacks>,
}

/// Captures `pid` in a thread of its own.
pub(in crate::capture) fn start_job(
    pid: i32,
    options: CaptureOptions,
    observer: Box<dyn CaptureCallbacks>,
) -> Result<(), CaptureError> {
    let phase = tracing::debug_span!(target: "farfork::phase", "prepare.capture");
    match thread_pool::submit(CaptureJob { pid, options, phase, callbacks: observer }) {
        Ok(()) => Ok(()),
        Err(job) => spawn_tracer(TRACER_NAME, move || run_owner(*job, || ())).map_err(CaptureError::ThreadStart),
    }
}

/// The same in the calling thread, which then holds the template until it is dropped.
pub(in crate::capture) fn run_job(pid: i32, options: CaptureOptions, observer: Box<dyn CaptureCallbacks>) {
    run_owner(CaptureJob { pid, options, phase: tracing::Span::none(), callbacks: observer }, || ());
}

/// Starts a tracer: a [companion] of this process, so that who is stopped when this one is killed is let go as if nothing had happened.
pub(in crate::capture) fn spawn_tracer(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let attend = move || {
        if let Err(error) = companion::run_companion(STACK_BYTES, life) {
            tracing::error!(%error, "a tracer was ended: its seed is lost, or a process was let go in the middle of its capture");
        }
    };
    let attendant = thread::Builder::new().name(name.to_owned()).stack_size(WAITER_STACK_BYTES);
    // Tracers ask for others in their places.
    companion::spawn_in_owner(attendant, attend)
}

/// The same, and waits for the end.
pub(in crate::capture) fn capture_blocking(pid: i32, options: CaptureOptions) -> Result<CapturedTree, CaptureError> {
    /// Passes the outcome on, and before it, as `None`, that the process was captured.
    struct ChannelCallbacks(SyncSender<Option<Result<CapturedTree, CaptureError>>>);

    impl CaptureCallbacks for ChannelCallbacks {
        fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
            let wanted = ready_template.is_ok();
            drop(self.0.send(ready_template.err().map(Err)));
            wanted
        }

        fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>) {
            // Where nobody waits any more, it comes back in the error and is dropped here.
            drop(self.0.send(Some(captured)));
        }
    }

    let limit = options.timeout;
    let (answer, answered) = mpsc::sync_channel(2);
    start_job(pid, options, Box::new(ChannelCallbacks(answer)))?;
    let mut heard = answered.recv_timeout(limit + TIMEOUT_GRACE);
    if matches!(heard, Ok(None)) {
        heard = answered.recv_timeout(limit + TIMEOUT_GRACE);
    }
    match heard {
        Ok(Some(captured)) => captured,
        Ok(None) => Err(CaptureError::TracerLost { pid }),
        Err(RecvTimeoutError::Timeout) => {
            Err(CaptureError::TimedOut { pid, limit, phase: "reading its state from the kernel" })
        }
        Err(RecvTimeoutError::Disconnected) => Err(CaptureError::TracerLost { pid }),
    }
}

//  start ── thread ─▶ attempt ─ template_ready ─▶ describe ─ capture_completed ─▶ parked ◀─ Template dropped
//                      │                                                            └─ kill, reap ─▶ thread ends
//                      └─ error: thread ends, and with it the kernel releases whatever did not stop
/// The life of an owner thread. `is_done` is called when nobody waits for the capture any more, nor for what follows its answer.
pub(in crate::capture) fn run_owner(job: CaptureJob, is_done: impl FnOnce()) {
    let CaptureJob { pid, mut options, phase, callbacks: mut observer } = job;
    let (release_reader, release_writer) = match thread_pool::take_pipe() {
        Ok(ends) => ends,
        Err(error) => {
            observer.template_ready(Err(CaptureError::ThreadStart(error)));
            return is_done();
        }
    };
    // Who is stopped goes on, and is told of to the call timer, also where this process is killed meanwhile.
    let pause = CriticalSection::enter();
    let attempt = || phase.in_scope(|| attempt::capture_tree(pid, &options));
    let captured = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or(Err(CaptureError::TracerLost { pid }));
    drop(phase);
    let CaptureAttempt { mut templates, mut processes, shared, times } = match captured {
        Ok(attempted) => attempted,
        Err(error) => {
            interrupted_calls::schedule_call_timeouts();
            drop(pause);
            observer.template_ready(Err(error));
            return is_done();
        }
    };
    let populated_bytes = shared.relations.with_own_memory(&processes).map(CapturedProcess::populated_bytes).sum();
    let ready_template = ready_template(&templates, &processes, populated_bytes, times);
    // First of all: who hears that it has begun may wait for a thread of this process, or for a lock, and that may be killed meanwhile.
    let left = interrupted_calls::schedule_call_timeouts();
    drop(pause);
    let is_wanted = observer.template_ready(Ok(ready_template));
    let threads = processes.iter_mut().flat_map(|one| &mut one.snapshot.threads);
    threads.for_each(|thread| thread.pending_call = left.get(&thread.tid).copied());
    if !is_wanted {
        is_done();
        return abort_templates(templates, &processes);
    }
    let (ends_with_us, ended) = mpsc::channel();
    let pids = templates.iter().map(TemplateProcess::pid).collect();
    let template = TemplateGuard {
        pids,
        owner: thread::current().id(),
        release_pipe: Some(release_writer),
        owner_ended: Mutex::new(ended),
    };
    // What is left has the limit for itself: the process runs, and its seed is promised.
    let deadline = Deadline::after(options.timeout);
    let completed = complete_capture(&options, &mut templates, (processes, shared), &deadline, (template, times));
    let leftovers = match completed {
        Ok((captured, leftovers)) => {
            observer.capture_completed(Ok(captured));
            leftovers
        }
        Err(error) => {
            templates.iter_mut().for_each(|template_process| template_process.release(None));
            observer.capture_completed(Err(error));
            return is_done();
        }
    };
    drop(observer);
    is_done();
    leftovers.unmap(&templates, &deadline);
    drop(deadline);
    park_templates(&mut options, &templates, &release_reader);
    templates.iter_mut().for_each(|template_process| template_process.release(None));
    drop(templates);
    drop(ends_with_us);
}

/// What the waiting caller is told as soon as the template is ready.
fn ready_template(
    templates: &[TemplateProcess],
    processes: &[CapturedProcess],
    populated_bytes: u64,
    times: CaptureTimes,
) -> ReadyTemplate {
    ReadyTemplate {
        template_pid: templates[0].pid(),
        arguments: processes[0].arguments.clone(),
        populated_bytes,
        notes: attempt::collect_notes(processes),
        times,
    }
}

/// Ends the templates of a capture that the caller does not want any more.
fn abort_templates(templates: Vec<TemplateProcess>, processes: &[CapturedProcess]) {
    for (template, process) in templates.into_iter().zip(processes) {
        template.abort(&process.pages, process.survey.syscall_address, None);
    }
}

/// What is left when the seed is known: the descriptor, for which a fork may be waiting already.
fn complete_capture(
    options: &CaptureOptions,
    templates: &mut [TemplateProcess],
    (processes, shared): (Vec<CapturedProcess>, SharedTreeState),
    deadline: &Deadline,
    (template, times): (TemplateGuard, CaptureTimes),
) -> Result<(CapturedTree, LeftoverPages), CaptureError> {
    let (pid, started_at) = (processes[0].snapshot.pid, Instant::now());
    let describe = || describe::describe_tree(options, templates, processes, shared, deadline);
    let described = catch_unwind(AssertUnwindSafe(describe));
    let DescribedTree { descriptor, shared_copies, held_files, leftovers } =
        described.unwrap_or(Err(CaptureError::TracerLost { pid }))?;
    let times = CaptureTimes { describe: started_at.elapsed(), ..times };
    Ok((CapturedTree { descriptor, template, shared_copies, held_files, times }, leftovers))
}

/// Holds the templates until nobody wants them any more, or the first has ended.
fn park_templates(options: &mut CaptureOptions, templates: &[TemplateProcess], release_reader: &PipeReader) {
    for clone in templates.iter().filter_map(TemplateProcess::as_clone) {
        clone.clear_options();
        if let Some(on_template) = &mut options.on_template {
            on_template(clone.pid);
        }
    }
    // Nothing is ever written: this is the end of `release_pipe`.
    let waited = match pidfd::open(templates[0].pid()) {
        Ok(template) => poll::wait_either(template.as_fd(), release_reader.as_fd()),
        Err(_) => poll::wait_either(release_reader.as_fd(), release_reader.as_fd()),
    };
    if let Err(error) = waited {
        tracing::warn!(template = templates[0].pid(), %error, "a template is given up, since it cannot be waited for");
    }
}
