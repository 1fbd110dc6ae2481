//! Notices when the daemon stands still. A thread asks the asynchronous runtime again and again for what takes no time: to wait
//! for a millisecond, which needs a worker, the timer, and whoever polls the kernel for both. Where no answer comes, the log is
//! told what each thread of the daemon waited for in the kernel then, and later how long it lasted: requests that ran out of time
//! meanwhile say only that nobody answered.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::KernelStackSummary;
use tokio::runtime::Handle;

/// From one answer to the next question.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// For an answer. Far above what a busy machine takes, below what any request has.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct StallWatchdog {
    /// Nothing is ever sent: its end is what the thread hears.
    _alive: Sender<()>,
}

impl StallWatchdog {
    /// Watches a runtime.
    ///
    /// # Errors
    /// As the start of a thread.
    pub(crate) fn start(runtime: Handle) -> io::Result<Self> {
        Self::start_with(runtime, (PROBE_INTERVAL, STALL_TIMEOUT), |threads| {
            tracing::warn!(
                threads,
                "the daemon stands still: nobody of its runtime has answered for {STALL_TIMEOUT:?}"
            );
        })
    }

    fn start_with(
        runtime: Handle,
        (interval, patience): (Duration, Duration),
        tell: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let watch = move || {
            let mut asleep = Instant::now();
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let answered = probe_runtime(&runtime);
                if answered.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                    let threads = KernelStackSummary::read(std::process::id().cast_signed());
                    tell(&threads.map_or_else(|error| error.to_string(), |threads| threads.to_string()));
                    // An error is an answer too: the runtime has ended.
                    let _ = answered.recv();
                }
                // Also where nobody could tell, because this thread had no turn either.
                let stood_still = asleep.elapsed().saturating_sub(interval);
                if stood_still >= patience {
                    tracing::warn!(?stood_still, "the daemon goes on");
                }
                asleep = Instant::now();
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
        // Nobody listens where the daemon ends.
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
    fn who_stands_still_is_told() {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_time().thread_name("worker").build().unwrap();
        let (told, heard) = mpsc::channel();
        let tell = move |threads: &str| told.send(threads.to_owned()).unwrap();
        let (release, released) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        runtime.spawn(async move {
            begin.send(()).unwrap();
            released.recv()
        });
        begun.recv().unwrap();
        let stall_watchdog =
            StallWatchdog::start_with(runtime.handle().clone(), (Duration::from_millis(1), STALL_TIMEOUT), tell)
                .unwrap();
        let threads = heard.recv_timeout(LIMIT).expect("its only worker waits");
        assert!(threads.contains("1 worker S"), "{threads}");
        drop(release);
        drop(stall_watchdog);
        // Ends with the watching thread.
        heard.iter().for_each(drop);
    }
}
