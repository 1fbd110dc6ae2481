//! Tend: waits for children for a program, wherever that runs, and sees to it that they end with who waits.

use std::sync::Arc;

use farfork_wire::ChildId;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::route::child_id;
use super::stream::{CallerGone, Sink, filled_by, send, unreadable};
use crate::api::v1;
use crate::api::v1::tend_output::Event;
use crate::children::{Exit, HeldChild, Stream as File};
use crate::failure::Failure;
use crate::node::Node;

/// Waits for each child of this node that comes; see `Peer.Tend`.
pub(crate) fn tend(
    node: &Arc<Node>,
    mut children: impl Stream<Item = v1::TendInput> + Send + Unpin + 'static,
) -> ReceiverStream<Result<v1::TendOutput, Status>> {
    let node = node.clone();
    filled_by(|sink| async move {
        let mut tasks = JoinSet::new();
        while let Some(v1::TendInput { child }) = children.next().await {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(tend_one(node.clone(), child, sink.clone()));
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    })
}

/// A child that ends with this, unless it has ended.
struct Ward(HeldChild);

impl Drop for Ward {
    fn drop(&mut self) {
        if self.0.lives() {
            tracing::info!(child = %self.0.record().id, "killed: who waited for it has gone");
            // It may have ended by itself.
            let _ = self.0.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
        }
    }
}

async fn tend_one(node: Arc<Node>, child: String, sink: Sink<v1::TendOutput>) {
    let told = match child_id(&child).and_then(|id| node.children.hold(&id)) {
        Ok(known) => see_off(Ward(known), &sink).await,
        Err(failure) => Err(failure),
    };
    match told {
        // Nobody will ask for it again. Not here, where it would be given up when the program, which knows by now, goes.
        Ok(Some(id)) => drop(tokio::spawn(async move { node.children.remove(&id).await })),
        Ok(None) => {}
        Err(failure) => drop(send(&sink, output(child, Event::Error(failure.into()))).await),
    }
}

/// Waits for a child's end and tells of it; gives its id if all went well with it.
async fn see_off(ward: Ward, sink: &Sink<v1::TendOutput>) -> Result<Option<ChildId>, Failure> {
    let child = &ward.0;
    let id = &child.record().id;
    let ended = child.wait().await;
    if child.has_result() {
        let mut result = child.output(File::Result, None)?;
        while let Some(piece) = result.next().await.map_err(|error| unreadable(child, &error))? {
            if let Err(CallerGone) = send(sink, output(id.to_string(), Event::Result(piece))).await {
                return Ok(None);
            }
        }
    }
    let is_told = send(sink, output(id.to_string(), Event::Ended((&**child).into()))).await.is_ok();
    if is_told {
        child.collect();
    }
    Ok((is_told && ended.exit == Exit::Code(0)).then(|| id.clone()))
}

fn output(child: String, event: Event) -> v1::TendOutput {
    v1::TendOutput { child, event: Some(event) }
}
