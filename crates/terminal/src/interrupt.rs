//! Detects a request to end this command: Ctrl-C, SIGTERM or SIGHUP. A command that must clean up at its end waits for this
//! request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Returns when Ctrl-C was pressed, the terminal was closed, or SIGTERM was sent. Never returns if the signal handlers
/// cannot be installed.
pub async fn wait_for_interrupt() {
    let handlers = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = handlers else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// A flag that is set when [`wait_for_interrupt`] returns. Synchronous work polls it.
#[derive(Debug)]
pub struct InterruptFlag(Arc<AtomicBool>);

impl InterruptFlag {
    /// Starts a thread that waits for the signals and sets the flag.
    ///
    /// # Errors
    /// The thread or its runtime cannot be created.
    pub fn watch() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let flag = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&flag);
        let watch = move || {
            runtime.block_on(wait_for_interrupt());
            watched.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().spawn(watch).context("a thread that waits for signals")?;
        Ok(Self(flag))
    }

    /// Whether one of the signals was received.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
