//! Wait: the ends of children, in the order of the request. None of them is forgotten meanwhile, wherever it runs: this node holds its own
//! from the beginning, and asks each other node for all of its children at once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use farfork_wire::{ChildId, NodeName};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::route::{child_id, passed_on};
use super::stream::{Sink, filled_by, send, unreadable};
use crate::api::v1;
use crate::api::v1::wait_event::Event;
use crate::children::{HeldChild, Stream};
use crate::failure::Failure;
use crate::node::Node;

/// Waits for children, one after the other: the order of the answers is that of the request.
pub(super) fn wait(node: &Arc<Node>, request: v1::WaitRequest) -> ReceiverStream<Result<v1::WaitEvent, Status>> {
    let node = node.clone();
    filled_by(|sink| async move {
        let (children, mut remote) = awaited(&node, &request);
        for (index, child) in (0..).zip(children) {
            let outcome = match child {
                Ok(AwaitedChild::Here(child)) => wait_here(&node, &child, index, request.results, &sink).await,
                Ok(AwaitedChild::There(owner)) => match remote.get_mut(&owner) {
                    Some(remote) => remote.pass_on_next(&node, index, &sink).await,
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
    Here(HeldChild),
    /// On this other node.
    There(NodeName),
}

/// The children of the request, and by node what is asked of others; these are asked at once.
fn awaited(
    node: &Arc<Node>,
    request: &v1::WaitRequest,
) -> (Vec<Result<AwaitedChild, Failure>>, HashMap<NodeName, RemoteWait>) {
    let mut remote: HashMap<NodeName, RemoteWait> = HashMap::new();
    let mut find = |text: &String| {
        let id = child_id(text)?;
        if *id.node() == node.name {
            return Ok(AwaitedChild::Here(node.children.hold(&id)?));
        }
        let owner = id.node().clone();
        let waiting = remote.entry(owner.clone()).or_insert_with(|| RemoteWait::new(request.results));
        waiting.children.push_back(id);
        Ok(AwaitedChild::There(owner))
    };
    let children = request.children.iter().map(&mut find).collect();
    remote.values_mut().for_each(|remote| remote.ask(node));
    (children, remote)
}

/// The children of one other node that are waited for.
struct RemoteWait {
    results: bool,
    /// Those whose ends have not come, in order.
    children: VecDeque<ChildId>,
    asked: Option<JoinHandle<Result<Streaming<v1::WaitEvent>, Failure>>>,
    events: Option<Streaming<v1::WaitEvent>>,
}

impl RemoteWait {
    fn new(results: bool) -> Self {
        Self { results, children: VecDeque::new(), asked: None, events: None }
    }

    /// Asks for all that are left.
    fn ask(&mut self, node: &Arc<Node>) {
        let Some(first) = self.children.front().cloned() else { return };
        let children = self.children.iter().map(ChildId::to_string).collect();
        let (node, request) = (node.clone(), v1::WaitRequest { children, results: self.results });
        self.asked = Some(tokio::spawn(async move {
            let object = format!("child {first}");
            let mut owner = node.peers.client(first.node(), &object)?;
            Ok(owner.wait(request).await.map_err(passed_on(&object))?.into_inner())
        }));
    }

    /// Passes on what comes of the next child. Where the node breaks off it is asked anew, for those behind it.
    async fn pass_on_next(&mut self, node: &Arc<Node>, index: u32, sink: &Sink<v1::WaitEvent>) -> Result<(), Failure> {
        let Some(child) = self.children.front().cloned() else {
            return Err(Failure::new(Code::Internal, "wait", "more children are told of than were asked for"));
        };
        let passed = self.pass_on(node, &child, index, sink).await;
        self.children.pop_front();
        if passed.is_err() {
            self.events = None;
            self.ask(node);
        }
        passed
    }

    async fn pass_on(
        &mut self,
        node: &Arc<Node>,
        child: &ChildId,
        index: u32,
        sink: &Sink<v1::WaitEvent>,
    ) -> Result<(), Failure> {
        let object = format!("child {child}");
        if self.events.is_none() {
            if self.asked.is_none() {
                self.ask(node);
            }
            let asked = self.asked.take().expect("it was asked just now");
            let opened = asked.await.map_err(|panic| Failure::new(Code::Internal, &object, panic))?;
            self.events = Some(opened?);
        }
        let events = self.events.as_mut().expect("it was opened just now");
        while let Some(message) = events.message().await.map_err(passed_on(&object))? {
            let is_last = matches!(message.event, Some(Event::Ended(_) | Event::Error(_)));
            if send(sink, v1::WaitEvent { index, ..message }).await.is_err() || is_last {
                return Ok(());
            }
        }
        Err(Failure::new(Code::Unavailable, object, "its node stopped telling of it before it ended")
            .with_next_step("it may run on: see `farfork ps`"))
    }
}

async fn wait_here(
    node: &Node,
    child: &HeldChild,
    index: u32,
    results: bool,
    sink: &Sink<v1::WaitEvent>,
) -> Result<(), Failure> {
    if results {
        // Which of the two it is shows at the end only.
        let has_result = child.may_have_result() && {
            child.wait().await;
            child.has_result()
        };
        let (stream, event): (_, fn(Vec<u8>) -> Event) =
            if has_result { (Stream::Result, Event::Result) } else { (Stream::Stdout, Event::Stdout) };
        let mut output = child.output(stream, Some(node.children.output()))?;
        while let Some(piece) = output.next().await.map_err(|error| unreadable(child, &error))? {
            if send(sink, v1::WaitEvent { index, event: Some(event(piece)) }).await.is_err() {
                return Ok(());
            }
        }
    }
    child.wait().await;
    let ended = Event::Ended((&**child).into());
    if send(sink, v1::WaitEvent { index, event: Some(ended) }).await.is_ok() {
        child.collect();
    }
    Ok(())
}
