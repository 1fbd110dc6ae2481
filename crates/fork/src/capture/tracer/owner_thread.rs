//! The tracer thread: captures a process, and then owns the template until the seed is dropped.
//!
//! ptrace(2) ties a tracee to one thread. If the daemon keeps threads ready, this is one of `thread_pool`. A template that
//! ends by itself is reaped at once, even if its seed is in use. The template of a child ends with the child's pid
//! namespace, and the kernel waits for all processes of that namespace before the child can end.

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
use crate::capture::describe::{self, DescribedTree};
use crate::capture::error::CaptureError;
use crate::capture::stop::interrupted_calls;
use crate::capture::{CaptureOptions, CaptureTimes, CapturedTree};

/// How long a caller waits after the limit of an attempt, or of the completion, before it gives up. By then, the tracer
/// hangs in a system call, such as a read of a /proc file whose lock is held. The survey before the pause and the reads
/// after it have no limit of their own; they take seconds if dozens of other threads want each CPU.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(20);

/// Time limit for the wait until a template has ended and is reaped. On a busy machine, this happens later. A request to drop
/// a seed waits here, and has a longer limit.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Stack of a tracer, in bytes; one tracer is parked for each seed.
const STACK_BYTES: usize = 256 << 10;

/// Stack of the thread that waits for a tracer's end, in bytes.
const WAITER_STACK_BYTES: usize = 64 << 10;

/// Thread name of a tracer.
pub(super) const TRACER_NAME: &str = "tracer";

/// Owns the processes that hold a seed's memory. Dropping it ends templates and resumes a frozen parent.
#[derive(Debug)]
pub struct TemplateGuard {
    /// One per process, in the order of the descriptor.
    pids: Vec<i32>,
    owner: ThreadId,
    /// Closing this end of a pipe wakes the owner thread.
    release_pipe: Option<PipeWriter>,
    /// Disconnects when the owner thread ends.
    owner_ended: Mutex<Receiver<()>>,
}

impl TemplateGuard {
    /// The template of the first process.
    pub fn pid(&self) -> i32 {
        self.pids[0]
    }

    /// The processes whose memory the seed's extents name by process number.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }
}

impl Drop for TemplateGuard {
    fn drop(&mut self) {
        drop(self.release_pipe.take());
        // If a callback drops the guard in the owner thread itself, that thread ends the template after the callback
        // returns.
        if thread::current().id() == self.owner {
            return;
        }
        let ended = self.owner_ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(template = self.pid(), "a template did not end within {END_LIMIT:?}");
        }
    }
}

/// A captured process that runs again. Only its mapping flags, which `smaps` shows later, can still cause a refusal. The
/// rest of its descriptor is read from the template later.
#[derive(Debug, Clone)]
pub struct ReadyTemplate {
    /// The process that holds the memory.
    pub template_pid: i32,
    /// Program and arguments of the process.
    pub arguments: Vec<String>,
    /// Number of processes.
    pub processes: usize,
    /// Number of threads, of all processes.
    pub threads: usize,
    /// Size in bytes of all pages with data: the templates' own pages and inherited ones.
    pub populated_bytes: u64,
    /// Notes about its children: state that is not carried, and state that will differ.
    pub notes: Vec<String>,
    /// How long the capture has taken so far.
    pub times: CaptureTimes,
}

/// Callbacks of a capture, called in the thread that makes it. A hand-over to another thread would add a wake-up before the
/// reply.
pub trait CaptureCallbacks: Send {
    /// The template is ready, or the capture failed. Returns whether the seed is wanted; if not, the template is ended, and
    /// no further call follows.
    fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool;

    /// The capture is complete, or failed after all. After a failure, the template has ended already.
    fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>);
}

/// A capture that was requested from a thread.
pub(in crate::capture) struct CaptureJob {
    pid: i32,
    options: CaptureOptions,
    /// The span of the requesting thread; the phases of the attempt are its children.
    phase: tracing::Span,
    callbacks: Box<dyn CaptureCallbacks>,
}

/// Captures `pid` in another thread.
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

/// Captures `pid` in the calling thread, which then holds the template until it is dropped.
pub(in crate::capture) fn run_job(pid: i32, options: CaptureOptions, observer: Box<dyn CaptureCallbacks>) {
    run_owner(CaptureJob { pid, options, phase: tracing::Span::none(), callbacks: observer }, || ());
}

/// Starts a tracer. It is a [companion] of this process: if this process is killed, the tracer still releases its stopped
/// process, unchanged.
pub(in crate::capture) fn spawn_tracer(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let attend = move || {
        if let Err(error) = companion::run_companion(STACK_BYTES, life) {
            tracing::error!(%error, "a tracer has ended: its seed is lost, or a process was released during its capture");
        }
    };
    let attendant = thread::Builder::new().name(name.to_owned()).stack_size(WAITER_STACK_BYTES);
    // A tracer that captures also calls this function, for its replacement (`thread_pool`). So this process, not the tracer,
    // must start the thread.
    companion::spawn_in_owner(attendant, attend)
}

/// Captures `pid` in another thread, and waits for the result.
pub(in crate::capture) fn capture_blocking(pid: i32, options: CaptureOptions) -> Result<CapturedTree, CaptureError> {
    /// Forwards the outcome, and before it `None` when the template is ready.
    struct ChannelCallbacks(SyncSender<Option<Result<CapturedTree, CaptureError>>>);

    impl CaptureCallbacks for ChannelCallbacks {
        fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
            let wanted = ready_template.is_ok();
            drop(self.0.send(ready_template.err().map(Err)));
            wanted
        }

        fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>) {
            // If the receiver is gone, the error returns the outcome, and it is dropped here.
            drop(self.0.send(Some(captured)));
        }
    }

    let limit = options.timeout;
    let (answer, answered) = mpsc::sync_channel(2);
    start_job(pid, options, Box::new(ChannelCallbacks(answer)))?;
    let mut outcome = answered.recv_timeout(limit + TIMEOUT_GRACE);
    if matches!(outcome, Ok(None)) {
        outcome = answered.recv_timeout(limit + TIMEOUT_GRACE);
    }
    match outcome {
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
//                      └─ error: thread ends, and with it the kernel releases threads that did not stop
/// Runs an owner thread: captures a process, and holds its template. Calls `is_done` when no caller waits any more, neither
/// for the reply nor for the descriptor.
pub(in crate::capture) fn run_owner(job: CaptureJob, is_done: impl FnOnce()) {
    let CaptureJob { pid, mut options, phase, callbacks: mut observer } = job;
    let (release_reader, release_writer) = match thread_pool::take_pipe() {
        Ok(ends) => ends,
        Err(error) => {
            observer.template_ready(Err(CaptureError::ThreadStart(error)));
            return is_done();
        }
    };
    // If this process is killed in this section, the stopped processes are still resumed, and the call timer is still
    // notified.
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
    // Do this before the callback: it may wait for a thread or a lock of this process, and this process may be killed in
    // that time.
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
    // The completion has the whole limit again: the process runs, and its seed has been announced.
    let (deadline, started_at) = (Deadline::after(options.timeout), Instant::now());
    let leftovers = match complete_capture(&options, &mut templates, processes, shared, &deadline) {
        Ok(DescribedTree { descriptor, shared_copies, held_files, leftovers }) => {
            let times = CaptureTimes { describe: started_at.elapsed(), ..times };
            observer.capture_completed(Ok(CapturedTree { descriptor, template, shared_copies, held_files, times }));
            leftovers
        }
        Err(error) => {
            drop(template);
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

/// Builds the result that the caller gets as soon as the template is ready.
fn ready_template(
    templates: &[TemplateProcess],
    processes: &[CapturedProcess],
    populated_bytes: u64,
    times: CaptureTimes,
) -> ReadyTemplate {
    ReadyTemplate {
        template_pid: templates[0].pid(),
        arguments: processes[0].arguments.clone(),
        processes: processes.len(),
        threads: processes.iter().map(|process| process.snapshot.threads.len()).sum(),
        populated_bytes,
        notes: attempt::collect_notes(processes),
        times,
    }
}

/// Ends the templates of a capture that the caller no longer wants.
fn abort_templates(templates: Vec<TemplateProcess>, processes: &[CapturedProcess]) {
    for (template, process) in templates.into_iter().zip(processes) {
        template.abort(&process.pages, process.survey.syscall_address, None);
    }
}

/// Builds the descriptor of an announced seed; a fork may already wait for it.
fn complete_capture(
    options: &CaptureOptions,
    templates: &mut [TemplateProcess],
    processes: Vec<CapturedProcess>,
    shared: SharedTreeState,
    deadline: &Deadline,
) -> Result<DescribedTree, CaptureError> {
    let pid = processes[0].snapshot.pid;
    let describe = || describe::describe_tree(options, templates, processes, shared, deadline);
    catch_unwind(AssertUnwindSafe(describe)).unwrap_or(Err(CaptureError::TracerLost { pid }))
}

/// Holds the templates until the seed is dropped, or the first template has ended.
fn park_templates(options: &mut CaptureOptions, templates: &[TemplateProcess], release_reader: &PipeReader) {
    for clone in templates.iter().filter_map(TemplateProcess::as_clone) {
        clone.clear_options();
        if let Some(on_template) = &mut options.on_template {
            on_template(clone.pid);
        }
    }
    // Nothing is ever written: the pipe becomes readable when `release_pipe` is closed.
    let waited = match pidfd::open(templates[0].pid()) {
        Ok(template) => poll::wait_either(template.as_fd(), release_reader.as_fd()),
        Err(_) => poll::wait_either(release_reader.as_fd(), release_reader.as_fd()),
    };
    if let Err(error) = waited {
        tracing::warn!(template = templates[0].pid(), %error, "a template is dropped, because its end cannot be waited for");
    }
}
