//! Detects a request to end this command: Ctrl-C, SIGTERM or SIGHUP. A command that has started something waits for it,
//! and cleans up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Returns when Ctrl-C was pressed, the terminal was closed, or SIGTERM was sent.
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

/// As `wait_for_interrupt`, for synchronous work, which polls the flag.
#[derive(Debug)]
pub struct InterruptFlag(Arc<AtomicBool>);

impl InterruptFlag {
    /// Looks out from now on.
    ///
    /// # Errors
    /// There can be no thread for it.
    pub fn watch() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let flag = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&flag);
        let watch = move || {
            runtime.block_on(wait_for_interrupt());
            watched.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().spawn(watch).context("a thread that looks out for signals")?;
        Ok(Self(flag))
    }

    /// Whether a signal has asked this command to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
