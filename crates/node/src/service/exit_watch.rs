//! Tend: waits for children on behalf of a program on any node, and kills them when the program's stream ends.

use std::sync::Arc;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::tend_output::Event;
use farfork_wire::ChildId;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::route::parse_child_id;
use super::stream::{CallerDisconnected, ResponseSender, output_failure, send, spawn_stream};
use crate::children::{Child, Exit, HeldChild, OutputStream as File};
use crate::node::Node;

/// Number of polls after which a child that was started for a program is killed if no Tend stream watches it. The
/// program's node requests first the child, then the stream, and may have died in between. Polls are counted instead of
/// time, so that a suspended machine does not use up the limit.
const WATCH_POLLS_MAX: u32 = 20;
const WATCH_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Reports the end of each child of this node that the stream names; see `Peer.Tend`.
pub(crate) fn watch_children(
    node: &Arc<Node>,
    mut children: impl Stream<Item = v1::TendInput> + Send + Unpin + 'static,
) -> ReceiverStream<Result<v1::TendOutput, Status>> {
    let node = node.clone();
    spawn_stream(|sink| async move {
        let mut tasks = JoinSet::new();
        while let Some(v1::TendInput { child }) = children.next().await {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(watch_child(node.clone(), child, sink.clone()));
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    })
}

/// Kills the child when dropped, unless it has ended.
struct KillOnDrop(HeldChild);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.0.is_alive() {
            tracing::info!(child = %self.0.record().id, "killed: the stream that waited for it has closed");
            kill(self.0.child());
        }
    }
}

fn kill(child: &Child) {
    // The child may have ended on its own.
    let _ = child.kill_for_program();
}

/// Kills a child if no stream watches it in time. Must be called within the runtime.
pub(super) fn kill_unless_watched(child: &Arc<Child>) {
    let child = Arc::downgrade(child);
    tokio::spawn(async move {
        let find_unwatched = || child.upgrade().filter(|child| child.is_alive() && !child.is_exit_watched());
        for _ in 0..WATCH_POLLS_MAX {
            sleep(WATCH_POLL_INTERVAL).await;
            if find_unwatched().is_none() {
                return;
            }
        }
        if let Some(child) = find_unwatched() {
            tracing::info!(child = %child.record().id, "killed: the node that started it for a program does not wait for it");
            kill(&child);
        }
    });
}

async fn watch_child(node: Arc<Node>, child: String, sink: ResponseSender<v1::TendOutput>) {
    let reported = match parse_child_id(&child).and_then(|id| node.children.hold(&id)) {
        Ok(known) => {
            known.child().set_exit_watched();
            report_exit(KillOnDrop(known), &sink).await
        }
        Err(failure) => Err(failure),
    };
    match reported {
        // The program has the report, so no further request names this child. Remove it in a separate task, which
        // outlives this stream.
        Ok(Some(id)) => drop(tokio::spawn(async move { node.children.remove(&id).await })),
        Ok(None) => {}
        Err(failure) => drop(send(&sink, to_output(child, Event::Error(failure.into()))).await),
    }
}

/// Waits for a child's end and reports it. Returns the child's id if it exited with code 0 and the report was sent.
async fn report_exit(
    kill_on_drop: KillOnDrop,
    sink: &ResponseSender<v1::TendOutput>,
) -> Result<Option<ChildId>, Failure> {
    let child = &kill_on_drop.0;
    let id = &child.record().id;
    let ended = child.wait_exit().await;
    if child.has_result() {
        let mut result = child.open_output(File::Result, None)?;
        while let Some(piece) = result.next_chunk().await.map_err(|error| output_failure(child, &error))? {
            if let Err(CallerDisconnected) = send(sink, to_output(id.to_string(), Event::Result(piece))).await {
                return Ok(None);
            }
        }
    }
    let is_sent = send(sink, to_output(id.to_string(), Event::Ended((&**child).into()))).await.is_ok();
    if is_sent {
        child.mark_collected();
    }
    Ok((is_sent && ended.exit == Exit::Code(0)).then(|| id.clone()))
}

fn to_output(child: String, event: Event) -> v1::TendOutput {
    v1::TendOutput { child, event: Some(event) }
}
