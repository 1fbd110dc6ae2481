//! Core files of children: pages that are missing come first, then the child stands still while its memory is read, and all
//! of it goes to the caller piece by piece.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farfork_fork::core_file::{self, CoreError, CoreSummary};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::route::{Place, child_id, passed_on, place_of_child};
use super::settle::until_settled;
use super::stream::{Sink, filled_by, relay, send};
use crate::api::v1;
use crate::api::v1::core_event::Event;
use crate::children::Child;
use crate::failure::Failure;
use crate::node::Node;

/// For a caller to take a piece: the child stands still meanwhile.
const TAKE_LIMIT: Duration = Duration::from_secs(10);

/// Gives the core file of a child.
pub(super) async fn core(
    node: &Arc<Node>,
    request: v1::CoreRequest,
) -> Result<ReceiverStream<Result<v1::CoreEvent, Status>>, Failure> {
    let id = child_id(&request.child)?;
    let object = format!("child {id}");
    match place_of_child(node, &id)? {
        Place::Here => {
            let (node, child) = (node.clone(), node.children.get(&id)?);
            Ok(filled_by(|sink| async move { core_here(&node, &child, &sink).await }))
        }
        Place::There(mut owner) => {
            let events = owner.core(request).await.map_err(passed_on(&object))?.into_inner();
            Ok(filled_by(|sink| async move { relay(events, &sink, &object).await }))
        }
    }
}

async fn core_here(node: &Arc<Node>, child: &Arc<Child>, sink: &Sink<v1::CoreEvent>) -> Result<(), Failure> {
    let settling = |progress| v1::CoreEvent { event: Some(Event::Settling(progress)) };
    until_settled(node, child, sink, settling).await?;
    let summary = dump(child.host_pid()?, sink.clone()).await;
    let summary = summary.map_err(|error| child.failure(Code::FailedPrecondition, error))?;
    let end = v1::CoreEnd {
        file_bytes: summary.file_bytes,
        threads: u32::try_from(summary.threads).unwrap_or(u32::MAX),
        stopped_us: u64::try_from(summary.stopped.as_micros()).unwrap_or(u64::MAX),
    };
    // A caller that has gone needs no answer.
    let _ = send(sink, v1::CoreEvent { event: Some(Event::End(end)) }).await;
    Ok(())
}

/// Reads a process in a thread of its own, whose end lets go of it, whatever went wrong.
async fn dump(pid: i32, sink: Sink<v1::CoreEvent>) -> Result<CoreSummary, CoreError> {
    let runtime = Handle::current();
    let (answer, answered) = oneshot::channel();
    let work = move || {
        let mut take = |offset: u64, data: &[u8]| {
            let piece = v1::CorePiece { offset, data: data.to_vec() };
            let sending = send(&sink, v1::CoreEvent { event: Some(Event::Piece(piece)) });
            // The clock is the runtime's: this thread has none by itself.
            match runtime.block_on(async { timeout(TAKE_LIMIT, sending).await }) {
                Ok(Ok(())) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        // Where nobody waits any more, nobody needs to know.
        let _ = answer.send(core_file::dump(pid, &mut take));
    };
    let broken = |source: io::Error| CoreError::Read { what: "memory", source };
    thread::Builder::new().name(format!("core-{pid}")).spawn(work).map_err(broken)?;
    answered.await.unwrap_or_else(|_| Err(broken(io::Error::other("its reader broke off; see the node's log"))))
}
