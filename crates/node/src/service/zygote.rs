//! What a fan-out waits for, and children that are foretold: their seed's zygote. Of a fan-out it is made beside the first child of the fork, and the others
//! are forked from that. Whatever becomes of it, they begin; without one, each from the seed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::engine::{Hatching, SeedAccess, StartOptions};
use crate::limits::HATCHING_TIMEOUT;
use crate::node::Node;

/// Between two looks whether a zygote has what it is to be given, which takes some ten milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until the zygote for children that are started so has what it is to be given, at most [`HATCHING_TIMEOUT`]. Makes it where
/// there is none; returns at once where there is to be none.
pub(super) async fn stands(node: Arc<Node>, source: SeedAccess, options: StartOptions, why: Hatching) {
    if !node.engine.copies_zygotes(&options) {
        return;
    }
    let seed = source.key.seed.clone();
    let stands = async {
        if node.engine.zygotes().is_unknown(&seed) {
            let here = node.clone();
            in_a_thread(move || here.engine.hatch(&source, &options, (why, Instant::now() + HATCHING_TIMEOUT))).await;
        }
        node.engine.zygotes().settled(&seed).await;
        while let Some(zygote) = node.engine.zygotes().begun(&seed)
            && in_a_thread(move || zygote.is_filling()).await == Some(true)
        {
            sleep(LOOK_INTERVAL).await;
        }
    };
    if timeout(HATCHING_TIMEOUT, stands).await.is_err() {
        tracing::warn!(%seed, "its zygote is not waited for any longer: children are begun without");
    }
}

/// What blocks has a thread of its own; `None` after a panic there.
pub(super) async fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
