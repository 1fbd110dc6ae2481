//! Waits until a seed's zygote is filled, for a fan-out or a speculative prewarm. Creates the zygote if there is none.
//!
//! In a fan-out, the zygote is made while the first child starts, and the other children are forked from it. If the
//! zygote fails, the other children are restored from the seed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::limits::ZYGOTE_TIMEOUT;
use tokio::time::{sleep, timeout};

use crate::engine::{SeedAccess, StartOptions, ZygoteTrigger};
use crate::node::Node;

/// Interval between checks whether a zygote is filled. Filling a zygote takes tens of milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until the zygote for children with these options is filled, at most [`ZYGOTE_TIMEOUT`]. Creates the zygote if
/// there is none. Returns at once if such children cannot be copies of a zygote.
pub(super) async fn wait_zygote_filled(node: Arc<Node>, source: SeedAccess, options: StartOptions, why: ZygoteTrigger) {
    if !node.engine.can_copy_zygote(&options) {
        return;
    }
    let seed = source.key.seed.clone();
    let filled = async {
        if node.engine.zygote_cache().has_no_entry(&seed) {
            let task_node = node.clone();
            run_in_thread(move || {
                task_node.engine.create_zygote(&source, &options, why, Instant::now() + ZYGOTE_TIMEOUT)
            })
            .await;
        }
        node.engine.zygote_cache().wait_created(&seed).await;
        while let Some(zygote) = node.engine.zygote_cache().find_filling(&seed)
            && run_in_thread(move || zygote.is_filling()).await == Some(true)
        {
            sleep(POLL_INTERVAL).await;
        }
    };
    if timeout(ZYGOTE_TIMEOUT, filled).await.is_err() {
        tracing::warn!(%seed, "its zygote was not filled in time; starting children without it");
    }
}

/// Runs blocking work in a separate thread; `None` if it panics.
pub(super) async fn run_in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
