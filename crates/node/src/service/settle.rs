//! Settle: fetches the missing pages of a child, and reports the progress to the caller. The pager fetches the pages,
//! even if the caller disconnects; this module polls it.

use std::sync::Arc;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_fork::pager::{SettleProgress, SettleState};
use farfork_wire::PAGE_SIZE;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::route::{PeerStream, RequestTarget, child_target, parse_child_id};
use super::stream::{ResponseSender, relay_stream, send, spawn_stream};
use crate::children::Child;
use crate::node::Node;

/// Interval between polls of the pager's progress: users hardly notice a delay of this length.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Starts to settle a child, and reports its progress.
pub(super) async fn settle(
    node: &Arc<Node>,
    request: v1::SettleRequest,
) -> Result<ReceiverStream<Result<v1::SettleProgress, Status>>, Failure> {
    let id = parse_child_id(&request.child)?;
    let object = format!("child {id}");
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let (node, child) = (node.clone(), node.children.get(&id)?);
            Ok(spawn_stream(
                |sink| async move { report_until_settled(&node, &child, &sink, |progress| progress).await },
            ))
        }
        RequestTarget::Remote(mut owner) => {
            let progress = PeerStream::open(owner.settle(request), node, id.node(), &object).await?;
            Ok(spawn_stream(|sink| async move { relay_stream(progress, &sink).await }))
        }
    }
}

/// Reports progress until the child has settled, or the caller disconnects.
///
/// # Errors
/// The child cannot settle.
pub(super) async fn report_until_settled<T>(
    node: &Arc<Node>,
    child: &Arc<Child>,
    sink: &ResponseSender<T>,
    event: impl Fn(v1::SettleProgress) -> T,
) -> Result<(), Failure> {
    let mut begin = true;
    loop {
        let progress = poll_progress(node, child, begin).await?;
        let is_settled = progress.state == SettleState::Settled;
        // If the caller disconnects, only the reports end: the pager continues to settle the child.
        if send(sink, event(to_message(&progress))).await.is_err() || is_settled {
            return Ok(());
        }
        begin = false;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the progress of a child. With `begin`, the pager starts to settle the child.
async fn poll_progress(node: &Arc<Node>, child: &Arc<Child>, begin: bool) -> Result<SettleProgress, Failure> {
    if !child.is_alive() {
        return Err(child.ended_failure());
    }
    let (task_node, task_child) = (node.clone(), child.clone());
    let progress = node.run_blocking(move || task_child.settle_memory(&task_node.pager, begin)).await?;
    match &progress.state {
        SettleState::Failed(reason) => Err(child
            .failure(Code::FailedPrecondition, format!("it cannot settle: {reason}"))
            .with_next_step("it runs on as before; see its seed with `farfork seeds`, then try again")),
        _ => Ok(progress),
    }
}

fn to_message(progress: &SettleProgress) -> v1::SettleProgress {
    v1::SettleProgress {
        total_bytes: progress.total_pages * PAGE_SIZE,
        missing_bytes: progress.missing_pages * PAGE_SIZE,
        is_settled: progress.state == SettleState::Settled,
    }
}
