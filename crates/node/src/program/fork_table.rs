//! The children that one program has requested: starts, reports and kills them, on any node. `exit_watcher` waits for
//! their ends.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_program::{ForkOptions, Reply, RequestedNetwork};
use farfork_wire::{ChildId, NodeName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::connection::OutgoingMessage;
use super::exit_watcher::{self, WatchedChild};
use super::socket_registry::ChannelSockets;
use crate::node::Node;
use crate::service;

/// The signal with which children are killed: it cannot be caught.
const SIGKILL: u32 = rustix::process::Signal::KILL.as_raw().unsigned_abs();

/// A child's position: the number that the program gave to the child's batch, and the child's index in the batch.
pub(super) type ChildPosition = (u32, u32);

/// The children of one program. [`ProgramForks::kill_all`] must be called when the program disconnects.
pub(super) struct ProgramForks(Arc<SharedForks>);

/// State that the tasks for a program's children share.
pub(super) struct SharedForks {
    pub(super) node: Arc<Node>,
    channels: ChannelSockets,
    replies: mpsc::Sender<OutgoingMessage>,
    children: Mutex<ForkTable>,
}

#[derive(Default)]
struct ForkTable {
    /// Whether the program has disconnected. Then further children are killed at once.
    is_disconnected: bool,
    running: HashMap<ChildPosition, ForkedChild>,
    /// Queues of the exit watchers, by the node that the children run on.
    exit_watchers: HashMap<NodeName, mpsc::UnboundedSender<WatchedChild>>,
    /// The tasks of the exit watchers.
    watcher_tasks: JoinSet<()>,
}

struct ForkedChild {
    child: ChildId,
    /// Whether the child is removed from its node's list when it has ended: the program had it killed, and does not need its
    /// logs.
    is_unneeded: bool,
}

impl ProgramForks {
    /// Creates an empty table. Reports about children are sent to `replies`.
    pub(super) fn new(node: Arc<Node>, channels: ChannelSockets, replies: mpsc::Sender<OutgoingMessage>) -> Self {
        Self(Arc::new(SharedForks { node, channels, replies, children: Mutex::default() }))
    }

    /// Starts children, and reports the start and the end of each. The task continues after the program has
    /// disconnected, in order to kill children that were being started.
    pub(super) fn fork(&self, fork: ForkOptions) {
        let batch = self.0.clone();
        tokio::spawn(async move { batch.run_fork(fork).await });
    }

    /// Reports all children of a fork as failed, for this reason.
    pub(super) fn reject_fork(&self, fork: ForkOptions, failure: Failure) {
        let batch = self.0.clone();
        tokio::spawn(async move { batch.reject_fork(&fork, &failure).await });
    }

    /// Kills a child, if it is running. With `keeps_child`, the ended child stays listed.
    pub(super) fn kill_child(&self, position: ChildPosition, keeps_child: bool) {
        let mut children = self.0.children();
        if let Some(running) = children.running.get_mut(&position) {
            running.is_unneeded |= !keeps_child;
            let (child, node) = (running.child.clone(), self.0.node.clone());
            tokio::spawn(async move { kill_by_id(&node, child).await });
        }
    }

    /// Kills all children, also those that are being started, and reports nothing more. Returns the tasks that kill the children
    /// that run. Each ends within [`QUERY_TIMEOUT`](farfork_api::limits::QUERY_TIMEOUT), also if a node cannot be reached.
    pub(super) fn kill_all(&self) -> JoinSet<()> {
        let mut children = self.0.children();
        children.is_disconnected = true;
        children.watcher_tasks.abort_all();
        children.exit_watchers.clear();
        let running = children.running.drain().map(|(_, ForkedChild { child, .. })| (self.0.node.clone(), child));
        running.map(|(node, child)| async move { kill_by_id(&node, child).await }).collect()
    }
}

async fn kill_by_id(node: &Node, child: ChildId) {
    let request = v1::KillRequest { child: child.to_string(), signal: SIGKILL, by_program: true };
    if let Err(error) = service::kill(node, request).await {
        tracing::debug!(%error, "a program's child is not killed");
    }
}

/// Converts the request for the node. If payloads are requested, each child's payload is its index in decimal.
fn to_fork_request(fork: &ForkOptions) -> v1::ForkRequest {
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
            network: to_api_network(fork.network).into(),
            egress: fork.egress.clone(),
            channel: fork.has_channel,
            ..v1::ChildOptions::default()
        }),
        profile: false,
        // Attended children would end with the fork's call. These children end with `exit_watcher`'s stream of
        // `Peer.Tend` instead.
        attended: false,
        batch: 0,
    }
}

fn to_api_network(network: RequestedNetwork) -> v1::Network {
    match network {
        RequestedNetwork::Private => v1::Network::Private,
        RequestedNetwork::Shared => v1::Network::Shared,
        RequestedNetwork::Host => v1::Network::Host,
    }
}

impl SharedForks {
    async fn run_fork(self: &Arc<Self>, fork: ForkOptions) {
        match service::fork(&self.node, to_fork_request(&fork), true).await {
            Ok(mut outcomes) => {
                while let Some(Ok(v1::ForkOutcome { index, result, .. })) = outcomes.next().await {
                    let position = (fork.batch, fork.first + index);
                    match result {
                        Some(Outcome::Child(child)) => self.handle_started(position, child, fork.has_channel).await,
                        Some(Outcome::Error(error)) => self.report_failure(position, &error.into()).await,
                        None => {}
                    }
                }
            }
            Err(failure) => self.reject_fork(&fork, &failure).await,
        }
    }

    async fn reject_fork(&self, fork: &ForkOptions, failure: &Failure) {
        for index in fork.first..fork.first + fork.count {
            self.report_failure((fork.batch, index), failure).await;
        }
    }

    async fn handle_started(self: &Arc<Self>, position: ChildPosition, child: v1::Child, has_channel: bool) {
        let Ok(id) = child.id.parse::<ChildId>() else { return };
        let is_over = {
            let mut children = self.children();
            if !children.is_disconnected {
                children.running.insert(position, ForkedChild { child: id.clone(), is_unneeded: false });
            }
            children.is_disconnected
        };
        if is_over {
            return kill_by_id(&self.node, id).await;
        }
        let channel = if has_channel { self.open_channel(&id).await } else { None };
        let (batch, index) = position;
        self.send_reply(Reply::Started { batch, index, child: &child.id }, channel).await;
        self.watch_exit(id.node(), WatchedChild { child: child.id, position, result: None });
    }

    /// Returns the program's end of a child's channel. If the channel cannot be opened, kills the child.
    async fn open_channel(&self, child: &ChildId) -> Option<OwnedFd> {
        let opened = service::open_channel(&self.node, child).await;
        let registered = opened.map_err(|failure| failure.to_string()).and_then(|socket| {
            self.channels.register(&socket).map_err(|error| error.to_string())?;
            Ok(socket)
        });
        match registered {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%child, error, "a child is killed: its channel cannot be opened");
                kill_by_id(&self.node, child.clone()).await;
                None
            }
        }
    }

    /// Passes a child to the exit watcher of its node, and starts the watcher if there is none.
    fn watch_exit(self: &Arc<Self>, node: &NodeName, mut watched_child: WatchedChild) {
        let mut children = self.children();
        if children.is_disconnected {
            return;
        }
        if let Some(sender) = children.exit_watchers.get(node) {
            match sender.send(watched_child) {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => watched_child = back,
            }
        }
        let (sender, inbox) = mpsc::unbounded_channel();
        let _ = sender.send(watched_child);
        children.exit_watchers.insert(node.clone(), sender);
        let (batch, node) = (self.clone(), node.clone());
        while children.watcher_tasks.try_join_next().is_some() {}
        children.watcher_tasks.spawn(async move { exit_watcher::watch_exits(&batch, &node, inbox).await });
    }

    /// Removes a child that has ended, if it is unneeded also from its node's list.
    pub(super) fn remove_ended(&self, position: ChildPosition) {
        let mut children = self.children();
        if let Some(ForkedChild { child, is_unneeded: true }) = children.running.remove(&position) {
            let node = self.node.clone();
            tokio::spawn(async move {
                if let Err(error) = service::remove(&node, v1::RemoveRequest { child: child.to_string() }).await {
                    tracing::debug!(%error, "a child that was killed is still listed");
                }
            });
        }
    }

    async fn report_failure(&self, (batch, index): ChildPosition, failure: &Failure) {
        let (code, text) = (failure.code() as u32, failure.to_string());
        self.send_reply(Reply::Failed { batch, index, code, text: &text }, None).await;
    }

    pub(super) async fn send_reply(&self, reply: Reply<'_>, fd: Option<OwnedFd>) {
        // Fails only if the program has disconnected; its children are then about to be killed.
        let _ = self.replies.send((reply.encode(), fd)).await;
    }

    fn children(&self) -> MutexGuard<'_, ForkTable> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
