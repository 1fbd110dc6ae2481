//! Supervises the node's pager: probes it, and starts another when keeper, pager and holder have all died. The new
//! pager gets the children of the old one. While the pager does not reply, the node is not ready.
//!
//! A pager that dies alone is replaced by its keeper, without the daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::async_fd::watch_readable;
use crate::node::Node;
use crate::pager_link::PagerStatus;

/// Interval between probes of the pager while its connection is open. A probe detects a pager that hangs.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// First pause before the next start of a pager that failed to start or ended soon. Each further pause is twice as
/// long.
const RESTART_BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause before the next start. After a full or lost run directory is repaired, the pager starts within this
/// time.
const RESTART_BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Time after a restart during which children are handed back repeatedly. A child that was being started when the old
/// pager ended is not in the table of children yet.
const HAND_BACK_PERIOD: Duration = Duration::from_secs(60);

/// If a pager lived at least this long, the next one is started without a pause.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// Shortest time between two probes. A pager with many clients closes idle connections, and each close causes a probe.
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Supervises the pager until the daemon stops.
///
/// ```text
///             connection ends, or a probe is due            answers
///   running ────────────────────────────────────▶ probe ───────────────▶ running: the node is ready
///                                                  │  ▲
///                             no process listens   │  │ after a pause, longer each time
///                                                  ▼  │
///                                                restart ──▶ children handed back
/// ```
pub(crate) async fn run(node: Arc<Node>) {
    let mut pause = RESTART_BACKOFF_MIN;
    // Time of the last attempt to start a pager.
    let mut started_at: Option<Instant> = None;
    let mut was_started = true;
    loop {
        let task_node = node.clone();
        let answer = tokio::task::spawn_blocking(move || task_node.pager.probe()).await;
        match answer {
            Ok(PagerStatus::Running) => {
                if node.pager.set_ready() {
                    tracing::info!("the pager answers again: this node takes children");
                }
                if started_at.is_some_and(|at| at.elapsed() < HAND_BACK_PERIOD) {
                    let task_node = node.clone();
                    let _ = tokio::task::spawn_blocking(move || task_node.children.hand_back_children()).await;
                }
                wait_for_change(&node).await;
            }
            Ok(PagerStatus::Unresponsive(reason)) => {
                if node.pager.set_not_ready(&reason) {
                    tracing::error!(%reason, "this node takes no children: its pager does not answer");
                }
                tokio::time::sleep(RESTART_BACKOFF_MAX).await;
            }
            Ok(PagerStatus::Gone) => {
                let was_well = started_at.is_none_or(|at| at.elapsed() >= HEALTHY_AFTER);
                if was_well {
                    pause = RESTART_BACKOFF_MIN;
                } else {
                    if was_started {
                        node.pager.set_not_ready("its pager ended soon after it was started");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(RESTART_BACKOFF_MAX);
                }
                started_at = Some(Instant::now());
                was_started = restart(&node).await;
            }
            Err(panic) => {
                tracing::error!(%panic, "the probe of the pager panicked; trying again");
                tokio::time::sleep(RESTART_BACKOFF_MAX).await;
            }
        }
    }
}

/// Starts the pager again, and hands the children back to it. Returns whether the start succeeded.
async fn restart(node: &Arc<Node>) -> bool {
    tracing::error!("pager, keeper and holder have ended; starting the pager again");
    let task_node = node.clone();
    let restarted = tokio::task::spawn_blocking(move || {
        // No pager serves the memory of the zygotes and of further copies of them.
        task_node.engine.stop_zygotes();
        task_node.pager.restart()?;
        task_node.children.hand_back_children();
        Ok::<(), crate::pager_link::PagerError>(())
    });
    let Ok(Err(error)) = restarted.await else { return true };
    let reason = format!("its pager cannot be started: {error}");
    if node.pager.set_not_ready(&reason) {
        tracing::error!(%reason, "this node takes no children; trying again");
    }
    false
}

/// Waits until the pager closes its end of a connection, or a probe is due.
async fn wait_for_change(node: &Arc<Node>) {
    let due = tokio::time::sleep(PROBE_INTERVAL);
    let ended = async {
        match node.pager.connect().and_then(watch_readable) {
            Ok(connection) => drop(connection.readable().await),
            Err(error) => tracing::debug!(%error, "cannot watch the connection to the pager; only probing it"),
        }
        tokio::time::sleep(PROBE_INTERVAL_MIN).await;
    };
    tokio::select! {
        () = due => {}
        () = ended => {}
    }
}
