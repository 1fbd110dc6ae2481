//! One connected program: its requests in order, and the replies, which come from all that goes on for it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farfork_fork::capture::{NamespacePolicy, Offer, ProgramSockets};
use farfork_program::layout::Pages;
use farfork_program::{Fork, Offered, Reply, Request, Wish};
use farfork_wire::SeedId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Code;

use super::batch::Batches;
use super::registry::{Registered, Registry};
use super::socket::Socket;
use crate::api::v1;
use crate::failure::Failure;
use crate::limits::{FORK_COUNT_MAX, STREAM_MESSAGES_MAX};
use crate::node::Node;
use crate::seeds::PrepareOptions;
use crate::service;

/// A message to the program, with a descriptor that goes with it.
pub(super) type Outgoing = (Vec<u8>, Option<File>);

/// A program that is connected.
struct Connection {
    node: Arc<Node>,
    registry: Arc<Registry>,
    /// What connected.
    pid: u32,
    registered: Option<Registered>,
    replies: mpsc::Sender<Outgoing>,
    batches: Batches,
    /// Seeds that end with this connection.
    owned: Vec<SeedId>,
}

/// A program that has come, with what was heard of it so far.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) socket: OwnedFd,
    /// Its first message, where that has not been dealt with.
    pub(super) first: Option<Vec<u8>>,
    pub(super) registered: Option<Registered>,
    /// Its place among [`PROGRAM_CONNECTIONS_MAX`](crate::limits::PROGRAM_CONNECTIONS_MAX).
    pub(super) place: OwnedSemaphorePermit,
}

/// Serves one program until it goes away; then its children end, and the seeds that it owns.
pub(super) async fn serve(node: Arc<Node>, registry: Arc<Registry>, arrival: Arrival) {
    let Arrival { socket, first, registered, place: _place } = arrival;
    let socket = match Socket::new(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "a program cannot be listened to"),
    };
    let pid = match socket.peer_pid() {
        Ok(Some(pid)) => pid.unsigned_abs(),
        Ok(None) | Err(_) => {
            let text = "program: it runs where the daemon does not see it; run it in the daemon's pid namespace";
            let reply = Reply::Failed { batch: 0, index: 0, code: Code::PermissionDenied as u32, text };
            let _ = socket.send(&reply.encode(), &[]).await;
            return;
        }
    };
    let (replies, outgoing) = mpsc::channel(STREAM_MESSAGES_MAX);
    let batches = Batches::new(node.clone(), replies.clone());
    let connection = Connection { node, registry, pid, registered, replies, batches, owned: Vec::new() };
    let ended = tokio::select! {
        ended = connection.listen(&socket, first) => ended,
        ended = speak(&socket, outgoing) => ended,
    };
    match ended {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && error.kind() != io::ErrorKind::ConnectionReset => {
            tracing::warn!(pid, %error, "a program's connection broke");
        }
        _ => tracing::debug!(pid, "a program has gone"),
    }
}

/// Sends replies as they come.
async fn speak(socket: &Socket, mut outgoing: mpsc::Receiver<Outgoing>) -> io::Result<()> {
    while let Some((message, file)) = outgoing.recv().await {
        match &file {
            Some(file) => socket.send(&message, &[file.as_fd()]).await?,
            None => socket.send(&message, &[]).await?,
        }
    }
    Ok(())
}

impl Connection {
    /// Deals with requests until the program goes away, or says what no program says.
    async fn listen(mut self, socket: &Socket, mut first: Option<Vec<u8>>) -> io::Result<()> {
        loop {
            let message = match first.take() {
                Some(message) => message,
                None => match socket.receive().await? {
                    Some(message) => message,
                    None => return Ok(()),
                },
            };
            match Request::decode(&message) {
                Ok(Request { socket_inode, wish }) => {
                    if self.registered.is_none() {
                        self.registered = Some(self.registry.register(self.pid, socket_inode));
                    }
                    self.grant(socket, socket_inode, wish).await?;
                }
                Err(error) => {
                    let object = format!("process {}", self.pid);
                    self.fail(&Failure::new(Code::InvalidArgument, object, error)).await?;
                }
            }
        }
    }

    async fn grant(&mut self, socket: &Socket, socket_inode: u64, wish: Wish) -> io::Result<()> {
        match wish {
            Wish::Checkpoint { name, ttl, offered } => match self.checkpoint(socket_inode, name, ttl, offered).await {
                Ok(seed) => self.tell_parent(socket, seed).await,
                Err(failure) => self.fail(&failure).await,
            },
            Wish::Fork(fork) => self.fork(fork).await,
            Wish::Hello => self.reply(Reply::Welcome { node: self.node.name.as_str() }).await,
            Wish::Kill { batch, index } => {
                self.batches.kill((batch, index));
                Ok(())
            }
            Wish::Drop { seed } => {
                self.owned.retain(|owned| *owned != seed);
                if self.node.seeds.is_parent(self.pid, &seed) {
                    drop_seed(self.node.clone(), seed);
                }
                Ok(())
            }
        }
    }

    /// Makes a seed of the program, which waits for the answer at this very socket.
    async fn checkpoint(
        &self,
        socket_inode: u64,
        name: String,
        ttl: Option<Duration>,
        offered: Option<Offered>,
    ) -> Result<v1::Seed, Failure> {
        let sockets = self.registry.sockets(self.pid, socket_inode);
        service::prepare_with(&self.node, self.pid, prepare_options(name, ttl, sockets, offered)).await
    }

    /// A program may fork its own seeds.
    async fn fork(&mut self, fork: Fork) -> io::Result<()> {
        if fork.count > FORK_COUNT_MAX {
            let cause = format!("{} children at a time: at most {FORK_COUNT_MAX} can be started", fork.count);
            return self.fail(&Failure::new(Code::InvalidArgument, format!("seed {}", fork.seed), cause)).await;
        }
        if !self.node.seeds.is_parent(self.pid, &fork.seed) {
            let failure =
                Failure::new(Code::NotFound, format!("seed {}", fork.seed), "it is no seed of this program's")
                    .with_next_step("make one with a checkpoint; it lives until it is dropped or its time is over");
            self.batches.refuse(fork, failure);
            return Ok(());
        }
        if fork.owns_seed && !self.owned.contains(&fork.seed) {
            self.node.seeds.keep(&fork.seed);
            self.owned.push(fork.seed.clone());
        }
        self.batches.fork(fork);
        Ok(())
    }

    /// Where the program has gone meanwhile, nobody would know of the seed: it is dropped.
    async fn tell_parent(&self, socket: &Socket, seed: v1::Seed) -> io::Result<()> {
        let told = socket.send(&seed_reply(&seed), &[]).await;
        if told.is_err()
            && let Ok(id) = seed.id.parse()
        {
            drop_seed(self.node.clone(), id);
        }
        told
    }

    async fn fail(&self, failure: &Failure) -> io::Result<()> {
        self.send(failed_reply(failure)).await
    }

    async fn reply(&self, reply: Reply<'_>) -> io::Result<()> {
        self.send(reply.encode()).await
    }

    async fn send(&self, message: Vec<u8>) -> io::Result<()> {
        // The receiver lives as long as the socket.
        self.replies.send((message, None)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// How a program's seed of itself is made.
pub(super) fn prepare_options(
    name: String,
    ttl: Option<Duration>,
    sockets: ProgramSockets,
    offered: Option<Offered>,
) -> PrepareOptions {
    let ttl_ms = ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let offer = offered.map(|Offered { pages, kept_thread }| Offer { mark: Pages::mark(&pages), pages, kept_thread });
    let namespaces = NamespacePolicy::default();
    PrepareOptions { name, freeze: false, ttl_ms, sealed: false, labels: HashMap::new(), namespaces, sockets, offer }
}

/// What a parent is told.
pub(super) fn seed_reply(seed: &v1::Seed) -> Vec<u8> {
    let v1::Seed { id, pause_us, prepare_us, .. } = seed;
    Reply::Seed { seed: id, pause_us: *pause_us, prepare_us: *prepare_us }.encode()
}

/// What a program is told whose request failed.
pub(super) fn failed_reply(failure: &Failure) -> Vec<u8> {
    let (code, text) = (failure.code() as u32, failure.to_string());
    Reply::Failed { batch: 0, index: 0, code, text: &text }.encode()
}

impl Drop for Connection {
    fn drop(&mut self) {
        for seed in std::mem::take(&mut self.owned) {
            drop_seed(self.node.clone(), seed);
        }
    }
}

/// Apart from the connection, which does not wait for it. The program knows what it does, and its children end with it.
fn drop_seed(node: Arc<Node>, seed: SeedId) {
    tokio::spawn(async move {
        if let Err(error) = service::drop_seed(&node, v1::DropRequest { seed: seed.to_string(), force: true }).await {
            tracing::debug!(%error, "a program's seed was dropped already");
        }
    });
}
