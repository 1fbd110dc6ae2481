//! Threads that are ready for captures. Starting a thread takes as long as surveying a process, and its first steps, in
//! memory that was never touched, are its slowest.
//!
//! A thread that has captured stays with its template. After the answer, another one is made ready.

use std::cell::Cell;
use std::io::{self, PipeReader, PipeWriter};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::deadline::Deadline;
use super::owner_thread::{self, CaptureJob};

/// Captures that begin at the same time and find a thread each; for more, threads are started.
const POOL_MAX: usize = 2;

/// What a capture of a small process allocates, in bytes. Below what the allocator gives back to the system at once.
const HEAP_BYTES: usize = 96 << 10;

/// How deep its calls go, in bytes of the stack.
const STACK_BYTES: usize = 48 << 10;

const PAGE_BYTES: usize = 4096;

/// Where each of them waits. Empty where nobody asked for any.
static POOL: Mutex<Vec<SyncSender<Box<CaptureJob>>>> = Mutex::new(Vec::new());

/// Keeps threads ready from now on.
pub(in crate::capture) fn fill_pool() {
    while POOL.lock().unwrap_or_else(PoisonError::into_inner).len() < POOL_MAX {
        let (job, jobs) = mpsc::sync_channel::<Box<CaptureJob>>(1);
        let started = owner_thread::spawn_tracer(owner_thread::TRACER_NAME, move || {
            warm_up();
            if let Ok(job) = jobs.recv() {
                owner_thread::run_owner(*job, fill_pool);
            }
        });
        if let Err(error) = started {
            return tracing::debug!(%error, "no thread is ready for the next capture");
        }
        POOL.lock().unwrap_or_else(PoisonError::into_inner).push(job);
    }
}

/// Gives a job to a thread that is ready; the job comes back where none is.
pub(in crate::capture) fn submit(job: CaptureJob) -> Result<(), Box<CaptureJob>> {
    let job = Box::new(job);
    let ready = POOL.lock().unwrap_or_else(PoisonError::into_inner).pop();
    match ready {
        Some(ready) => ready.send(job).map_err(|lost| lost.0),
        None => Err(job),
    }
}

thread_local! {
    /// What this thread's template will be kept by.
    static PIPE: Cell<Option<(PipeReader, PipeWriter)>> = const { Cell::new(None) };
}

/// A pipe; the calling thread's, where it was made ready.
pub(in crate::capture) fn take_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    PIPE.take().map_or_else(io::pipe, Ok)
}

/// Makes or touches what a capture in this thread will need: a pipe, its timer, its heap, its stack.
pub(in crate::capture) fn warm_up() {
    // Where none can be made now, one is when it is needed, or that fails.
    PIPE.set(io::pipe().ok());
    // Its timer is kept for the next.
    drop(Deadline::after(Duration::from_secs(1)));
    let mut heap = vec![0_u8; HEAP_BYTES];
    touch_pages(&mut heap);
    drop(heap);
    touch_stack();
}

#[inline(never)]
fn touch_stack() {
    touch_pages(&mut [0_u8; STACK_BYTES]);
}

/// Writes to each page; not a write that the compiler could leave out.
fn touch_pages(memory: &mut [u8]) {
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = std::hint::black_box(1));
    std::hint::black_box(memory);
}
