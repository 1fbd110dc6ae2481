//! Wait: reports the ends of children, in the order of the request. No awaited child is evicted, on any node. This node
//! holds its own children from the start, and sends each other node one request for all of that node's children.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::wait_event::Event;
use farfork_wire::{ChildId, NodeName};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::route::{PeerStream, parse_child_id};
use super::stream::{ResponseSender, output_failure, send, spawn_stream};
use crate::children::{HeldChild, OutputStream};
use crate::node::Node;

/// Waits for children one after the other, and reports their ends in the order of the request.
pub(super) fn wait(node: &Arc<Node>, request: v1::WaitRequest) -> ReceiverStream<Result<v1::WaitEvent, Status>> {
    let node = node.clone();
    spawn_stream(|sink| async move {
        let (children, mut remote) = split_children(&node, &request);
        for (index, child) in (0..).zip(children) {
            let outcome = match child {
                Ok(AwaitedChild::Local(child)) => wait_local(&node, &child, index, request.results, &sink).await,
                Ok(AwaitedChild::Remote(owner)) => match remote.get_mut(&owner) {
                    Some(remote) => remote.relay_next(&node, index, &sink).await,
                    None => unreachable!("each owner was noted with its child"),
                },
                Err(failure) => Err(failure),
            };
            let event = match outcome {
                Ok(()) if sink.is_closed() => break,
                Ok(()) => continue,
                Err(failure) => Some(Event::Error(failure.into())),
            };
            if send(&sink, v1::WaitEvent { index, event }).await.is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// A child of the request.
enum AwaitedChild {
    Local(HeldChild),
    /// A child on this other node.
    Remote(NodeName),
}

/// Finds the children of the request. Starts a wait for the children of each other node.
fn split_children(
    node: &Arc<Node>,
    request: &v1::WaitRequest,
) -> (Vec<Result<AwaitedChild, Failure>>, HashMap<NodeName, RemoteWait>) {
    let mut remote: HashMap<NodeName, RemoteWait> = HashMap::new();
    let mut find = |text: &String| {
        let id = parse_child_id(text)?;
        if *id.node() == node.name {
            return Ok(AwaitedChild::Local(node.children.hold(&id)?));
        }
        let owner = id.node().clone();
        let waiting = remote.entry(owner.clone()).or_insert_with(|| RemoteWait::new(request.results));
        waiting.children.push_back(id);
        Ok(AwaitedChild::Remote(owner))
    };
    let children = request.children.iter().map(&mut find).collect();
    remote.values_mut().for_each(|remote| remote.open_stream(node));
    (children, remote)
}

/// The wait for the children of one other node.
struct RemoteWait {
    wants_results: bool,
    /// Children whose ends were not reported yet, in order.
    children: VecDeque<ChildId>,
    opening: Option<JoinHandle<Result<PeerStream<v1::WaitEvent>, Failure>>>,
    events: Option<PeerStream<v1::WaitEvent>>,
}

impl RemoteWait {
    fn new(results: bool) -> Self {
        Self { wants_results: results, children: VecDeque::new(), opening: None, events: None }
    }

    /// Requests the ends of all remaining children.
    fn open_stream(&mut self, node: &Arc<Node>) {
        let Some(first) = self.children.front().cloned() else { return };
        let children = self.children.iter().map(ChildId::to_string).collect();
        let (node, request) = (node.clone(), v1::WaitRequest { children, results: self.wants_results });
        self.opening = Some(tokio::spawn(async move {
            let object = format!("child {first}");
            let mut owner = node.peers.client(first.node(), &object)?;
            PeerStream::open(owner.wait(request), &node, first.node(), &object).await
        }));
    }

    /// Relays the events of the next child. If the stream fails, opens a new stream for the children after it.
    async fn relay_next(
        &mut self,
        node: &Arc<Node>,
        index: u32,
        sink: &ResponseSender<v1::WaitEvent>,
    ) -> Result<(), Failure> {
        let Some(child) = self.children.front().cloned() else {
            return Err(Failure::new(Code::Internal, "wait", "the node reported more children than requested"));
        };
        let passed = self.relay_events(node, &child, index, sink).await;
        self.children.pop_front();
        if passed.is_err() {
            self.events = None;
            self.open_stream(node);
        }
        passed
    }

    async fn relay_events(
        &mut self,
        node: &Arc<Node>,
        child: &ChildId,
        index: u32,
        sink: &ResponseSender<v1::WaitEvent>,
    ) -> Result<(), Failure> {
        let object = format!("child {child}");
        if self.events.is_none() {
            if self.opening.is_none() {
                self.open_stream(node);
            }
            let opening = self.opening.take().expect("the stream was requested above");
            let opened = opening.await.map_err(|panic| Failure::new(Code::Internal, &object, panic))?;
            self.events = Some(opened?);
        }
        let events = self.events.as_mut().expect("the stream was opened above");
        while let Some(message) = events.next().await? {
            let is_last = matches!(message.event, Some(Event::Ended(_) | Event::Error(_)));
            if send(sink, v1::WaitEvent { index, ..message }).await.is_err() || is_last {
                return Ok(());
            }
        }
        Err(Failure::new(Code::Unavailable, object, "its node stopped reporting before the child ended")
            .with_next_step("it may still run: see `farfork ps`"))
    }
}

async fn wait_local(
    node: &Node,
    child: &HeldChild,
    index: u32,
    results: bool,
    sink: &ResponseSender<v1::WaitEvent>,
) -> Result<(), Failure> {
    if results {
        // Only at the child's end is it known whether the child has a result. If not, its standard output is the
        // result.
        let has_result = child.can_have_result() && {
            child.wait_exit().await;
            child.has_result()
        };
        let (stream, event): (_, fn(Vec<u8>) -> Event) =
            if has_result { (OutputStream::Result, Event::Result) } else { (OutputStream::Stdout, Event::Stdout) };
        let mut output = child.open_output(stream, Some(node.children.output_watcher()))?;
        while let Some(piece) = output.next_chunk().await.map_err(|error| output_failure(child, &error))? {
            if send(sink, v1::WaitEvent { index, event: Some(event(piece)) }).await.is_err() {
                return Ok(());
            }
        }
    }
    child.wait_exit().await;
    let ended = Event::Ended((&**child).into());
    if send(sink, v1::WaitEvent { index, event: Some(ended) }).await.is_ok() {
        child.mark_collected();
    }
    Ok(())
}
