//! Ends the run after a signal: kills and removes everything that the run started.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Starts a thread that waits for SIGINT, SIGTERM and SIGHUP. The first of them calls `clean_up` and ends this process.
pub(super) fn end_run_by_signal(clean_up: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    drop(guard);
    thread::spawn(move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hang_up.recv() => SignalKind::hangup(),
            }
        });
        // After a panic, this process must end nevertheless, so that the janitor removes the rest. Unwind safe: the process
        // ends.
        let _ = panic::catch_unwind(AssertUnwindSafe(clean_up));
        // The exit status that shells report for a process that a signal has killed.
        std::process::exit(128 + kind.as_raw_value());
    });
    Ok(())
}
