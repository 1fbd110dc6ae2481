//! Attach: a caller's standard input goes to a child, what the child writes comes back, then its end.

use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt as _, once};
use tonic::{Code, Status, Streaming};

use super::route::{Place, child_id, passed_on, place_of_child};
use super::stream::{Sink, filled_by, relay, send, unreadable, verdict};
use crate::api::v1;
use crate::api::v1::attach_input::Input;
use crate::api::v1::attach_output::Output;
use crate::children::{Child, HeldChild, Stream};
use crate::failure::Failure;
use crate::node::Node;

/// Attaches the caller to the child that its first message names.
pub(super) async fn attach(
    node: &Arc<Node>,
    mut inputs: Streaming<v1::AttachInput>,
) -> Result<ReceiverStream<Result<v1::AttachOutput, Status>>, Failure> {
    let first = inputs.message().await.map_err(passed_on("attach"))?;
    let Some(v1::AttachInput { input: Some(Input::Child(text)) }) = &first else {
        return Err(Failure::new(Code::InvalidArgument, "attach", "its first message names no child"));
    };
    let id = child_id(text)?;
    match place_of_child(node, &id)? {
        Place::Here => {
            let (node, child) = (node.clone(), node.children.hold(&id)?);
            tokio::spawn(pass_inputs_on(child.child().clone(), inputs));
            Ok(filled_by(|sink| async move { pass_outputs_on(&node, &child, &sink).await }))
        }
        Place::There(mut owner) => {
            // An input that cannot be read ends them all, as the caller's going away does.
            let inputs = once(first).chain(inputs.map(Result::ok)).map_while(|input| input);
            let object = format!("child {id}");
            let outputs = owner.attach(inputs).await.map_err(passed_on(&object))?.into_inner();
            Ok(filled_by(|sink| async move { relay(outputs, &sink, &object).await }))
        }
    }
}

/// Until the inputs end, which the child sees as the end of its standard input.
async fn pass_inputs_on(child: Arc<Child>, mut inputs: Streaming<v1::AttachInput>) {
    let mut stdin = child.take_stdin();
    loop {
        // A child that has ended reads nothing: then neither do we.
        let message = tokio::select! {
            message = inputs.message() => message,
            _ = child.wait() => return,
        };
        let Ok(Some(v1::AttachInput { input: Some(input) })) = message else { return };
        match input {
            Input::Child(_) => {}
            Input::StdinClosed(_) => stdin = None,
            Input::Stdin(bytes) => {
                let Some(pipe) = &mut stdin else { continue };
                let is_written = tokio::select! {
                    written = pipe.write_all(&bytes) => written.is_ok(),
                    _ = child.wait() => false,
                };
                // The child has closed its standard input: what comes is for nobody.
                if !is_written {
                    stdin = None;
                }
            }
        }
    }
}

async fn pass_outputs_on(node: &Node, child: &HeldChild, sink: &Sink<v1::AttachOutput>) -> Result<(), Failure> {
    let copy = |stream: Stream, wrap: fn(Vec<u8>) -> Output| async move {
        let mut output = child.output(stream, Some(node.children.output()))?;
        while let Some(piece) = output.next().await.map_err(|error| unreadable(child, &error))? {
            if send(sink, v1::AttachOutput { output: Some(wrap(piece)) }).await.is_err() {
                break;
            }
        }
        Ok::<(), Failure>(())
    };
    tokio::try_join!(copy(Stream::Stdout, Output::Stdout), copy(Stream::Stderr, Output::Stderr))?;
    child.wait().await;
    let last = verdict(child).map(Output::Stderr).into_iter().chain([Output::Ended((&**child).into())]);
    for output in last {
        // A caller that has gone needs no answer.
        let _ = send(sink, v1::AttachOutput { output: Some(output) }).await;
    }
    child.collect();
    Ok(())
}
