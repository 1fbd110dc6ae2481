//! Detects that the daemon stalls. A thread repeatedly spawns a task that sleeps for a millisecond. The task completes
//! only if a worker, the timer and the thread that polls the kernel all run.
//!
//! If the task does not complete in time, logs where each thread of the daemon waits in the kernel, and later how long
//! the stall lasted. Requests that time out during a stall report only that no reply arrived.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::KernelStackSummary;
use tokio::runtime::Handle;

/// Pause between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for a probe: far longer than the delay on a busy machine, and no longer than the time limit of any
/// request to another node.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the runtime until this value is dropped.
#[derive(Debug)]
pub(crate) struct StallWatchdog {
    /// Sends no messages: dropping it ends the thread.
    _alive: Sender<()>,
}

impl StallWatchdog {
    /// Starts a thread that watches a runtime.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(runtime: Handle) -> io::Result<Self> {
        Self::start_with(runtime, (PROBE_INTERVAL, STALL_TIMEOUT), |threads| {
            tracing::warn!(threads, "the daemon stalls: its runtime has not responded for {STALL_TIMEOUT:?}");
        })
    }

    fn start_with(
        runtime: Handle,
        (interval, timeout): (Duration, Duration),
        report: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let watch = move || {
            let mut slept_since = Instant::now();
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let answered = probe_runtime(&runtime);
                if answered.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
                    let threads = KernelStackSummary::read(std::process::id().cast_signed());
                    report(&threads.map_or_else(|error| error.to_string(), |threads| threads.to_string()));
                    // An error counts as a response: the runtime has ended.
                    let _ = answered.recv();
                }
                // Also detects a stall in which this thread was not scheduled either, so that no probe was late.
                let stall = slept_since.elapsed().saturating_sub(interval);
                if stall >= timeout {
                    tracing::warn!(?stall, "the daemon responds again");
                }
                slept_since = Instant::now();
            }
        };
        thread::Builder::new().name("standstill".to_owned()).spawn(watch)?;
        Ok(Self { _alive: alive })
    }
}

fn probe_runtime(runtime: &Handle) -> Receiver<()> {
    let (answer, answered) = mpsc::channel();
    runtime.spawn(async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Fails if the watchdog has been dropped, while the daemon ends.
        let _ = answer.send(());
    });
    answered
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::StallWatchdog;

    const STALL_TIMEOUT: Duration = Duration::from_millis(200);
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_stalled_runtime_is_reported() {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_time().thread_name("worker").build().unwrap();
        let (sender, receiver) = mpsc::channel();
        let report = move |threads: &str| sender.send(threads.to_owned()).unwrap();
        let (release_sender, released) = mpsc::channel::<()>();
        let (start_sender, started) = mpsc::channel();
        runtime.spawn(async move {
            start_sender.send(()).unwrap();
            released.recv()
        });
        started.recv().unwrap();
        let stall_watchdog =
            StallWatchdog::start_with(runtime.handle().clone(), (Duration::from_millis(1), STALL_TIMEOUT), report)
                .unwrap();
        let threads = receiver.recv_timeout(LIMIT).expect("its only worker waits");
        assert!(threads.contains("1 worker S"), "{threads}");
        drop(release_sender);
        drop(stall_watchdog);
        // Wait until the watching thread ends: it drops the sender.
        receiver.iter().for_each(drop);
    }
}
