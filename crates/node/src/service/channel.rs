//! Channels between a program and its children. On one node, a channel is a socket pair. Between two nodes, it is a
//! socket pair on each, joined by a stream of messages.
//!
//! ```text
//!  program ══ socket pair ══ its node ── Peer.OpenChannel ──▶ child's node ══ socket pair ══ child
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as BlockingStream;
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::limits::{CHANNEL_CHUNK_BYTES, STREAM_MESSAGES_MAX};
use farfork_api::v1;
use farfork_api::v1::channel_input::Input;
use farfork_sys::fd_passing;
use farfork_wire::ChildId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::route::{forwarded_failure, parse_child_id};
use super::stream::{send, spawn_stream};
use crate::node::Node;

/// Opens the program's end of a child's channel, wherever the child runs.
///
/// # Errors
/// The child is unknown, or has no unused channel, or its node cannot be reached.
pub(crate) async fn open_channel(node: &Arc<Node>, child: &ChildId) -> Result<OwnedFd, Failure> {
    if *child.node() == node.name {
        return take_local(node, child);
    }
    let object = format!("child {child}");
    let mut peer = node.peers.peer(child.node(), &object)?;
    let socket_failure = |error: io::Error| Failure::new(Code::Internal, &object, format!("its channel: {error}"));
    let (ours, of_program) = fd_passing::stream_pair().map_err(socket_failure)?;
    let (reader, writer) = into_async(ours).map_err(socket_failure)?.into_split();
    let (inputs, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
    let first = v1::ChannelInput { input: Some(Input::Child(child.to_string())) };
    // Cannot fail: the receiver exists, and its queue is empty.
    let _ = inputs.try_send(first);
    let answer = peer.open_channel(ReceiverStream::new(receiver)).await;
    let outputs = answer.map_err(forwarded_failure(&object))?.into_inner();
    tokio::spawn(send_inputs(reader, inputs));
    tokio::spawn(write_outputs(outputs, writer));
    Ok(of_program)
}

/// Serves the channel of a child of this node, which the first message names, to a program on another node.
///
/// # Errors
/// The first message names no child, or an error of [`open_channel`].
pub(super) async fn serve_channel(
    node: &Arc<Node>,
    mut inputs: Streaming<v1::ChannelInput>,
) -> Result<ReceiverStream<Result<v1::ChannelOutput, Status>>, Failure> {
    let first = inputs.message().await.map_err(forwarded_failure("a channel"))?;
    let Some(v1::ChannelInput { input: Some(Input::Child(text)) }) = first else {
        return Err(Failure::new(Code::InvalidArgument, "a channel", "its first message names no child"));
    };
    let child = parse_child_id(&text)?;
    let socket = into_async(take_local(node, &child)?)
        .map_err(|error| Failure::new(Code::Internal, format!("child {child}"), format!("its channel: {error}")))?;
    let (mut reader, writer) = socket.into_split();
    tokio::spawn(write_inputs(inputs, writer));
    Ok(spawn_stream(|sink| async move {
        let mut space = vec![0; CHANNEL_CHUNK_BYTES];
        while let Some(data) = read_chunk(&mut reader, &mut space).await {
            if send(&sink, v1::ChannelOutput { data }).await.is_err() {
                break;
            }
        }
        Ok(())
    }))
}

fn take_local(node: &Node, id: &ChildId) -> Result<OwnedFd, Failure> {
    let child = node.children.hold(id)?;
    child
        .take_channel()
        .ok_or_else(|| child.failure(Code::FailedPrecondition, "it has no channel, or its channel is in use"))
}

fn into_async(socket: OwnedFd) -> io::Result<UnixStream> {
    let socket = BlockingStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Reads the next bytes; `None` at the end of the stream, or after an error.
async fn read_chunk(reader: &mut OwnedReadHalf, space: &mut [u8]) -> Option<Vec<u8>> {
    let count = reader.read(space).await.unwrap_or(0);
    (count > 0).then(|| space[..count].to_vec())
}

/// Forwards data from the program to the child's node.
async fn send_inputs(mut reader: OwnedReadHalf, inputs: mpsc::Sender<v1::ChannelInput>) {
    let mut space = vec![0; CHANNEL_CHUNK_BYTES];
    while let Some(data) = read_chunk(&mut reader, &mut space).await {
        if inputs.send(v1::ChannelInput { input: Some(Input::Data(data)) }).await.is_err() {
            return;
        }
    }
}

/// Forwards data from the child's node to the program. Dropping the writer ends the program's stream.
async fn write_outputs(mut outputs: Streaming<v1::ChannelOutput>, mut writer: OwnedWriteHalf) {
    while let Ok(Some(v1::ChannelOutput { data })) = outputs.message().await {
        if writer.write_all(&data).await.is_err() {
            return;
        }
    }
}

/// Forwards data from the program's node to the child. Dropping the writer ends the child's stream.
async fn write_inputs(mut inputs: Streaming<v1::ChannelInput>, mut writer: OwnedWriteHalf) {
    while let Ok(Some(v1::ChannelInput { input: Some(Input::Data(data)) })) = inputs.message().await {
        if writer.write_all(&data).await.is_err() {
            return;
        }
    }
}
