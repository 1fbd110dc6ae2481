//! The children that one program has asked for: started, told of and killed as it says, wherever they run. Their ends
//! are waited for by `tender`.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_program::{Fork, Network, Reply};
use farfork_wire::{ChildId, NodeName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::connection::Outgoing;
use super::tender::{self, Tended};
use crate::api::v1;
use crate::api::v1::fork_outcome::Result as Outcome;
use crate::failure::Failure;
use crate::node::Node;
use crate::service;

/// What kills a child: it cannot be caught.
const SIGKILL: u32 = rustix::process::Signal::KILL.as_raw().unsigned_abs();

/// A child's place: the program's number for its batch, and its number in the batch.
pub(super) type Position = (u32, u32);

/// The children of one program. Dropping this ends them.
pub(super) struct Batches(Arc<Batch>);

/// What the tasks that deal with a program's children share.
pub(super) struct Batch {
    pub(super) node: Arc<Node>,
    replies: mpsc::Sender<Outgoing>,
    children: Mutex<Children>,
}

#[derive(Default)]
struct Children {
    /// The program has gone: there shall be none.
    is_over: bool,
    running: HashMap<Position, Running>,
    /// By the node that the children run on.
    tenders: HashMap<NodeName, mpsc::UnboundedSender<Tended>>,
    /// The tenders' tasks.
    tending: JoinSet<()>,
}

struct Running {
    child: ChildId,
    /// The program wanted its end.
    is_killed: bool,
}

impl Batches {
    /// None yet; what happens to them goes to `replies`.
    pub(super) fn new(node: Arc<Node>, replies: mpsc::Sender<Outgoing>) -> Self {
        Self(Arc::new(Batch { node, replies, children: Mutex::default() }))
    }

    /// Starts children; each is told of as it starts and as it ends. This goes on when the program has gone, to end those
    /// that have just been started.
    pub(super) fn fork(&self, fork: Fork) {
        let batch = self.0.clone();
        tokio::spawn(async move { batch.fork(fork).await });
    }

    /// Starts none of the children, for this reason.
    pub(super) fn refuse(&self, fork: Fork, failure: Failure) {
        let batch = self.0.clone();
        tokio::spawn(async move { batch.refuse(&fork, &failure).await });
    }

    /// Kills a child; nothing happens where there is none.
    pub(super) fn kill(&self, position: Position) {
        let mut children = self.0.children();
        if let Some(running) = children.running.get_mut(&position) {
            running.is_killed = true;
            let (child, node) = (running.child.clone(), self.0.node.clone());
            tokio::spawn(async move { kill(&node, child).await });
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        let mut children = self.0.children();
        children.is_over = true;
        children.tending.abort_all();
        children.tenders.clear();
        for (_, Running { child, .. }) in children.running.drain() {
            let node = self.0.node.clone();
            tokio::spawn(async move { kill(&node, child).await });
        }
    }
}

async fn kill(node: &Node, child: ChildId) {
    let request = v1::KillRequest { child: child.to_string(), signal: SIGKILL };
    if let Err(error) = service::kill(node, request).await {
        tracing::debug!(%error, "a program's child has ended already");
    }
}

/// The payload of each child is its number, where it is to have one.
fn request(fork: &Fork) -> v1::ForkRequest {
    let timeout_ms = fork.timeout.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
    let indices = fork.first..fork.first + if fork.has_payload { fork.count } else { 0 };
    v1::ForkRequest {
        seed: fork.seed.to_string(),
        nodes: fork.nodes.clone(),
        any_node: fork.any_node,
        count: fork.count,
        payloads: indices.map(|index| index.to_string().into_bytes()).collect(),
        options: Some(v1::ChildOptions {
            timeout_ms,
            strategy: fork.strategy.clone(),
            memory_bytes_max: fork.memory_bytes_max,
            cpu_millicores_max: fork.cpu_millicores_max,
            untrusted: fork.untrusted,
            user_namespace: fork.user_namespace,
            processes_max: fork.processes_max.into(),
            network: network_of(fork.network).into(),
            egress: fork.egress.clone(),
            ..v1::ChildOptions::default()
        }),
        profile: false,
        // The stream of Tend does that.
        attended: false,
    }
}

fn network_of(network: Network) -> v1::Network {
    match network {
        Network::Private => v1::Network::Private,
        Network::Shared => v1::Network::Shared,
        Network::Host => v1::Network::Host,
    }
}

impl Batch {
    async fn fork(self: &Arc<Self>, fork: Fork) {
        match service::fork(&self.node, request(&fork)).await {
            Ok(mut outcomes) => {
                while let Some(Ok(v1::ForkOutcome { index, result, .. })) = outcomes.next().await {
                    let position = (fork.batch, fork.first + index);
                    match result {
                        Some(Outcome::Child(child)) => self.started(position, child).await,
                        Some(Outcome::Error(error)) => self.failed(position, &error.into()).await,
                        None => {}
                    }
                }
            }
            Err(failure) => self.refuse(&fork, &failure).await,
        }
    }

    async fn refuse(&self, fork: &Fork, failure: &Failure) {
        for index in fork.first..fork.first + fork.count {
            self.failed((fork.batch, index), failure).await;
        }
    }

    async fn started(self: &Arc<Self>, position: Position, child: v1::Child) {
        let Ok(id) = child.id.parse::<ChildId>() else { return };
        let is_over = {
            let mut children = self.children();
            if !children.is_over {
                children.running.insert(position, Running { child: id.clone(), is_killed: false });
            }
            children.is_over
        };
        if is_over {
            return kill(&self.node, id).await;
        }
        let (batch, index) = position;
        self.reply(Reply::Started { batch, index, child: &child.id }, None).await;
        self.tend(id.node(), Tended { child: child.id, position, result: None });
    }

    /// Hands a child to the tender of its node, of which there is one as long as it is of use.
    fn tend(self: &Arc<Self>, node: &NodeName, mut tended: Tended) {
        let mut children = self.children();
        if children.is_over {
            return;
        }
        if let Some(tender) = children.tenders.get(node) {
            match tender.send(tended) {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => tended = back,
            }
        }
        let (tender, inbox) = mpsc::unbounded_channel();
        let _ = tender.send(tended);
        children.tenders.insert(node.clone(), tender);
        let (batch, node) = (self.clone(), node.clone());
        while children.tending.try_join_next().is_some() {}
        children.tending.spawn(async move { tender::tend(&batch, &node, inbox).await });
    }

    /// A child has ended, and is no longer there to be killed. Nobody will ask for one that the program killed.
    pub(super) fn ended(&self, position: Position) {
        let mut children = self.children();
        if let Some(Running { child, is_killed: true }) = children.running.remove(&position) {
            let node = self.node.clone();
            tokio::spawn(async move {
                if let Err(error) = service::remove(&node, v1::RemoveRequest { child: child.to_string() }).await {
                    tracing::debug!(%error, "a child that was killed is still listed");
                }
            });
        }
    }

    async fn failed(&self, (batch, index): Position, failure: &Failure) {
        let (code, text) = (failure.code() as u32, failure.to_string());
        self.reply(Reply::Failed { batch, index, code, text: &text }, None).await;
    }

    pub(super) async fn reply(&self, reply: Reply<'_>, file: Option<File>) {
        // Where the program has gone, all this is about to end too.
        let _ = self.replies.send((reply.encode(), file)).await;
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
