//! Attach: copies the caller's standard input to a child, and reports the child's output and end to the caller.

use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::attach_input::Input;
use farfork_api::v1::attach_output::Output;
use tokio::io::AsyncWriteExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt as _, once};
use tonic::{Code, Status, Streaming};

use super::route::{PeerStream, RequestTarget, child_target, forwarded_failure, parse_child_id};
use super::stream::{ResponseSender, memory_loss_message, output_failure, relay_stream, send, spawn_stream};
use crate::children::{Child, HeldChild, OutputStream};
use crate::node::Node;

/// Attaches the caller to the child that its first message names.
pub(super) async fn attach(
    node: &Arc<Node>,
    mut inputs: Streaming<v1::AttachInput>,
) -> Result<ReceiverStream<Result<v1::AttachOutput, Status>>, Failure> {
    let first = inputs.message().await.map_err(forwarded_failure("attach"))?;
    let Some(v1::AttachInput { input: Some(Input::Child(text)) }) = &first else {
        return Err(Failure::new(Code::InvalidArgument, "attach", "its first message names no child"));
    };
    let id = parse_child_id(text)?;
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let (node, child) = (node.clone(), node.children.hold(&id)?);
            tokio::spawn(forward_stdin(child.child().clone(), inputs));
            Ok(spawn_stream(|sink| async move { forward_output(&node, &child, &sink).await }))
        }
        RequestTarget::Remote(mut owner) => {
            // An unreadable input ends the stream, like a disconnect of the caller.
            let inputs = once(first).chain(inputs.map(Result::ok)).map_while(|input| input);
            let object = format!("child {id}");
            let outputs = PeerStream::open(owner.attach(inputs), node, id.node(), &object).await?;
            Ok(spawn_stream(|sink| async move { relay_stream(outputs, &sink).await }))
        }
    }
}

/// Forwards inputs until they end. The child then reads end of file at its standard input.
async fn forward_stdin(child: Arc<Child>, mut inputs: Streaming<v1::AttachInput>) {
    let mut stdin = child.take_stdin();
    loop {
        // Stop when the child has ended: it reads nothing more.
        let message = tokio::select! {
            message = inputs.message() => message,
            _ = child.wait_exit() => return,
        };
        let Ok(Some(v1::AttachInput { input: Some(input) })) = message else { return };
        match input {
            Input::Child(_) => {}
            Input::StdinClosed(_) => stdin = None,
            Input::Stdin(bytes) => {
                let Some(pipe) = &mut stdin else { continue };
                let is_written = tokio::select! {
                    written = pipe.write_all(&bytes) => written.is_ok(),
                    _ = child.wait_exit() => false,
                };
                // The child has closed its standard input, so discard the rest.
                if !is_written {
                    stdin = None;
                }
            }
        }
    }
}

async fn forward_output(
    node: &Node,
    child: &HeldChild,
    sink: &ResponseSender<v1::AttachOutput>,
) -> Result<(), Failure> {
    let copy = |stream: OutputStream, wrap: fn(Vec<u8>) -> Output| async move {
        let mut output = child.open_output(stream, Some(node.children.output_watcher()))?;
        while let Some(piece) = output.next_chunk().await.map_err(|error| output_failure(child, &error))? {
            if send(sink, v1::AttachOutput { output: Some(wrap(piece)) }).await.is_err() {
                break;
            }
        }
        Ok::<(), Failure>(())
    };
    tokio::try_join!(copy(OutputStream::Stdout, Output::Stdout), copy(OutputStream::Stderr, Output::Stderr))?;
    child.wait_exit().await;
    if child.has_result() {
        copy(OutputStream::Result, Output::Result).await?;
    }
    let last = memory_loss_message(child).map(Output::Stderr).into_iter().chain([Output::Ended((&**child).into())]);
    for output in last {
        // The caller may have disconnected.
        let _ = send(sink, v1::AttachOutput { output: Some(output) }).await;
    }
    child.mark_collected();
    Ok(())
}
