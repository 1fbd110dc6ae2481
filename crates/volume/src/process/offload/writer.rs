//! Decides which client may write. A client becomes the writer in the catalog, with a new term. Before another client may
//! write, the log of the present writer is published on each live replica.

use std::io;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{CatalogError, VolumeName, VolumeRecord, VolumeState};
use farfork_rpc::TypedCall;
use farfork_wire::NodeName;

use super::client_session::ClientSender;
use super::node::ReplicaError;
use super::silent_nodes::SilentRemoval;
use super::volume::{PublishWaitError, ReplicatedVolume};
use crate::chain::calls::{CommitLog, FinishTerm, ReleaseWriter, TermEnd};
use crate::chain::writer_turn::{FENCE_WAIT, FencedTerm, FinishStep, RefreshStep, WriteStep};
use crate::chain::{CALL_TIMEOUT, PeerError, membership};
use crate::log::LogPoint;
use crate::mount::LEASE_TIME;
use crate::process::channel::kill_silent_process;
use crate::process::message::OffloadMessage;

/// A client that has not answered `ReleaseWrite` for this time is considered stopped, and is killed.
const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Longest wait of one step. After this time, the step fails, and the requester repeats it. Less than `CALL_TIMEOUT`, so
/// that a caller on another node gets the error.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);
const _: () =
    assert!(LEASE_TIME.as_millis() < FENCE_WAIT.as_millis(), "the clocks of two nodes may differ in their rate");
const _: () = assert!(FENCE_WAIT.as_millis() + STEP_TIMEOUT.as_millis() < CALL_TIMEOUT.as_millis());
/// Wait before a failed attempt is repeated.
const RETRY_WAIT: Duration = Duration::from_millis(50);

/// Why a client still waits to write or to read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TermError {
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("the client of the node: {0}")]
    Client(#[from] io::Error),
    #[error(transparent)]
    Unpublished(#[from] PublishWaitError),
    #[error("node {0}: {late}", late = PublishWaitError::Late)]
    NotApplied(NodeName),
    #[error("node {0} has left the chain")]
    OffChain(NodeName),
    #[error("node {node} is not the head of volume {volume}")]
    NotHead { node: NodeName, volume: VolumeName },
    #[error(transparent)]
    Member(PeerError),
    #[error("{0}, and no other replica is live")]
    LastMembers(PeerError),
    #[error("the chain has no member, or the writer has no node")]
    NoMember,
    #[error("the log is busy")]
    Busy,
}

impl TermError {
    /// Whether the catalog could not be read or written, or has no record of the volume.
    fn is_of_catalog(&self) -> bool {
        matches!(self, Self::Catalog(_) | Self::Replica(ReplicaError::Catalog(_) | ReplicaError::UnknownVolume(_)))
    }
}

/// The result of an attempt to make a client the writer.
enum GrantAttempt {
    Granted,
    /// One step is done, or the catalog has changed: the next attempt follows at once.
    Continues,
    /// The term of the present writer cannot end until the disk of a replica has space.
    DiskFull,
}

impl From<TermEnd> for GrantAttempt {
    fn from(end: TermEnd) -> Self {
        match end {
            TermEnd::Ended => Self::Continues,
            TermEnd::DiskFull => Self::DiskFull,
        }
    }
}

/// Gives the client of this node a number, unless it has one. Returns the record and the number.
///
/// # Errors
/// `BeingDropped`: `drop` has already read which nodes have clients. Otherwise as the catalog.
pub(super) fn register_client(volume: &ReplicatedVolume) -> Result<(VolumeRecord, u16), ReplicaError> {
    let own_name = &volume.node.name;
    let record = volume.update_catalog(|record| {
        let is_new = record.state == VolumeState::Ready && !record.clients.contains(own_name);
        if is_new {
            record.clients.push(own_name.clone());
        }
        is_new
    })?;
    match own_number(volume, &record) {
        Some(number) if record.state == VolumeState::Ready => Ok((record, number)),
        _ => Err(ReplicaError::BeingDropped(volume.key.name.clone())),
    }
}

/// The number of this node's client, if it has one.
fn own_number(volume: &ReplicatedVolume, record: &VolumeRecord) -> Option<u16> {
    record.clients.iter().position(|client| *client == volume.node.name).map(|index| index as u16)
}

/// Makes the client of this node the writer, however long this takes, and sends the grant. While the disk of a replica is
/// full, it sends `DiskFull`, and the client refuses its waiting calls. While the catalog cannot be read, it sends
/// `GrantDelayed`, and the client refuses calls that have waited for their limit.
pub(super) fn grant_write(volume: &ReplicatedVolume, number: u16, sender: &ClientSender) {
    repeat_until_done(volume, sender, "a client waits to write", || {
        let attempt = try_grant(volume, number, sender).inspect_err(|error| {
            // If etcd only refuses changes, as with the alarm NOSPACE, the calls wait.
            if error.is_of_catalog() && volume.node.read_catalog().is_err() {
                sender.send(&OffloadMessage::GrantDelayed);
            }
        });
        match attempt? {
            GrantAttempt::Granted => Ok(true),
            GrantAttempt::Continues => Ok(false),
            GrantAttempt::DiskFull => {
                sender.send(&OffloadMessage::DiskFull);
                Err(PublishWaitError::DiskFull.into())
            }
        }
    });
}

/// Repeats an attempt until it returns true, for as long as the client is connected.
fn repeat_until_done(
    volume: &ReplicatedVolume,
    sender: &ClientSender,
    waiting: &str,
    attempt: impl Fn() -> Result<bool, TermError>,
) {
    let mut is_reported = false;
    while !volume.lock().is_closed && !sender.is_closed() {
        match attempt() {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%error, volume = %volume.key.name, "{waiting}");
                }
                thread::sleep(RETRY_WAIT);
            }
        }
    }
}

fn try_grant(volume: &ReplicatedVolume, number: u16, sender: &ClientSender) -> Result<GrantAttempt, TermError> {
    let record = volume.read_record()?;
    let ended = match WriteStep::of(&record, number, &volume.node.name) {
        // Another thread may just be ending the client for this reason.
        WriteStep::OffChain => return Err(TermError::OffChain(volume.node.name.clone())),
        WriteStep::Begin => return begin_term(volume, record, number, sender),
        WriteStep::EndOwn(term) => match end_term(volume, number, term)? {
            TermEnd::Ended => Some(TermEnd::Ended),
            TermEnd::DiskFull => return continue_term(volume, number, term, sender),
        },
        WriteStep::Finish(fenced) => finish_fenced_term(volume, &record, &fenced)?,
        WriteStep::Release { node, term } => {
            let request = ReleaseWriter { volume: volume.key.clone(), term };
            call_member::<ReleaseWriter>(volume, &record, node.as_ref(), &request, volume.node.attempt_timeout())?
        }
    };
    Ok(ended.map_or(GrantAttempt::Continues, GrantAttempt::from))
}

/// Makes the client the writer in the catalog, and sends the grant. The lock prevents an end of the term between the two
/// steps, so `ReleaseWrite` always follows the grant that it recalls.
fn begin_term(
    volume: &ReplicatedVolume,
    mut record: VolumeRecord,
    number: u16,
    sender: &ClientSender,
) -> Result<GrantAttempt, TermError> {
    let _one_at_a_time = volume.ending_term.lock().unwrap_or_else(PoisonError::into_inner);
    record.term = record.term.max(volume.lock().highest_term());
    if !membership::begin_term(&mut record, number) {
        return Ok(GrantAttempt::Continues);
    }
    let term = record.term;
    match volume.node.catalog.write_volume(&volume.key.name, &record) {
        Ok(_) => {}
        Err(CatalogError::Conflict(_)) => return Ok(GrantAttempt::Continues),
        Err(error) => return Err(error.into()),
    }
    // Passes the new term to the copier before the client can write in it.
    volume.read_record()?;
    send_grant(volume, number, term, sender);
    Ok(GrantAttempt::Granted)
}

/// Continues a term that cannot end because the disk of a replica is full: sends the grant again, so that the client can
/// remove files.
fn continue_term(
    volume: &ReplicatedVolume,
    number: u16,
    term: u32,
    sender: &ClientSender,
) -> Result<GrantAttempt, TermError> {
    let _one_at_a_time = volume.ending_term.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_term(&volume.read_record()?, number, term) {
        return Ok(GrantAttempt::Continues);
    }
    send_grant(volume, number, term, sender);
    Ok(GrantAttempt::Granted)
}

/// Sends the grant to the client. The caller holds `ending_term`.
fn send_grant(volume: &ReplicatedVolume, number: u16, term: u32, sender: &ClientSender) {
    let space = volume.space_for_term(number);
    let mut state = volume.lock();
    let reports = state.log(number).copied.later_space.reports();
    if let Some(client) = state.client_of(number).filter(|client| client.sender.is_same(sender)) {
        client.granted = Some(term);
        client.is_granting = false;
        client.waits_for_report = Some(reports);
    }
    drop(state);
    sender.send(&OffloadMessage::WriteGranted { term, space });
}

/// Ends the term of this node's client: waits until the client has stopped and its log is published everywhere, then removes
/// the writer from the catalog.
pub(super) fn end_term(volume: &ReplicatedVolume, number: u16, term: u32) -> Result<TermEnd, TermError> {
    end_term_after(volume, number, term, || stop_client(volume, number))
}

fn end_term_after(
    volume: &ReplicatedVolume,
    number: u16,
    term: u32,
    stop_client: impl FnOnce() -> Result<(), TermError>,
) -> Result<TermEnd, TermError> {
    let _one_at_a_time = volume.ending_term.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_term(&volume.read_record()?, number, term) {
        return Ok(TermEnd::Ended);
    }
    stop_client()?;
    let end = volume.look_for_end(number, STEP_TIMEOUT).ok_or(PublishWaitError::Late)?;
    match volume.wait_published(number, end, STEP_TIMEOUT) {
        Err(PublishWaitError::DiskFull) => return Ok(TermEnd::DiskFull),
        published => published?,
    }
    volume.update_catalog(|record| !record.is_writer_fenced && membership::end_term(record, number, term))?;
    Ok(TermEnd::Ended)
}

fn is_term(record: &VolumeRecord, number: u16, term: u32) -> bool {
    record.writer == Some(number) && record.term == term && !record.is_writer_fenced
}

/// Ends the term of an earlier client of this node, if it is the writer. The next client has the lock, so the earlier one is
/// dead.
pub(super) fn end_own_term(volume: &ReplicatedVolume, number: u16) -> Result<(), TermError> {
    loop {
        let record = volume.read_record()?;
        if record.writer != Some(number) {
            return Ok(());
        }
        let ended = if record.is_writer_fenced {
            finish_fenced_term(volume, &record, &FencedTerm::of(&record))?
        } else {
            Some(end_term_after(volume, number, record.term, || Ok(()))?)
        };
        match ended {
            Some(TermEnd::Ended) => return Ok(()),
            Some(TermEnd::DiskFull) => return Err(PublishWaitError::DiskFull.into()),
            // The head has left the chain. The next head ends the term.
            None => {}
        }
    }
}

/// Waits until the client can no longer append, because it has released its grant or is dead. Kills a client that does
/// not release its grant in time.
fn stop_client(volume: &ReplicatedVolume, number: u16) -> Result<(), TermError> {
    let deadline = Instant::now() + CLIENT_SILENCE_MAX;
    let mut requested: Option<ClientSender> = None;
    loop {
        let mut state = volume.lock();
        let client = state.client_of(number).map(|client| (client.sender.clone(), client.granted.is_some()));
        let has_successor = state.attaching_client.is_some();
        drop(state);
        match client {
            Some((_, false)) => return Ok(()),
            Some((sender, true)) => {
                if requested.as_ref().is_none_or(|requested| !requested.is_same(&sender)) {
                    sender.send(&OffloadMessage::ReleaseWrite);
                }
                volume.wait_until(RETRY_WAIT, |state| {
                    let client = state.client_of(number);
                    client.is_none_or(|client| client.granted.is_none() || !client.sender.is_same(&sender))
                });
                requested = Some(sender);
            }
            None if has_successor => return Ok(()),
            // A free lock means that the client is dead. Otherwise it has lost its offload process, and will connect again.
            None if volume.directory.try_lock_client()?.is_some() => return Ok(()),
            None => {
                volume.wait_until(RETRY_WAIT, |state| state.client.is_some() || state.attaching_client.is_some());
            }
        }
        if Instant::now() >= deadline {
            kill_client(volume, requested.as_ref())?;
        }
    }
}

/// Kills a client that does not answer, because it might append later. Its supervisor starts the next one.
fn kill_client(volume: &ReplicatedVolume, sender: Option<&ClientSender>) -> io::Result<()> {
    let Some(sender) = sender else { return Err(io::Error::other("it does not connect again")) };
    kill_silent_process(sender.process_id(), STEP_TIMEOUT, || Ok(volume.directory.try_lock_client()?.is_some()))
}

/// Waits until all records that other clients have logged before this call are published on this node. Then sends
/// `Refreshed` to the client.
pub(super) fn refresh(volume: &ReplicatedVolume, number: u16, request: u64, sender: &ClientSender) {
    repeat_until_done(volume, sender, "a file is opened later", || {
        let is_done = try_refresh(volume, number).inspect_err(|error| {
            if error.is_of_catalog() {
                sender.send(&OffloadMessage::RefreshDelayed { request });
            }
        })?;
        if is_done {
            sender.send(&OffloadMessage::Refreshed { request });
        }
        Ok(is_done)
    });
}

/// Makes one attempt to refresh. Returns false when the catalog has changed.
fn try_refresh(volume: &ReplicatedVolume, number: u16) -> Result<bool, TermError> {
    let (record, own_name) = (volume.read_record()?, &volume.node.name);
    match RefreshStep::of(&record, number, own_name) {
        RefreshStep::OffChain => Err(TermError::OffChain(own_name.clone())),
        RefreshStep::Done => Ok(true),
        RefreshStep::Finish(fenced) => match finish_fenced_term(volume, &record, &fenced)? {
            Some(TermEnd::Ended) => Ok(true),
            Some(TermEnd::DiskFull) => Err(PublishWaitError::DiskFull.into()),
            None => Ok(false),
        },
        RefreshStep::Commit { writer, node } => {
            let (request, limit) = (CommitLog(volume.key.clone()), volume.node.attempt_timeout());
            let end = call_member::<CommitLog>(volume, &record, node.as_ref(), &request, limit)?;
            let Some(end) = end else { return Ok(false) };
            let is_published = volume.wait_published_here(writer, end, STEP_TIMEOUT);
            if is_published { Ok(true) } else { Err(TermError::NotApplied(own_name.clone())) }
        }
    }
}

/// Makes the head publish the log of the fenced writer on each live replica, and end the term. As `call_member`.
fn finish_fenced_term(
    volume: &ReplicatedVolume,
    record: &VolumeRecord,
    fenced: &FencedTerm,
) -> Result<Option<TermEnd>, TermError> {
    let request = FinishTerm { volume: volume.key.clone(), term: fenced.term };
    let limit = volume.node.attempt_timeout() + FENCE_WAIT;
    call_member::<FinishTerm>(volume, record, fenced.head.as_ref(), &request, limit)
}

/// Makes a call to a member that a client of this node waits for. If the member is silent for the time of failure detection,
/// it leaves the chain together with all other silent nodes, and the result is none.
fn call_member<C: TypedCall>(
    volume: &ReplicatedVolume,
    record: &VolumeRecord,
    member: Option<&NodeName>,
    request: &C::Request,
    limit: Duration,
) -> Result<Option<C::Reply>, TermError> {
    let member = member.ok_or(TermError::NoMember)?;
    let failure = match volume.node.peers.call::<C>(member, request, limit) {
        Ok(reply) => return Ok(Some(reply)),
        Err(failure) if failure.is_refusal() => return Err(TermError::Member(failure)),
        Err(failure) => failure,
    };
    match volume.remove_silent_nodes(record, member)? {
        SilentRemoval::NotSilent => Err(TermError::Member(failure)),
        SilentRemoval::LastMembers => Err(TermError::LastMembers(failure)),
        SilentRemoval::Removed => Ok(None),
    }
}

/// Handles `FinishTerm` on the head: publishes all records of the fenced writer that the chain has, waits until the lease of
/// the writer has expired, and ends the term.
pub(super) fn finish_term(volume: &ReplicatedVolume, term: u32) -> Result<TermEnd, TermError> {
    let record = volume.read_record()?;
    let writer = match FinishStep::of(&record, term, &volume.node.name) {
        FinishStep::Ended => return Ok(TermEnd::Ended),
        FinishStep::NotHead => {
            return Err(TermError::NotHead { node: volume.node.name.clone(), volume: volume.key.name.clone() });
        }
        FinishStep::Publish(writer) => writer,
    };
    let known_at = Instant::now();
    let end = volume.lock().logs.get(&writer).map(|log| log.copied.chain.stored());
    match end.map_or(Ok(()), |end| volume.wait_published(writer, end, STEP_TIMEOUT)) {
        Err(PublishWaitError::DiskFull) => return Ok(TermEnd::DiskFull),
        published => published?,
    }
    thread::sleep(FENCE_WAIT.saturating_sub(known_at.elapsed()));
    volume.update_catalog(|record| record.is_writer_fenced && membership::end_term(record, writer, term))?;
    Ok(TermEnd::Ended)
}

/// Waits until all records that this node's client has logged before this call are published on each live replica.
pub(super) fn publish_log(volume: &ReplicatedVolume) -> Result<(), TermError> {
    let Some((number, end)) = look_for_own_end(volume)? else { return Ok(()) };
    Ok(volume.wait_published(number, end, STEP_TIMEOUT)?)
}

/// Returns the end of all records that this node's client has logged before this call. The caller waits until its own node has
/// published them. A wait here would end with the caller's time limit, and the next call would wait for later records: never
/// long enough, while a program writes over a slow link.
pub(super) fn commit_log(volume: &ReplicatedVolume) -> Result<LogPoint, TermError> {
    Ok(look_for_own_end(volume)?.map_or(LogPoint::START, |(_, end)| end))
}

/// Returns the number of this node's client, and the end of its log. None if the client has no log on this node.
fn look_for_own_end(volume: &ReplicatedVolume) -> Result<Option<(u16, LogPoint)>, TermError> {
    let record = volume.read_record()?;
    let number = own_number(volume, &record).filter(|number| volume.lock().logs.contains_key(number));
    let Some(number) = number else { return Ok(None) };
    let end = volume.look_for_end(number, STEP_TIMEOUT).ok_or(TermError::Busy)?;
    Ok(Some((number, end)))
}

/// Handles `ReleaseWriter` of another node: ends the term of this node's client.
pub(super) fn release_writer(volume: &ReplicatedVolume, term: u32) -> Result<TermEnd, TermError> {
    let record = volume.read_record()?;
    let Some(number) = own_number(volume, &record) else { return Ok(TermEnd::Ended) };
    end_term(volume, number, term)
}
