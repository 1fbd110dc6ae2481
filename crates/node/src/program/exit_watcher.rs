//! Waits for all children of a program on one node, over a single stream. With one stream per child, many children
//! would exhaust the streams of the connection.
//!
//! ```text
//!  child started ──▶ TendInput ──▶ (its node) ──▶ pieces of its result, its end ──▶ ended, with the result
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::exit::How;
use farfork_api::v1::tend_output::Event;
use farfork_program::{ChildEnd, ExceededLimit, Reply};
use farfork_sys::memfd;
use farfork_wire::NodeName;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Status};

use super::fork_table::{ChildPosition, SharedForks};
use crate::service;

/// A child whose end is awaited.
#[derive(Debug)]
pub(super) struct WatchedChild {
    pub(super) child: String,
    pub(super) position: ChildPosition,
    /// A memfd with the part of the child's result that has arrived.
    pub(super) result: Option<File>,
}

type ExitEventStream = Pin<Box<dyn Stream<Item = Result<v1::TendOutput, Status>> + Send>>;

/// Reports the ends of the children from `inbox`, until `inbox` is closed or the stream to the node fails.
pub(super) async fn watch_exits(
    batch: &Arc<SharedForks>,
    node: &NodeName,
    mut inbox: mpsc::UnboundedReceiver<WatchedChild>,
) {
    let mut waiting: HashMap<String, WatchedChild> = HashMap::new();
    let failure = match relay_events(batch, node, &mut inbox, &mut waiting).await {
        Err(failure) => failure,
        Ok(()) => {
            Failure::new(Code::Unavailable, format!("node `{node}`"), "it closed the stream that reports its children")
        }
    };
    inbox.close();
    while let Some(watched_child) = inbox.recv().await {
        waiting.insert(watched_child.child.clone(), watched_child);
    }
    for (_, watched_child) in waiting {
        report_exit(batch, watched_child, ChildEnd::Lost(&failure.to_string())).await;
    }
}

async fn relay_events(
    batch: &Arc<SharedForks>,
    node: &NodeName,
    inbox: &mut mpsc::UnboundedReceiver<WatchedChild>,
    waiting: &mut HashMap<String, WatchedChild>,
) -> Result<(), Failure> {
    // The channel is unbounded, but a fork's limit bounds the number of children.
    let (inputs, receiver) = mpsc::unbounded_channel();
    let mut outputs = open_stream(batch, node, UnboundedReceiverStream::new(receiver)).await?;
    loop {
        tokio::select! {
            tended = inbox.recv() => {
                let Some(watched_child) = tended else { return Ok(()) };
                let child = watched_child.child.clone();
                waiting.insert(child.clone(), watched_child);
                if inputs.send(v1::TendInput { child }).is_err() {
                    return Ok(());
                }
            }
            output = outputs.next() => match output {
                Some(Ok(output)) => handle_event(batch, waiting, output).await,
                Some(Err(status)) => return Err(Failure::from_status(format!("node `{node}`"), &status)),
                None => return Ok(()),
            },
        }
    }
}

async fn open_stream(
    batch: &Arc<SharedForks>,
    node: &NodeName,
    inputs: UnboundedReceiverStream<v1::TendInput>,
) -> Result<ExitEventStream, Failure> {
    if *node == batch.node.name {
        return Ok(Box::pin(service::watch_children(&batch.node, inputs)));
    }
    let object = format!("node `{node}`");
    let mut peer = batch.node.peers.peer(node, &object)?;
    let answer = peer.tend(inputs).await;
    Ok(Box::pin(answer.map_err(|status| Failure::from_status(&object, &status))?.into_inner()))
}

async fn handle_event(batch: &SharedForks, waiting: &mut HashMap<String, WatchedChild>, output: v1::TendOutput) {
    let v1::TendOutput { child, event } = output;
    match event {
        Some(Event::Result(piece)) => {
            if let Some(watched_child) = waiting.get_mut(&child)
                && let Err(error) = append_result(&mut watched_child.result, &piece)
            {
                tracing::warn!(child, %error, "cannot store a child's result");
                watched_child.result = None;
            }
        }
        Some(Event::Ended(ended)) => {
            let Some(watched_child) = waiting.remove(&child) else { return };
            let exit = ended.exit.unwrap_or_default();
            match exit.how {
                Some(How::Code(code)) => report_exit(batch, watched_child, ChildEnd::Exit(code)).await,
                Some(How::Signal(signal)) => {
                    let limit = to_program_limit(exit.limit_met());
                    report_exit(batch, watched_child, ChildEnd::Signal { signal, limit, why: &exit.limit }).await;
                }
                Some(How::Lost(why)) => report_exit(batch, watched_child, ChildEnd::Lost(&why)).await,
                None => report_exit(batch, watched_child, ChildEnd::Lost("how it ended is unknown")).await,
            }
        }
        Some(Event::Error(error)) => {
            let Some(watched_child) = waiting.remove(&child) else { return };
            report_exit(batch, watched_child, ChildEnd::Lost(&Failure::from(error).to_string())).await;
        }
        None => {}
    }
}

fn to_program_limit(limit: v1::Limit) -> Option<ExceededLimit> {
    match limit {
        v1::Limit::Unspecified => None,
        v1::Limit::Time => Some(ExceededLimit::Time),
        v1::Limit::Memory => Some(ExceededLimit::Memory),
        v1::Limit::NodeMemory => Some(ExceededLimit::NodeMemory),
    }
}

fn append_result(result: &mut Option<File>, piece: &[u8]) -> io::Result<()> {
    let file = match result {
        Some(file) => file,
        None => result.insert(memfd::create("result", true)?),
    };
    file.write_all(piece)
}

/// Reports a child's end to the program.
async fn report_exit(batch: &SharedForks, watched_child: WatchedChild, end: ChildEnd<'_>) {
    batch.remove_ended(watched_child.position);
    let result = watched_child.result.and_then(|file| memfd::seal_read_only(&file).ok());
    let (number, index) = watched_child.position;
    batch
        .send_reply(Reply::Ended { batch: number, index, end, has_result: result.is_some() }, result.map(File::into))
        .await;
}
