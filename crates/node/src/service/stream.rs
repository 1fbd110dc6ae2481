//! Response streams, and the output of children as such a stream. A stream ends when the caller disconnects.

use std::future::Future;
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::limits::STREAM_MESSAGES_MAX;
use farfork_api::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::route::{PeerStream, RequestTarget, child_target, parse_child_id};
use crate::children::{Child, OutputStream};
use crate::node::Node;

/// Sends a stream's messages.
pub(super) type ResponseSender<T> = mpsc::Sender<Result<T, Status>>;

/// Receives a stream's messages.
pub(super) type ResponseReceiver<T> = mpsc::Receiver<Result<T, Status>>;

/// The caller has disconnected.
pub(super) struct CallerDisconnected;

/// Sends a message to the caller.
pub(super) async fn send<T>(sink: &ResponseSender<T>, message: T) -> Result<(), CallerDisconnected> {
    sink.send(Ok(message)).await.map_err(|_| CallerDisconnected)
}

/// Returns a stream that a separate task fills, until `fill` completes or the caller disconnects. A failure is the last
/// message of the stream.
pub(super) fn spawn_stream<T, F>(fill: impl FnOnce(ResponseSender<T>) -> F) -> ReceiverStream<Result<T, Status>>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (sink, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
    let filling = fill(sink.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = sink.closed() => {}
            result = filling => if let Err(failure) = result {
                // The caller may have disconnected.
                let _ = sink.send(Err(failure.into())).await;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Relays the messages of another node's stream to the caller.
pub(super) async fn relay_stream<T>(mut from: PeerStream<T>, sink: &ResponseSender<T>) -> Result<(), Failure> {
    while let Some(message) = from.next().await? {
        if send(sink, message).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Streams the output of a child.
pub(super) async fn logs(
    node: &Arc<Node>,
    request: v1::LogsRequest,
) -> Result<ReceiverStream<Result<v1::LogChunk, Status>>, Failure> {
    let id = parse_child_id(&request.child)?;
    let object = format!("child {id}");
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let (node, child) = (node.clone(), node.children.hold(&id)?);
            Ok(spawn_stream(|sink| async move { logs_local(&node, &child, &request, &sink).await }))
        }
        RequestTarget::Remote(mut owner) => {
            let chunks = PeerStream::open(owner.logs(request), node, id.node(), &object).await?;
            Ok(spawn_stream(|sink| async move { relay_stream(chunks, &sink).await }))
        }
    }
}

async fn logs_local(
    node: &Node,
    child: &Child,
    request: &v1::LogsRequest,
    sink: &ResponseSender<v1::LogChunk>,
) -> Result<(), Failure> {
    let copy = |stream: OutputStream, name: v1::OutputStream, is_wanted: bool| async move {
        if !is_wanted {
            return Ok::<(), Failure>(());
        }
        let watch = request.follow.then(|| node.children.output_watcher());
        let mut output = child.open_output(stream, watch)?;
        while let Some(data) = output.next_chunk().await.map_err(|error| output_failure(child, &error))? {
            if send(sink, v1::LogChunk { stream: name.into(), data }).await.is_err() {
                return Ok(());
            }
        }
        if let (OutputStream::Stderr, Some(data)) = (stream, memory_loss_message(child)) {
            // The caller may have disconnected.
            let _ = send(sink, v1::LogChunk { stream: name.into(), data }).await;
        }
        Ok(())
    };
    let only = request.only();
    tokio::try_join!(
        copy(OutputStream::Stdout, v1::OutputStream::Stdout, only != v1::OutputStream::Stderr),
        copy(OutputStream::Stderr, v1::OutputStream::Stderr, only != v1::OutputStream::Stdout),
    )?;
    Ok(())
}

/// Returns a line to add at the end of a child's standard error, if the child's memory was lost.
pub(super) fn memory_loss_message(child: &Child) -> Option<Vec<u8>> {
    child.memory_loss_cause().map(|text| format!("farfork: {text}\n").into_bytes())
}

/// Creates the failure to read a child's output.
pub(super) fn output_failure(child: &Child, error: &std::io::Error) -> Failure {
    child.failure(tonic::Code::Internal, format!("cannot read its output: {error}"))
}
