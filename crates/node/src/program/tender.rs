//! Waits for all children of a program on one node, over one stream, so that however many there are, the connection
//! between the nodes has room for everything else.
//!
//! ```text
//!  child started ──▶ TendInput ──▶ (its node) ──▶ pieces of its result, its end ──▶ ended, with the result
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;

use farfork_program::{End, Limit, Reply};
use farfork_sys::memfd;
use farfork_wire::NodeName;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Status};

use super::batch::{Batch, Position};
use crate::api::v1;
use crate::api::v1::exit::How;
use crate::api::v1::tend_output::Event;
use crate::failure::Failure;
use crate::service;

/// A child that is waited for.
#[derive(Debug)]
pub(super) struct Tended {
    pub(super) child: String,
    pub(super) position: Position,
    /// What has come of its result: a memfd.
    pub(super) result: Option<File>,
}

type Outputs = Pin<Box<dyn Stream<Item = Result<v1::TendOutput, Status>> + Send>>;

/// Waits for the children that come, until no more can, or the node does not answer.
pub(super) async fn tend(batch: &Arc<Batch>, node: &NodeName, mut inbox: mpsc::UnboundedReceiver<Tended>) {
    let mut waiting: HashMap<String, Tended> = HashMap::new();
    let failure = match listen(batch, node, &mut inbox, &mut waiting).await {
        Err(failure) => failure,
        Ok(()) => Failure::new(Code::Unavailable, format!("node `{node}`"), "it stopped telling of its children"),
    };
    inbox.close();
    while let Some(tended) = inbox.recv().await {
        waiting.insert(tended.child.clone(), tended);
    }
    for (_, tended) in waiting {
        conclude(batch, tended, End::Lost(&failure.to_string())).await;
    }
}

async fn listen(
    batch: &Arc<Batch>,
    node: &NodeName,
    inbox: &mut mpsc::UnboundedReceiver<Tended>,
    waiting: &mut HashMap<String, Tended>,
) -> Result<(), Failure> {
    // Not bounded but by the children, which a fork's limit bounds.
    let (inputs, receiver) = mpsc::unbounded_channel();
    let mut outputs = open(batch, node, UnboundedReceiverStream::new(receiver)).await?;
    loop {
        tokio::select! {
            tended = inbox.recv() => {
                let Some(tended) = tended else { return Ok(()) };
                let child = tended.child.clone();
                waiting.insert(child.clone(), tended);
                if inputs.send(v1::TendInput { child }).is_err() {
                    return Ok(());
                }
            }
            output = outputs.next() => match output {
                Some(Ok(output)) => hear(batch, waiting, output).await,
                Some(Err(status)) => return Err(Failure::from_status(format!("node `{node}`"), &status)),
                None => return Ok(()),
            },
        }
    }
}

async fn open(
    batch: &Arc<Batch>,
    node: &NodeName,
    inputs: UnboundedReceiverStream<v1::TendInput>,
) -> Result<Outputs, Failure> {
    if *node == batch.node.name {
        return Ok(Box::pin(service::tend(&batch.node, inputs)));
    }
    let object = format!("node `{node}`");
    let mut peer = batch.node.peers.peer(node, &object)?;
    let answer = peer.tend(inputs).await;
    Ok(Box::pin(answer.map_err(|status| Failure::from_status(&object, &status))?.into_inner()))
}

async fn hear(batch: &Batch, waiting: &mut HashMap<String, Tended>, output: v1::TendOutput) {
    let v1::TendOutput { child, event } = output;
    match event {
        Some(Event::Result(piece)) => {
            if let Some(tended) = waiting.get_mut(&child)
                && let Err(error) = append(&mut tended.result, &piece)
            {
                tracing::warn!(child, %error, "what a child gave as its result cannot be kept");
                tended.result = None;
            }
        }
        Some(Event::Ended(ended)) => {
            let Some(tended) = waiting.remove(&child) else { return };
            let exit = ended.exit.unwrap_or_default();
            match exit.how {
                Some(How::Code(code)) => conclude(batch, tended, End::Exit(code)).await,
                Some(How::Signal(signal)) => {
                    let limit = limit_of(exit.limit_met());
                    conclude(batch, tended, End::Signal { signal, limit, why: &exit.limit }).await;
                }
                Some(How::Lost(why)) => conclude(batch, tended, End::Lost(&why)).await,
                None => conclude(batch, tended, End::Lost("nothing is known of its end")).await,
            }
        }
        Some(Event::Error(error)) => {
            let Some(tended) = waiting.remove(&child) else { return };
            conclude(batch, tended, End::Lost(&Failure::from(error).to_string())).await;
        }
        None => {}
    }
}

fn limit_of(limit: v1::Limit) -> Option<Limit> {
    match limit {
        v1::Limit::Unspecified => None,
        v1::Limit::Time => Some(Limit::Time),
        v1::Limit::Memory => Some(Limit::Memory),
        v1::Limit::NodeMemory => Some(Limit::NodeMemory),
    }
}

fn append(result: &mut Option<File>, piece: &[u8]) -> io::Result<()> {
    let file = match result {
        Some(file) => file,
        None => result.insert(memfd::create("result", true)?),
    };
    file.write_all(piece)
}

/// Tells of a child's end.
async fn conclude(batch: &Batch, tended: Tended, end: End<'_>) {
    batch.ended(tended.position);
    let result = tended.result.and_then(|file| memfd::sealed_for_reading(&file).ok());
    let (number, index) = tended.position;
    batch.reply(Reply::Ended { batch: number, index, end, has_result: result.is_some() }, result).await;
}
