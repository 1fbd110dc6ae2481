//! Streams of answers, and the output of children as such. A caller that goes away ends them; `wait` has the ends of children.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::route::{Place, child_id, passed_on, place_of_child};
use crate::api::v1;
use crate::children::{Child, Stream};
use crate::failure::Failure;
use crate::limits::STREAM_MESSAGES_MAX;
use crate::node::Node;

/// Where a stream's messages go.
pub(super) type Sink<T> = mpsc::Sender<Result<T, Status>>;

/// Where they come from.
pub(super) type Answers<T> = mpsc::Receiver<Result<T, Status>>;

/// The caller reads no more.
pub(super) struct CallerGone;

/// Sends a message to the caller.
pub(super) async fn send<T>(sink: &Sink<T>, message: T) -> Result<(), CallerGone> {
    sink.send(Ok(message)).await.map_err(|_| CallerGone)
}

/// A stream that a task of its own fills, until it is done or the caller goes away. A failure ends the stream.
pub(super) fn filled_by<T, F>(fill: impl FnOnce(Sink<T>) -> F) -> ReceiverStream<Result<T, Status>>
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
                // The caller may have gone; then nobody needs to know.
                let _ = sink.send(Err(failure.into())).await;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Passes the messages of another node on.
pub(super) async fn relay<T>(mut from: Streaming<T>, sink: &Sink<T>, object: &str) -> Result<(), Failure> {
    while let Some(message) = from.message().await.map_err(passed_on(object))? {
        if send(sink, message).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// What a child wrote.
pub(super) async fn logs(
    node: &Arc<Node>,
    request: v1::LogsRequest,
) -> Result<ReceiverStream<Result<v1::LogChunk, Status>>, Failure> {
    let id = child_id(&request.child)?;
    let object = format!("child {id}");
    match place_of_child(node, &id)? {
        Place::Here => {
            let (node, child) = (node.clone(), node.children.hold(&id)?);
            Ok(filled_by(|sink| async move { logs_here(&node, &child, &request, &sink).await }))
        }
        Place::There(mut owner) => {
            let chunks = owner.logs(request).await.map_err(passed_on(&object))?.into_inner();
            Ok(filled_by(|sink| async move { relay(chunks, &sink, &object).await }))
        }
    }
}

async fn logs_here(
    node: &Node,
    child: &Child,
    request: &v1::LogsRequest,
    sink: &Sink<v1::LogChunk>,
) -> Result<(), Failure> {
    let copy = |stream: Stream, name: v1::OutputStream, is_wanted: bool| async move {
        if !is_wanted {
            return Ok::<(), Failure>(());
        }
        let watch = request.follow.then(|| node.children.output());
        let mut output = child.output(stream, watch)?;
        while let Some(data) = output.next().await.map_err(|error| unreadable(child, &error))? {
            if send(sink, v1::LogChunk { stream: name.into(), data }).await.is_err() {
                return Ok(());
            }
        }
        if let (Stream::Stderr, Some(data)) = (stream, verdict(child)) {
            // A caller that has gone needs no answer.
            let _ = send(sink, v1::LogChunk { stream: name.into(), data }).await;
        }
        Ok(())
    };
    let only = request.only();
    tokio::try_join!(
        copy(Stream::Stdout, v1::OutputStream::Stdout, only != v1::OutputStream::Stderr),
        copy(Stream::Stderr, v1::OutputStream::Stderr, only != v1::OutputStream::Stdout),
    )?;
    Ok(())
}

/// What stands behind the last that a child wrote to its standard error, where its memory was lost: why it ended.
pub(super) fn verdict(child: &Child) -> Option<Vec<u8>> {
    child.memory_lost().map(|text| format!("farfork: {text}\n").into_bytes())
}

/// A failure to read what a child wrote.
pub(super) fn unreadable(child: &Child, error: &std::io::Error) -> Failure {
    child.failure(tonic::Code::Internal, format!("what it wrote cannot be read: {error}"))
}
