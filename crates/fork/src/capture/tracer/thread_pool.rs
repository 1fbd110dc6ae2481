//! Threads that are ready for captures. Starting a thread takes as long as surveying a process, and a thread's first steps,
//! in untouched memory, are its slowest.
//!
//! A thread that has captured stays with its template. When its capture is complete, it makes another thread ready.

use std::cell::Cell;
use std::io::{self, PipeReader, PipeWriter};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::deadline::Deadline;
use super::owner_thread::{self, CaptureJob};

/// Threads that are kept ready. More captures at the same time start threads of their own.
const POOL_MAX: usize = 2;

/// Heap that a capture of a small process allocates, in bytes. When it is freed, the allocator keeps this much for later.
const HEAP_BYTES: usize = 96 << 10;

/// Stack depth of a capture, in bytes.
const STACK_BYTES: usize = 48 << 10;

const PAGE_BYTES: usize = 4096;

/// One job queue for each ready thread. Empty unless the pool was enabled.
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

/// Gives a job to a ready thread. Returns the job if no thread is ready.
pub(in crate::capture) fn submit(job: CaptureJob) -> Result<(), Box<CaptureJob>> {
    let job = Box::new(job);
    let ready = POOL.lock().unwrap_or_else(PoisonError::into_inner).pop();
    match ready {
        Some(ready) => ready.send(job).map_err(|lost| lost.0),
        None => Err(job),
    }
}

thread_local! {
    /// The pipe whose closing will end this thread's template.
    static PIPE: Cell<Option<(PipeReader, PipeWriter)>> = const { Cell::new(None) };
}

/// Returns the pipe that the calling thread has prepared, or a new one.
pub(in crate::capture) fn take_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    PIPE.take().map_or_else(io::pipe, Ok)
}

/// Creates or touches what a capture in this thread will need: a pipe, a timer, heap and stack.
pub(in crate::capture) fn warm_up() {
    // If no pipe can be made now, `take_pipe` tries again.
    PIPE.set(io::pipe().ok());
    // The thread keeps its timer for the next deadline.
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

/// Writes to each page in a way that the compiler cannot remove.
fn touch_pages(memory: &mut [u8]) {
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = std::hint::black_box(1));
    std::hint::black_box(memory);
}
