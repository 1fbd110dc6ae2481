//! The connection of a client of this node. The client first attaches, then its messages are handled. One thread per
//! connection.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{VolumeName, VolumeRecord, VolumeState};

use super::node::{OffloadNode, ReplicaError};
use super::rejoin::unreadable_tree;
use super::space::SpaceCheck;
use super::volume::{LocalClient, PublishWaitError, ReplicaState, ReplicatedVolume, WaitingThread};
use super::{log_copier, writer};
use crate::chain::calls::HasClient;
use crate::log::LogPoint;
use crate::process::channel::MessageChannel;
use crate::process::message::{AttachedClient, ClientMessage, OffloadMessage};
use crate::publish::{PublishedMark, find_unlinked_inodes, has_applied_others};
use crate::record::InodeNumber;

/// A client that reads no messages for this time is considered stopped, and loses its connection. Later it connects again,
/// and may have to read the namespace again.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait until the log of an earlier client is published everywhere. After this time, the mount is refused.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the end of the connection of an earlier client, which has ended. A thread that serves this connection may
/// wait for another node.
const CLIENT_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the reply to `HasClient`. A node that does not reply may have a client.
const CLIENT_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends messages to a client, from any thread.
#[derive(Clone)]
pub(super) struct ClientSender {
    connection: Arc<ClientConnection>,
}

struct ClientConnection {
    channel: Mutex<MessageChannel>,
    process_id: i32,
    is_closed: AtomicBool,
}

impl ClientSender {
    fn new(channel: MessageChannel) -> io::Result<Self> {
        channel.set_send_timeout(Some(SEND_TIMEOUT))?;
        let (process_id, is_closed) = (channel.peer_process_id()?, AtomicBool::new(false));
        let connection = ClientConnection { channel: Mutex::new(channel), process_id, is_closed };
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Sends a message. After a failure the connection ends, and the client connects again.
    pub(super) fn send(&self, message: &OffloadMessage) {
        let mut channel = self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = channel.send(message) {
            tracing::warn!(%error, "a client is disconnected");
            self.connection.is_closed.store(true, Ordering::Relaxed);
            channel.shut_down();
        }
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.connection.is_closed.store(true, Ordering::Relaxed);
        self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner).shut_down();
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed.load(Ordering::Relaxed)
    }

    /// Whether the client has ended, or has given up.
    fn is_hung_up(&self) -> bool {
        self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner).is_hung_up()
    }

    /// Whether both senders have the same connection.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.connection, &other.connection)
    }

    /// The id of the client's process.
    pub(super) fn process_id(&self) -> i32 {
        self.connection.process_id
    }
}

/// Serves a connection in a thread of its own.
pub(super) fn start(node: &Arc<OffloadNode>, channel: MessageChannel) -> io::Result<()> {
    let node = Arc::clone(node);
    thread::Builder::new().name("client".to_owned()).spawn(move || {
        if let Err(error) = serve(&node, channel) {
            tracing::debug!(%error, "the connection of a client ended");
        }
    })?;
    Ok(())
}

fn serve(node: &Arc<OffloadNode>, mut channel: MessageChannel) -> io::Result<()> {
    let sender = ClientSender::new(channel.try_clone()?)?;
    let attached = match channel.receive::<ClientMessage>()? {
        ClientMessage::Attach { volume } => attach(node, &volume, &sender),
        ClientMessage::Reattach { volume, client, term, tree, applied } => {
            reattach(node, &volume, &EarlierClient { number: client, term, tree, applied }, &sender)
        }
        _ => Err("a client has to attach first".to_owned()),
    };
    let session = match attached {
        Ok(session) => session,
        Err(reason) => {
            sender.send(&OffloadMessage::Refused(reason));
            return Ok(());
        }
    };
    let result = session.serve(&mut channel);
    session.end();
    result
}

/// An attached client.
struct ClientSession {
    volume: Arc<ReplicatedVolume>,
    number: u16,
    sender: ClientSender,
}

impl ClientSession {
    fn serve(&self, channel: &mut MessageChannel) -> io::Result<()> {
        loop {
            match channel.receive::<ClientMessage>()? {
                ClientMessage::Appended => self.request_look(),
                ClientMessage::Commit(point) => self.request_commit(point),
                ClientMessage::CheckSpace(point) => self.check_space(point),
                ClientMessage::Loaded => self.resume_publishing(),
                ClientMessage::Mounted => self.mark_mounted(),
                ClientMessage::Released => {
                    if let Some(client) = self.volume.lock().client_of(self.number) {
                        client.granted = None;
                    }
                    self.volume.notify();
                }
                ClientMessage::AcquireWrite => self.acquire_write()?,
                ClientMessage::Refresh { request } => self.spawn(move |session| {
                    writer::refresh(&session.volume, session.number, request, &session.sender);
                })?,
                ClientMessage::Attach { .. } | ClientMessage::Reattach { .. } => {
                    return Err(io::Error::other("the client is attached already"));
                }
            }
        }
    }

    /// Starts a thread that runs `work`, which may take long. The calling thread continues to receive messages.
    fn spawn(&self, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()> {
        let (volume, number, sender) = (Arc::clone(&self.volume), self.number, self.sender.clone());
        let session = Self { volume, number, sender };
        thread::Builder::new().name("client-request".to_owned()).spawn(move || work(&session))?;
        Ok(())
    }

    /// Starts making this client the writer, unless a thread already does so: its grant answers later requests, too.
    fn acquire_write(&self) -> io::Result<()> {
        let is_granting = match self.volume.lock().client_of(self.number) {
            Some(client) => std::mem::replace(&mut client.is_granting, true),
            None => true,
        };
        if is_granting {
            return Ok(());
        }
        self.spawn(|session| writer::grant_write(&session.volume, session.number, &session.sender))
    }

    fn request_look(&self) {
        self.volume.lock().log(self.number).copied.request_look();
        self.volume.notify_thread(WaitingThread::Reader(self.number));
    }

    fn request_commit(&self, point: LogPoint) {
        let mut state = self.volume.lock();
        let committed = state.log(self.number).copied.chain.committed();
        if committed >= point {
            drop(state);
            return self.sender.send(&OffloadMessage::Committed(committed));
        }
        state.log(self.number).copied.request_look();
        if let Some(client) = state.client_of(self.number) {
            client.commit_requested = Some(client.commit_requested.map_or(point, |earlier| earlier.max(point)));
        }
        drop(state);
        log_copier::copy_now(&self.volume, self.number, true);
    }

    fn check_space(&self, end: LogPoint) {
        let mut state = self.volume.lock();
        let log = &mut state.log(self.number).copied;
        log.request_look();
        log.raise_urgent_end(end);
        let check = SpaceCheck { end, request: log.later_space.request() };
        if let Some(client) = state.client_of(self.number) {
            client.space_check = Some(check);
        }
        drop(state);
        log_copier::copy_now(&self.volume, self.number, true);
        self.volume.notify_thread(WaitingThread::Publisher);
    }

    fn mark_mounted(&self) {
        if let Some(client) = self.volume.lock().client_of(self.number) {
            client.is_mounted = true;
        }
    }

    fn resume_publishing(&self) {
        self.volume.end_loading(&self.sender);
    }

    /// Ends the session. If another client is attached already, that client stays.
    fn end(&self) {
        self.sender.connection.is_closed.store(true, Ordering::Relaxed);
        self.volume.lock().client.take_if(|client| client.sender.is_same(&self.sender));
        self.volume.end_loading(&self.sender);
    }
}

/// Attaches a new client. First publishes the log of an earlier client, and ends its term.
fn attach(node: &Arc<OffloadNode>, name: &str, sender: &ClientSender) -> Result<ClientSession, String> {
    let (volume, record, number) = open_for_client(node, name)?;
    // The new client has the lock. The earlier one may still have another lock if the directory was exchanged just now.
    if !volume.wait_until(CLIENT_END_TIMEOUT, |state| state.client.is_none()) && !volume.is_closed() {
        return Err(format!("volume {name} is mounted on this node already: unmount it first"));
    }
    log_copier::ensure_open(&volume, number)
        .map_err(|error| format!("volume {name}: cannot open the log of this node: {error}"))?;
    volume.lock().attaching_client = Some(sender.clone());
    volume.notify();
    let recovered = recover_log(&volume, &record, number);
    volume.lock().attaching_client.take_if(|attaching| attaching.is_same(sender));
    recovered?;

    let unlinked = if has_other_client(&volume, &record) { Vec::new() } else { unlinked_inodes(&volume)? };
    let log_path = volume.directory.log_path(number);
    let is_only_replica = record.replicas.len() == 1;
    pause_publishing(&volume, sender, |_| true)?;
    start_session(volume, number, None, sender, |marks| {
        let attached = AttachedClient { client: number, log_path, marks, unlinked, is_only_replica };
        OffloadMessage::Attached(Box::new(attached))
    })
}

/// A client that has outlived the previous offload process.
struct EarlierClient {
    number: u16,
    /// The term in which the client may write; none if it may not.
    term: Option<u32>,
    /// Identity of the shared tree that the client has open.
    tree: u64,
    /// The point up to which the client has applied the log of each client, by client number.
    applied: Vec<LogPoint>,
}

fn reattach(
    node: &Arc<OffloadNode>,
    name: &str,
    earlier: &EarlierClient,
    sender: &ClientSender,
) -> Result<ClientSession, String> {
    let EarlierClient { number, term, tree, ref applied } = *earlier;
    let (volume, record, own_number) = open_for_client(node, name)?;
    let has_term = |term| record.writer == Some(number) && record.term == term;
    if own_number != number || !term.is_none_or(has_term) {
        return Err(format!("volume {name}: another client may write by now"));
    }
    // The node may have left the chain and rejoined it with a copied tree, which the client does not have open.
    let present = volume.directory.open_shared().and_then(|shared| shared.identity());
    if present.map_err(|error| unreadable_tree(&volume, &error))? != tree {
        return Err(format!("volume {name}: this node has copied the volume again"));
    }
    // The client reads the tree again if its view is at another point.
    let reads_tree = |state: &ReplicaState| !has_applied_others(number, applied, &published_marks(state, number));
    pause_publishing(&volume, sender, reads_tree)?;
    let session = start_session(volume, number, term, sender, OffloadMessage::Reattached)?;
    session.mark_mounted();
    Ok(session)
}

fn open_for_client(node: &Arc<OffloadNode>, name: &str) -> Result<(Arc<ReplicatedVolume>, VolumeRecord, u16), String> {
    let name = VolumeName::new(name).map_err(|error| error.to_string())?;
    let record = node.record(&name).map_err(|error| error.to_string())?;
    match record.state {
        VolumeState::Ready => {}
        VolumeState::Creating => return Err(format!("volume {name} is being created: try again")),
        VolumeState::Dropping => return Err(format!("volume {name} is being dropped")),
    }
    let volume = match node.volume(&name) {
        Ok(volume) => Some(volume),
        Err(ReplicaError::NoReplica { .. }) => None,
        Err(error) => return Err(error.to_string()),
    };
    let is_live = |volume: &Arc<ReplicatedVolume>| {
        volume.wait_until(RECOVERY_TIMEOUT, |state| state.record.chain.contains(&node.name))
    };
    let Some(volume) = volume.filter(is_live) else {
        let members: Vec<String> = record.chain.iter().map(ToString::to_string).collect();
        let (members, node) = (members.join(", "), &node.name);
        return Err(format!("volume {name}: node {node} has no live replica; mount it on one of {members}"));
    };
    let (record, number) = writer::register_client(&volume).map_err(|error| error.to_string())?;
    Ok((volume, record, number))
}

/// Publishes the log everywhere, so that the new client begins with an empty log.
fn recover_log(volume: &ReplicatedVolume, record: &VolumeRecord, number: u16) -> Result<(), String> {
    let name = &volume.key.name;
    let unpublished = |reason| {
        let replicas: Vec<String> = record.chain.iter().map(ToString::to_string).collect();
        let (replicas, seconds) = (replicas.join(", "), RECOVERY_TIMEOUT.as_secs());
        format!(
            "volume {name}: the log of this node is not published on each of {replicas} within {seconds} s: \
             {reason}; see `farfork volume status {name}`"
        )
    };
    let ended = writer::end_own_term(volume, number);
    ended.map_err(|error| format!("volume {name}: the previous term does not end: {error}"))?;
    let end = volume.look_for_end(number, RECOVERY_TIMEOUT).ok_or_else(|| unpublished(PublishWaitError::Late))?;
    volume.wait_published(number, end, RECOVERY_TIMEOUT).map_err(unpublished)
}

/// Pauses publishing until the client has read the namespace. If the client must read it (`reads_tree`), this waits until the
/// shared tree has no part of a change set. Meanwhile, the client may end, and the next one may attach.
fn pause_publishing(
    volume: &Arc<ReplicatedVolume>,
    sender: &ClientSender,
    reads_tree: impl Fn(&ReplicaState) -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    loop {
        if sender.is_hung_up() {
            return Err("the client has ended".to_owned());
        }
        volume.lock().loading_client = Some(sender.clone());
        let paused = volume.wait_not_publishing();
        let state = volume.lock();
        if paused.is_ok() && !(state.is_tree_partial() && reads_tree(&state)) {
            return Ok(());
        }
        drop(state);
        volume.end_loading(sender);
        paused?;
        volume.wait_whole_tree(deadline.saturating_duration_since(Instant::now()))?;
    }
}

/// Makes a client the client of this node. The caller has paused publishing. `answer` makes the reply from the published
/// marks.
fn start_session(
    volume: Arc<ReplicatedVolume>,
    number: u16,
    granted: Option<u32>,
    sender: &ClientSender,
    answer: impl FnOnce(Vec<PublishedMark>) -> OffloadMessage,
) -> Result<ClientSession, String> {
    // The reply is sent first: the client accepts no other message before it.
    let marks = published_marks(&volume.lock(), number);
    sender.send(&answer(marks));
    let mut state = volume.lock();
    if !state.record.chain.contains(&volume.node.name) {
        // Later changes of the record end the client. The change that has removed this node was applied before
        // `state.client` was set.
        drop(state);
        volume.end_loading(sender);
        return Err(format!("volume {}: this node has left the chain", volume.key.name));
    }
    state.client = Some(LocalClient {
        number,
        sender: sender.clone(),
        is_mounted: false,
        granted,
        is_granting: false,
        commit_requested: None,
        reported_published: None,
        waits_for_report: None,
        space_check: None,
    });
    drop(state);
    volume.notify();
    Ok(ClientSession { volume, number, sender: sender.clone() })
}

/// Returns the published marks of the logs on this node, by client number. The list has all clients of the record, and
/// also the client `number` if the record does not have it yet.
fn published_marks(state: &ReplicaState, number: u16) -> Vec<PublishedMark> {
    let clients = state.record.clients.len() as u16;
    let mark_of =
        |client| state.logs.get(&client).map_or(PublishedMark::start_of(client), |log| log.copied.chain.published());
    (0..clients.max(number + 1)).map(mark_of).collect()
}

impl ReplicatedVolume {
    /// Lets publishing continue, after a client has read the namespace or has ended.
    fn end_loading(&self, sender: &ClientSender) {
        self.lock().loading_client.take_if(|loading| loading.is_same(sender));
        self.notify();
    }
}

/// Whether a client of another node has the volume mounted, or may have.
fn has_other_client(volume: &ReplicatedVolume, record: &VolumeRecord) -> bool {
    let node = &volume.node;
    let others = record.clients.iter().filter(|client| **client != node.name && record.replicas.contains(client));
    let request = &HasClient(volume.key.clone());
    let has_client = |other| node.peers.call::<HasClient>(other, request, CLIENT_CHECK_TIMEOUT).unwrap_or(true);
    // At the same time, so that several dead nodes take no longer than one.
    thread::scope(|scope| {
        let calls: Vec<_> = others.map(|other| scope.spawn(move || has_client(other))).collect();
        calls.into_iter().any(|call| call.join().unwrap_or(true))
    })
}

fn unlinked_inodes(volume: &ReplicatedVolume) -> Result<Vec<InodeNumber>, String> {
    let found = volume.directory.open_shared().map_err(|error| error.to_string());
    let found = found.and_then(|shared| find_unlinked_inodes(&shared).map_err(|error| error.to_string()));
    found.map_err(|error| format!("volume {}: cannot read the shared tree: {error}", volume.key.name))
}
