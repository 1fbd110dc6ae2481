//! One connected program: handles the program's requests in order, and sends the replies of all tasks that work for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::limits::{FORK_COUNT_MAX, STREAM_MESSAGES_MAX};
use farfork_api::v1;
use farfork_fork::capture::{DaemonSockets, NamespacePolicy, OfferedPages};
use farfork_program::layout::Pages;
use farfork_program::{CaptureOffer, ForkOptions, Reply, Request, RequestBody};
use farfork_wire::SeedId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Code;

use super::fork_table::ProgramForks;
use super::socket::ProgramSocket;
use super::socket_registry::{ChannelSockets, SocketRegistration, SocketRegistry};
use crate::engine::CaptureInputs;
use crate::node::Node;
use crate::seeds::PrepareOptions;
use crate::service;

/// A message to the program, and a descriptor to send with it.
pub(super) type OutgoingMessage = (Vec<u8>, Option<OwnedFd>);

/// The state of one connected program.
struct ProgramConnection {
    node: Arc<Node>,
    registry: Arc<SocketRegistry>,
    /// The process that connected.
    pid: u32,
    registration: Option<SocketRegistration>,
    replies: mpsc::Sender<OutgoingMessage>,
    forks: ProgramForks,
    /// Seeds that are dropped with this connection.
    owned_seeds: Vec<SeedId>,
}

/// A newly accepted program.
#[derive(Debug)]
pub(super) struct AcceptedProgram {
    pub(super) socket: OwnedFd,
    /// The program's first message, if it was read but not handled yet.
    pub(super) first_message: Option<Vec<u8>>,
    pub(super) registration: Option<SocketRegistration>,
    /// The connection's permit out of [`PROGRAM_CONNECTIONS_MAX`](farfork_api::limits::PROGRAM_CONNECTIONS_MAX).
    pub(super) permit: OwnedSemaphorePermit,
}

/// Serves one program until it disconnects. Then its children are killed, and the seeds that it owns are dropped.
pub(super) async fn serve_program(node: Arc<Node>, registry: Arc<SocketRegistry>, arrival: AcceptedProgram) {
    let AcceptedProgram { socket, first_message: first, registration: registered, permit: _permit } = arrival;
    let socket = match ProgramSocket::new(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "cannot watch the socket of a program"),
    };
    let pid = match socket.peer_pid() {
        Ok(Some(pid)) => pid.unsigned_abs(),
        Ok(None) | Err(_) => {
            let text = "program: it has no pid in the daemon's pid namespace; run it there";
            let reply = Reply::Failed { batch: 0, index: 0, code: Code::PermissionDenied as u32, text };
            let _ = socket.send(&reply.encode(), &[]).await;
            return;
        }
    };
    let (replies, outgoing) = mpsc::channel(STREAM_MESSAGES_MAX);
    let sockets = ChannelSockets { registry: registry.clone(), pid, registered: Mutex::default() };
    let forks = ProgramForks::new(node.clone(), sockets, replies.clone());
    let connection =
        ProgramConnection { node, registry, pid, registration: registered, replies, forks, owned_seeds: Vec::new() };
    let ended = tokio::select! {
        ended = connection.read_requests(&socket, first) => ended,
        ended = send_replies(&socket, outgoing) => ended,
    };
    match ended {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && error.kind() != io::ErrorKind::ConnectionReset => {
            tracing::warn!(pid, %error, "the connection of a program failed");
        }
        _ => tracing::debug!(pid, "a program disconnected"),
    }
}

/// Sends replies in the order in which they are queued.
async fn send_replies(socket: &ProgramSocket, mut outgoing: mpsc::Receiver<OutgoingMessage>) -> io::Result<()> {
    while let Some((message, fd)) = outgoing.recv().await {
        match &fd {
            Some(fd) => socket.send(&message, &[fd.as_fd()]).await?,
            None => socket.send(&message, &[]).await?,
        }
    }
    Ok(())
}

impl ProgramConnection {
    /// Handles requests until the program disconnects or the connection fails. The reply to an invalid request is a
    /// failure.
    async fn read_requests(mut self, socket: &ProgramSocket, mut first: Option<Vec<u8>>) -> io::Result<()> {
        loop {
            let message = match first.take() {
                Some(message) => message,
                None => match socket.receive().await? {
                    Some(message) => message,
                    None => return Ok(()),
                },
            };
            match Request::decode(&message) {
                Ok(Request { socket_inode, body }) => {
                    if self.registration.is_none() {
                        self.registration = Some(self.registry.register(self.pid, socket_inode));
                    }
                    self.handle_request(socket, socket_inode, body).await?;
                }
                Err(error) => {
                    let object = format!("process {}", self.pid);
                    self.reply_failure(&Failure::new(Code::InvalidArgument, object, error)).await?;
                }
            }
        }
    }

    async fn handle_request(
        &mut self,
        socket: &ProgramSocket,
        socket_inode: u64,
        request_body: RequestBody,
    ) -> io::Result<()> {
        match request_body {
            RequestBody::Checkpoint { name, ttl, offer: offered } => {
                match self.prepare_seed(socket_inode, name, ttl, offered).await {
                    Ok(seed) => self.reply_seed(socket, seed).await,
                    Err(failure) => self.reply_failure(&failure).await,
                }
            }
            RequestBody::Fork(fork) => self.fork(fork).await,
            RequestBody::Hello => self.reply(Reply::Welcome { node: self.node.name.as_str() }).await,
            RequestBody::Kill { batch, index, keeps_child } => {
                self.forks.kill_child((batch, index), keeps_child);
                Ok(())
            }
            RequestBody::Drop { seed } => {
                self.owned_seeds.retain(|owned| *owned != seed);
                if self.node.seeds.is_parent(self.pid, &seed) {
                    tokio::spawn(drop_seed(self.node.clone(), seed));
                }
                Ok(())
            }
        }
    }

    /// Captures the program, which waits for the reply at this socket.
    async fn prepare_seed(
        &self,
        socket_inode: u64,
        name: String,
        ttl: Option<Duration>,
        offered: Option<CaptureOffer>,
    ) -> Result<v1::Seed, Failure> {
        let sockets = self.registry.sockets(self.pid, socket_inode);
        service::prepare_and_wait(&self.node, self.pid, checkpoint_options(name, ttl, sockets, offered)).await
    }

    /// Starts children of a seed. A program may fork only seeds of itself.
    async fn fork(&mut self, fork: ForkOptions) -> io::Result<()> {
        if fork.count > FORK_COUNT_MAX {
            let cause = format!("{} children at a time: at most {FORK_COUNT_MAX} can be started", fork.count);
            return self
                .reply_failure(&Failure::new(Code::InvalidArgument, format!("seed {}", fork.seed), cause))
                .await;
        }
        if !self.node.seeds.is_parent(self.pid, &fork.seed) {
            let failure =
                Failure::new(Code::NotFound, format!("seed {}", fork.seed), "it is not a seed of this program")
                    .with_next_step("make one with a checkpoint; it lives until it is dropped or its lease expires");
            self.forks.reject_fork(fork, failure);
            return Ok(());
        }
        if fork.owns_seed && !self.owned_seeds.contains(&fork.seed) {
            self.node.seeds.clear_ttl(&fork.seed);
            self.owned_seeds.push(fork.seed.clone());
        }
        if fork.count > 0 {
            self.forks.fork(fork);
        }
        Ok(())
    }

    /// Replies with a seed. If the program has disconnected, the seed is dropped, because the program will never know
    /// its id.
    async fn reply_seed(&self, socket: &ProgramSocket, seed: v1::Seed) -> io::Result<()> {
        let sent = socket.send(&encode_seed_reply(&seed), &[]).await;
        if sent.is_err()
            && let Ok(id) = seed.id.parse()
        {
            tokio::spawn(drop_seed(self.node.clone(), id));
        }
        sent
    }

    async fn reply_failure(&self, failure: &Failure) -> io::Result<()> {
        self.send(encode_failure_reply(failure)).await
    }

    async fn reply(&self, reply: Reply<'_>) -> io::Result<()> {
        self.send(reply.encode()).await
    }

    async fn send(&self, message: Vec<u8>) -> io::Result<()> {
        // The receiver lives as long as the socket.
        self.replies.send((message, None)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Returns the options for a checkpoint that a program requests of itself.
pub(super) fn checkpoint_options(
    name: String,
    ttl: Option<Duration>,
    daemon_sockets: DaemonSockets,
    offered: Option<CaptureOffer>,
) -> PrepareOptions {
    let ttl_ms = ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let offered_pages = offered.map(|CaptureOffer { pages, pinned_thread: kept_thread }| OfferedPages {
        mark: Pages::marker_bytes(&pages),
        pages,
        pinned_thread: kept_thread,
    });
    let namespaces = NamespacePolicy::default();
    let inputs = CaptureInputs { daemon_sockets, offered_pages, serving_pager: None };
    PrepareOptions { name, freeze: false, ttl_ms, sealed: false, labels: HashMap::new(), namespaces, inputs }
}

/// Encodes the reply to the parent of a new seed.
pub(super) fn encode_seed_reply(seed: &v1::Seed) -> Vec<u8> {
    let v1::Seed { id, pause_us, prepare_us, .. } = seed;
    Reply::Seed { seed: id, pause_us: *pause_us, prepare_us: *prepare_us }.encode()
}

/// Encodes the reply to a failed request.
pub(super) fn encode_failure_reply(failure: &Failure) -> Vec<u8> {
    let (code, text) = (failure.code() as u32, failure.to_string());
    Reply::Failed { batch: 0, index: 0, code, text: &text }.encode()
}

impl Drop for ProgramConnection {
    fn drop(&mut self) {
        let (node, kills) = (self.node.clone(), self.forks.kill_all());
        let seeds = std::mem::take(&mut self.owned_seeds);
        tokio::spawn(async move {
            // First the children: one that still lacks pages of a dropped seed would be reported as one that lost its memory.
            kills.join_all().await;
            for seed in seeds {
                tokio::spawn(drop_seed(node.clone(), seed));
            }
        });
    }
}

/// Drops a seed. Forced, because the seed's children end with the program.
async fn drop_seed(node: Arc<Node>, seed: SeedId) {
    if let Err(error) = service::drop_seed(&node, v1::DropRequest { seed: seed.to_string(), force: true }).await {
        tracing::debug!(%error, "a program's seed was dropped already");
    }
}
