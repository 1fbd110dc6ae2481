//! Ends the run after a signal: kills and removes everything that the run started.

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Starts a thread that waits for SIGINT, SIGTERM and SIGHUP. The first of them calls `clean_up` and ends this process. If
/// SIGHUP is ignored, as nohup(1) does, it stays ignored.
pub(super) fn end_run_by_signal(clean_up: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = if is_ignored(SignalKind::hangup())? { None } else { Some(signal(SignalKind::hangup())?) };
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

/// Returns whether this process ignores a signal.
fn is_ignored(kind: SignalKind) -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    Ok(set.ok_or(io::ErrorKind::InvalidData)? & 1 << (kind.as_raw_value() - 1) != 0)
}
