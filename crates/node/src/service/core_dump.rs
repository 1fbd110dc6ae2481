//! Core files of children. Missing pages are fetched first. Then the child is stopped while its memory is read, and the
//! file is sent to the caller in pieces.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::core_event::Event;
use farfork_fork::core_file::{self, CoreError, CoreSummary};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::route::{PeerStream, RequestTarget, child_target, parse_child_id};
use super::settle::report_until_settled;
use super::stream::{ResponseSender, relay_stream, send, spawn_stream};
use crate::children::Child;
use crate::node::Node;

/// Longest wait until the caller accepts a piece. The child is stopped during that time.
const CHUNK_SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the core file of a child.
pub(super) async fn dump_core(
    node: &Arc<Node>,
    request: v1::CoreRequest,
) -> Result<ReceiverStream<Result<v1::CoreEvent, Status>>, Failure> {
    let id = parse_child_id(&request.child)?;
    let object = format!("child {id}");
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let (node, child) = (node.clone(), node.children.get(&id)?);
            Ok(spawn_stream(|sink| async move { dump_core_local(&node, &child, &sink).await }))
        }
        RequestTarget::Remote(mut owner) => {
            let events = PeerStream::open(owner.core(request), node, id.node(), &object).await?;
            Ok(spawn_stream(|sink| async move { relay_stream(events, &sink).await }))
        }
    }
}

async fn dump_core_local(
    node: &Arc<Node>,
    child: &Arc<Child>,
    sink: &ResponseSender<v1::CoreEvent>,
) -> Result<(), Failure> {
    let settling = |progress| v1::CoreEvent { event: Some(Event::Settling(progress)) };
    report_until_settled(node, child, sink, settling).await?;
    let summary = write_core(child.host_pid()?, sink.clone()).await;
    let summary = summary.map_err(|error| child.failure(Code::FailedPrecondition, error))?;
    let end = v1::CoreEnd {
        file_bytes: summary.file_bytes,
        threads: u32::try_from(summary.threads).unwrap_or(u32::MAX),
        stopped_us: u64::try_from(summary.stop_duration.as_micros()).unwrap_or(u64::MAX),
    };
    // The caller may have disconnected.
    let _ = send(sink, v1::CoreEvent { event: Some(Event::End(end)) }).await;
    Ok(())
}

/// Reads a process in a separate thread. The thread is the process's tracer: its end releases the process, even after a
/// panic.
async fn write_core(pid: i32, sink: ResponseSender<v1::CoreEvent>) -> Result<CoreSummary, CoreError> {
    let runtime = Handle::current();
    let (answer, answered) = oneshot::channel();
    let work = move || {
        let mut take = |offset: u64, data: &[u8]| {
            let piece = v1::CorePiece { offset, data: data.to_vec() };
            let sending = send(&sink, v1::CoreEvent { event: Some(Event::Piece(piece)) });
            // Create the timeout inside the runtime: it needs the runtime's timer.
            match runtime.block_on(async { timeout(CHUNK_SEND_TIMEOUT, sending).await }) {
                Ok(Ok(())) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        // The requester may have disconnected.
        let _ = answer.send(core_file::dump_core(pid, &mut take));
    };
    let read_error = |source: io::Error| CoreError::Read { what: "memory", source };
    thread::Builder::new().name(format!("core-{pid}")).spawn(work).map_err(read_error)?;
    answered
        .await
        .unwrap_or_else(|_| Err(read_error(io::Error::other("the thread that reads it panicked; see the node's log"))))
}
