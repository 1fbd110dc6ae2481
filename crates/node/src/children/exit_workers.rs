//! A few threads that clean up after ended children. Each continues with the next queued exit: when many children end
//! at once, this costs less than waking a thread for each.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Maximum number of queued exits per thread. With more, for example because the pager is slow, another thread is
/// started.
const QUEUED_PER_THREAD_MAX: usize = 2;

/// The cleanup after a child's exit. It may block.
type ExitTask = Box<dyn FnOnce() + Send>;

/// The queue of exits of a node's children, and the threads that handle them.
#[derive(Debug, Default)]
pub(super) struct ExitWorkers {
    state: Mutex<ExitQueue>,
    /// How many exits are not handled yet.
    pending: watch::Sender<usize>,
}

#[derive(Default)]
struct ExitQueue {
    queue: VecDeque<ExitTask>,
    threads: usize,
}

impl ExitWorkers {
    /// Queues an exit for a thread that may block. Must be called within the runtime.
    pub(super) fn submit(self: &Arc<Self>, work: ExitTask) {
        self.pending.send_modify(|pending| *pending += 1);
        let mut state = self.state();
        state.queue.push_back(work);
        if state.queue.len() > state.threads * QUEUED_PER_THREAD_MAX {
            state.threads += 1;
            drop(state);
            let ends = self.clone();
            tokio::task::spawn_blocking(move || ends.run_worker());
        }
    }

    /// Waits until all exits are handled.
    pub(super) async fn wait_idle(&self) {
        // The sender lives as long as `self`.
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    fn run_worker(&self) {
        while let Some(work) = self.next_task() {
            if panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!("a child's end was not handled");
            }
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }

    /// Takes the next exit from the queue. If it is empty, the calling thread ends.
    fn next_task(&self) -> Option<ExitTask> {
        let mut state = self.state();
        let next = state.queue.pop_front();
        if next.is_none() {
            state.threads -= 1;
        }
        next
    }

    /// Ignores poisoning: every change is complete under its lock.
    fn state(&self) -> MutexGuard<'_, ExitQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ExitQueue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue: waiting, threads } = self;
        formatter.debug_struct("State").field("waiting", &waiting.len()).field("threads", threads).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{ExitWorkers, QUEUED_PER_THREAD_MAX};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn exits_share_a_thread_until_its_queue_is_full() {
        let (ends, done) = (Arc::new(ExitWorkers::default()), Arc::new(AtomicUsize::new(0)));
        let (go_on, held) = mpsc::channel::<()>();
        ends.submit(Box::new(move || held.recv().unwrap()));
        until(|| ends.state().queue.is_empty()).await;
        let count = || {
            let done = done.clone();
            ends.submit(Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }));
        };
        (0..QUEUED_PER_THREAD_MAX).for_each(|_| count());
        assert_eq!((ends.state().threads, done.load(Ordering::Relaxed)), (1, 0), "they wait");
        ends.submit(Box::new(|| panic!("on purpose")));
        count();
        until(|| done.load(Ordering::Relaxed) > QUEUED_PER_THREAD_MAX).await;
        assert!(timeout(Duration::from_millis(20), ends.wait_idle()).await.is_err(), "one is held up");
        go_on.send(()).unwrap();
        timeout(LIMIT, ends.wait_idle()).await.unwrap();
    }

    async fn until(holds: impl Fn() -> bool) {
        let held = async {
            while !holds() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, held).await.expect("in time");
    }
}
