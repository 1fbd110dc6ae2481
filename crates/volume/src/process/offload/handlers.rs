//! Handles the calls of other nodes' offload processes. A call that may wait runs in a thread of its own.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SendError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_fabric::{Region, SeedKey};
use farfork_rpc::{DeferredReply, HandlerTable, ReceivedPayload, TypedCall};
use farfork_wire::token::TOKEN_BYTES;
use farfork_wire::{SeedId, Token};
use serde::de::DeserializeOwned;

use super::node::{OffloadNode, ReplicaError};
use super::received_log::{AppendRefusal, AppendReply, OpenRegion, ReceivedRequest};
use super::volume::{LogProgress, ReplicatedVolume, WaitingThread};
use super::writer::TermError;
use super::{log_copier, rejoin, tree_hold, writer};
use crate::chain::calls::{
    AppendLog, CommitLog, CreateReplica, DescribeReplica, DigestData, DigestTree, DropReplica, FindPaths, FinishTerm,
    HasClient, HasMount, HoldTree, LendTree, OpenAnswer, OpenLog, OpenedLog, PublishLog, ReadInodeDigests, ReadTree,
    ReleaseTree, ReleaseWriter, ReplicaDescription, SaveLastCheck, StoreLog, ValidateLogs, VolumeKey, VolumeRequest,
    answer_call, decode_request,
};
use crate::chain::copier::{LogAnnouncement, ReplyTime};
use crate::chain::{CALL_TIMEOUT, LogRegion, PathVersion, RECORD_BYTES, RESERVE_BYTES};
use crate::process::LogStatus;
use crate::process::work_priority::WorkPriority;
use crate::replica_file::is_lost;

/// Longest wait of `DropReplica` for the lock of the client, which a call of `HasClient` or a client that is refused keeps
/// for a moment. Less than the time that `replace` waits for the reply.
const UNMOUNTED_LOCK_WAIT: Duration = Duration::from_secs(1);

/// The handlers of one server thread.
pub(super) fn handler_table(node: &Arc<OffloadNode>) -> HandlerTable {
    let mut table = HandlerTable::default();
    add_slow::<CreateReplica>(&mut table, node, |node, request| {
        node.create_replica(&request.0).map_err(|error| error.to_string())
    });
    add_slow::<DropReplica>(&mut table, node, |node, request| drop_replica(node, &request.0));
    add_slow::<HasClient>(&mut table, node, |node, request| has_client(node, &request.0));
    add_volume_call::<OpenLog>(&mut table, node, open_log);
    add_volume_call::<DescribeReplica>(&mut table, node, |volume, _| Ok(describe_volume(volume)));
    add_volume_call::<ReleaseWriter>(&mut table, node, |volume, call| text(writer::release_writer(volume, call.term)));
    add_volume_call::<FinishTerm>(&mut table, node, |volume, call| text(writer::finish_term(volume, call.term)));
    add_volume_call::<PublishLog>(&mut table, node, |volume, _| text(writer::publish_log(volume)));
    add_volume_call::<CommitLog>(&mut table, node, |volume, _| text(writer::commit_log(volume)));
    add_volume_call::<LendTree>(&mut table, node, |volume, call| rejoin::lend_tree(volume, call));
    add_volume_call::<ReadTree>(&mut table, node, |volume, call| rejoin::read_tree(volume, call));
    add_volume_call::<HoldTree>(&mut table, node, |volume, call| tree_hold::hold(volume, call));
    add_volume_call::<DigestTree>(&mut table, node, |volume, call| tree_hold::digest_tree(volume, call));
    add_volume_call::<ReadInodeDigests>(&mut table, node, |volume, call| tree_hold::read_digests(volume, call));
    add_volume_call::<DigestData>(&mut table, node, |volume, call| tree_hold::digest_parts(volume, call));
    add_volume_call::<ValidateLogs>(&mut table, node, |volume, call| tree_hold::validate_logs(volume, call));
    add_volume_call::<ReleaseTree>(&mut table, node, |volume, call| tree_hold::release(volume, call));
    add_volume_call::<FindPaths>(&mut table, node, |volume, call| tree_hold::find_paths(volume, call));
    add_volume_call::<HasMount>(&mut table, node, |volume, _| {
        Ok(volume.lock().client.as_ref().is_some_and(|client| client.is_mounted))
    });
    add_volume_call::<SaveLastCheck>(&mut table, node, |volume, call| {
        volume.directory.save_last_check(&call.last).map_err(|error| error.to_string())
    });
    let idle_appends = (node.priority == WorkPriority::Idle).then(|| start_append_thread(node));
    add_append_call(&mut table, node, idle_appends.clone(), |request: AppendLog, reply| ReceivedAppend {
        request,
        reply_time: ReplyTime::Committed,
        reply: AppendReply::Append(reply),
    });
    add_append_call(&mut table, node, idle_appends, |StoreLog { append, has_more, wait_ms }, reply| {
        // The reply to a piece waits only until the piece is validated.
        let wait_ms = if has_more { 0 } else { wait_ms };
        let answer_at = Instant::now() + Duration::from_millis(wait_ms.into());
        let reply_time = ReplyTime::Stored { has_more, answer_at };
        ReceivedAppend { request: append, reply_time, reply: AppendReply::Store(reply) }
    });
    table
}

/// The error text for the caller.
fn text<T>(result: Result<T, TermError>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// New bytes of a log.
struct ReceivedAppend {
    request: AppendLog,
    reply_time: ReplyTime,
    reply: AppendReply,
}

/// Adds a handler for a call that announces new bytes.
fn add_append_call<C: TypedCall<Request = C> + DeserializeOwned>(
    table: &mut HandlerTable,
    node: &Arc<OffloadNode>,
    idle_appends: Option<Sender<ReceivedAppend>>,
    receive: impl Fn(C, DeferredReply) -> ReceivedAppend + Send + 'static,
) {
    let node = Arc::clone(node);
    table.add_deferred_handler(C::ID, move |payload: ReceivedPayload<'_>, reply| {
        let received = match decode_request::<C>(&payload) {
            Ok(request) => receive(request, reply),
            Err(reason) => return reply.refuse(&reason),
        };
        let Some(appends) = &idle_appends else { return append_log(&node, received) };
        if let Err(SendError(ReceivedAppend { reply, .. })) = appends.send(received) {
            reply.refuse("the thread that takes logs has ended");
        }
    });
}

/// Starts a thread that handles new bytes of logs in their order with the priority of the node. The thread that receives
/// calls must not do it: it would wait for locks of threads that wait for a CPU, and receive no `HasClient` meanwhile. Other
/// nodes limit the number of their calls, so the queue needs no limit.
fn start_append_thread(node: &Arc<OffloadNode>) -> Sender<ReceivedAppend> {
    let (sender, received) = mpsc::channel();
    let node = Arc::clone(node);
    let spawned = thread::Builder::new().name("append".to_owned()).spawn(move || {
        node.priority.apply();
        received.into_iter().for_each(|received| append_log(&node, received));
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "the logs of other nodes are not taken: restart this daemon");
    }
    sender
}

/// As `add_slow`, for a call about a replica of this node.
fn add_volume_call<C>(
    table: &mut HandlerTable,
    node: &Arc<OffloadNode>,
    handle: impl Fn(&Arc<ReplicatedVolume>, &C) -> Result<C::Reply, String> + Copy + Send + 'static,
) where
    C: TypedCall<Request = C> + VolumeRequest + DeserializeOwned + Send + 'static,
{
    add_slow::<C>(table, node, move |node, request| handle(&open(node, request.volume())?, &request));
}

/// Adds a handler that runs each call in a thread of its own.
fn add_slow<C>(
    table: &mut HandlerTable,
    node: &Arc<OffloadNode>,
    handle: impl Fn(&Arc<OffloadNode>, C) -> Result<C::Reply, String> + Copy + Send + 'static,
) where
    C: TypedCall<Request = C> + DeserializeOwned + Send + 'static,
{
    let node = Arc::clone(node);
    table.add_deferred_handler(C::ID, move |payload: ReceivedPayload<'_>, reply| {
        let request = match decode_request::<C>(&payload) {
            Ok(request) => request,
            Err(reason) => return reply.refuse(&reason),
        };
        let node = Arc::clone(&node);
        let spawned = thread::Builder::new().name("call".to_owned()).spawn(move || {
            // The answer to `HasClient` shows that this process is alive.
            if C::ID != HasClient::ID {
                node.priority.apply();
            }
            answer_call::<C>(reply, handle(&node, request));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "a call of another node is not answered");
        }
    });
}

fn open(node: &Arc<OffloadNode>, key: &VolumeKey) -> Result<Arc<ReplicatedVolume>, String> {
    node.volume_of(key).map_err(|error| error.to_string())
}

/// Handles `OpenLog`: gives the predecessor a new memory region. The path may have changed, so an earlier predecessor loses
/// its region.
fn open_log(volume: &Arc<ReplicatedVolume>, request: &OpenLog) -> Result<OpenAnswer, String> {
    let record = known_record(volume, request.revision).map_err(|error| error.to_string())?;
    let client = request.client;
    if request.path != PathVersion::of(&record, client) {
        return Ok(OpenAnswer::OtherPath);
    }
    if usize::from(client) >= record.clients.len() {
        return Err(format!("volume {} has no client {client}", volume.key.name));
    }
    let failed = |error: io::Error| format!("node {} cannot open the log: {error}", volume.node.name);
    match log_copier::ensure_open(volume, client) {
        Err(error) if is_disk_full(&error) => return Ok(OpenAnswer::DiskFull),
        opened => opened.map_err(failed)?,
    }
    if !go_back(volume, request)? {
        return Ok(OpenAnswer::PublishedAhead);
    }
    register_region(volume, client).map(OpenAnswer::Opened).map_err(failed)
}

/// The latest record that this node has read. Reads the catalog only if the predecessor has read a later one: the log
/// continues while the catalog does not answer. `docs/decisions/035-catalog-in-etcd.md` has the reasons why this is safe.
fn known_record(volume: &ReplicatedVolume, revision: u64) -> Result<Arc<VolumeRecord>, ReplicaError> {
    let known = Arc::clone(&volume.lock().record);
    if known.revision >= revision { Ok(known) } else { volume.read_record().map(Arc::new) }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes the copier read the log again if the predecessor's log requires this. Returns false when published records would be
/// lost.
fn go_back(volume: &ReplicatedVolume, request: &OpenLog) -> Result<bool, String> {
    let mut state = volume.lock();
    let needs_tree = state.is_catching_up;
    let log = state.log(request.client);
    match log.copied.handle_open(request.published, request.stored, needs_tree) {
        Ok(false) => return Ok(true),
        Ok(true) => {}
        Err(error) => {
            drop(state);
            tracing::error!(%error, volume = %volume.key.name, client = request.client, "the predecessor lacks records");
            return Ok(false);
        }
    }
    drop(state);
    volume.notify();
    let has_restarted = volume.wait_until(CALL_TIMEOUT, |state| !state.log(request.client).copied.must_restart());
    if has_restarted { Ok(true) } else { Err("the log is busy".to_owned()) }
}

fn register_region(volume: &ReplicatedVolume, client: u16) -> io::Result<OpenedLog> {
    let log = volume.directory.open_log(client).map_err(io::Error::other)?;
    let (file, ring_bytes) = (log.try_clone_file()?, log.header().ring_bytes);
    let node = &volume.node;
    let mut secret = [0; TOKEN_BYTES + size_of::<u64>()];
    getrandom::fill(&mut secret)?;
    let (token, number) = secret.split_at(TOKEN_BYTES);
    let token: [u8; TOKEN_BYTES] = token.try_into().expect("it is split there");
    let region = u64::from_le_bytes(number.try_into().expect("it is split there"));
    let key = SeedKey { seed: SeedId::new(node.name.clone(), region), token: Token::from_bytes(token) };

    // The region is dropped while the state is not locked: revoking it waits for running writes.
    let previous = volume.lock().log(client).region.take();
    drop(previous);
    let mut state = volume.lock();
    let log = state.log(client);
    let memory = Arc::new(LogRegion { file, ring_bytes, window: Arc::clone(&log.window) });
    let exported = Arc::clone(&memory) as Arc<dyn Region>;
    let registration = node.regions.register(&key, exported).map_err(io::Error::other)?;
    log.region = Some(OpenRegion { number: region, memory, registration });
    Ok(OpenedLog { region, token, stored: log.copied.chain.stored() })
}

/// Handles `AppendLog` and `StoreLog`: the predecessor announces new bytes of a log.
fn append_log(node: &Arc<OffloadNode>, received: ReceivedAppend) {
    let revision = received.request.revision;
    match node.open_volume_of(&received.request.volume) {
        Ok(Some(volume)) if revision <= volume.lock().record.revision => return take_append(&volume, received),
        Ok(_) => {}
        Err(error) => return received.reply.refuse(&error.to_string()),
    }
    // This thread must not wait for the catalog: it also receives `HasClient`, whose answer shows that this process is alive.
    let node = Arc::clone(node);
    let read_and_take = move || {
        node.priority.apply();
        let current = open(&node, &received.request.volume).and_then(|volume| {
            known_record(&volume, revision).map_err(|error| error.to_string())?;
            Ok(volume)
        });
        match current {
            Ok(volume) => take_append(&volume, received),
            Err(reason) => received.reply.refuse(&reason),
        }
    };
    if let Err(error) = thread::Builder::new().name("append-record".to_owned()).spawn(read_and_take) {
        tracing::error!(%error, "a call of another node is not answered");
    }
}

/// Takes new bytes of a log, if this node has the path of the predecessor.
fn take_append(volume: &ReplicatedVolume, received: ReceivedAppend) {
    let ReceivedAppend { request, reply_time, reply } = received;
    let mut state = volume.lock();
    let path = PathVersion::of(&state.record, request.client);
    let log = state.logs.get_mut(&request.client).filter(|_| request.path == path);
    let Some(log) = log else {
        drop(state);
        return reply.refuse_path();
    };
    let accepted = log
        .take_bytes(&request.bytes)
        .and_then(|()| log.accept_chunks(request.bytes.region, &request.chunks, request.end));
    let expansion = match accepted {
        Ok(expansion) => expansion,
        Err(refusal) => {
            drop(state);
            return match refusal {
                AppendRefusal::OtherPath => reply.refuse_path(),
                AppendRefusal::Invalid(reason) => reply.refuse(&reason),
            };
        }
    };
    let AppendLog { end, is_urgent, needs_space, .. } = request;
    let announcement = LogAnnouncement { path, end, is_urgent, needs_space, reply_time };
    log.copied.handle_append(announcement, ReceivedRequest { expansion, reply });
    drop(state);
    log_copier::copy_now(volume, request.client, false);
    if request.is_urgent {
        volume.notify_thread(WaitingThread::Publisher);
    }
}

/// Handles `DropReplica`: removes a replica that the catalog does not name.
pub(super) fn drop_replica(node: &Arc<OffloadNode>, key: &VolumeKey) -> Result<(), String> {
    let directory = node.store.volume(key.name.as_str());
    let failed = |error: io::Error| format!("node {}: volume {}: {error}", node.name, key.name);
    match directory.id() {
        Ok(id) if id == key.id => {}
        Ok(_) => return Ok(()),
        // Without an id, the files may be those of another volume.
        Err(error) if is_lost(&error) => {
            node.close_volume(key);
            return Ok(());
        }
        Err(error) => return Err(failed(error)),
    }
    node.check_unused(key).map_err(|error| error.to_string())?;
    // Held during the removal, so that no client begins to use the files.
    let lock = match directory.lock_client(UNMOUNTED_LOCK_WAIT) {
        // Another command has removed the replica just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        lock => lock.map_err(failed)?,
    };
    let Some(_lock) = lock else {
        let (node_name, name) = (&node.name, &key.name);
        return Err(if node.is_being_removed(key) {
            format!("node {node_name}: another command removes its replica of volume {name}")
        } else {
            format!("node {node_name}: volume {name} is mounted: unmount it first")
        });
    };
    node.remove_replica(key, || {
        // A `replace` may have given the replica to this node in the meantime.
        node.check_unused(key).map_err(io::Error::other)?;
        fs::remove_dir_all(directory.path())
    })
    .map_err(failed)
}

pub(super) fn describe_replica(node: &Arc<OffloadNode>, key: &VolumeKey) -> Result<ReplicaDescription, String> {
    Ok(describe_volume(&*open(node, key)?))
}

fn describe_volume(volume: &ReplicatedVolume) -> ReplicaDescription {
    let state = volume.lock();
    let clients = state.record.clients.len() as u16;
    let status = |client| state.logs.get(&client).map_or_else(LogStatus::default, LogProgress::status);
    let logs = (0..clients).map(status).collect();
    let (is_stuck, is_checked) = (state.is_full(), state.hold.is_some());
    let is_live = state.record.chain.contains(&volume.node.name);
    let reserved_bytes = volume.reserved_bytes(&state);
    drop(state);
    let is_short = |free: u64| free < RESERVE_BYTES + RECORD_BYTES;
    let (free_bytes, last_check) = (volume.free_space(reserved_bytes), volume.directory.last_check());
    // Writers do not wait for a replica that is not live.
    let is_full = is_live && (is_stuck || free_bytes.is_some_and(is_short));
    ReplicaDescription { logs, free_bytes, is_full, last_check, is_checked }
}

pub(super) fn has_client(node: &Arc<OffloadNode>, key: &VolumeKey) -> Result<bool, String> {
    let directory = node.store.volume(key.name.as_str());
    match directory.id() {
        Ok(id) if id == key.id => {}
        _ => return Ok(false),
    }
    match directory.try_lock_client() {
        // The replica was removed just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // `DropReplica` has the lock while it removes the replica.
        lock => Ok(lock.map_err(|error| error.to_string())?.is_none() && !node.is_being_removed(key)),
    }
}
