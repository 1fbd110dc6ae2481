//! Ends the run after a signal: kills and removes everything that the run started.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use farfork_sys::process::ProcStatus;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Starts a thread that waits for SIGINT, SIGTERM and SIGHUP. The first of them calls `clean_up` and ends this process. If
/// SIGHUP is ignored, as nohup(1) does, it stays ignored.
pub(super) fn end_run_by_signal(clean_up: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let is_ignored = ProcStatus::read(std::process::id().cast_signed())?.ignores(SignalKind::hangup().as_raw_value());
    let mut hang_up = if is_ignored { None } else { Some(signal(SignalKind::hangup())?) };
    drop(guard);
    thread::spawn(move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                () = received(&mut hang_up) => SignalKind::hangup(),
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

/// Waits for the next signal; forever if there is no stream of signals.
async fn received(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => {
            signals.recv().await;
        }
        None => std::future::pending().await,
    }
}
