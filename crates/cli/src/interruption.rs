//! Waits for whoever wants this command to end, so that it can end what it has started.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when Ctrl-C was pressed, the terminal was closed, or somebody sent SIGTERM.
pub(crate) async fn interrupted() {
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
