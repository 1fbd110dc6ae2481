//! Brings a replica that has left the chain back. The replica receives the logs as the last node of each path, copies the
//! shared tree of a member, publishes later records from the logs, and becomes the last member. Clients can write at the
//! same time.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{VolumeRecord, VolumeState};
use farfork_wire::NodeName;

use super::log_copier;
use super::node::ReplicaError;
use super::replica_watch::ReplicaWatch;
use super::volume::{ReplicaState, ReplicatedVolume, WaitingThread};
use crate::chain::calls::{LendTree, LentTree, ReadTree};
use crate::chain::{CALL_TIMEOUT, membership};
use crate::log::LogPoint;
use crate::process::store::ignore_missing;
use crate::publish::{CallBudget, Durability, PublishedMark, Publisher, SharedTree, TreePart, TreeReader};
use crate::replica_file::remove_any;

/// Wait before the next attempt to catch up. Doubled after each further failure, because writers may wait during an attempt.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(500);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the next part of the logs, until all logs are announced. Each member reads the new epoch from the catalog
/// much earlier. A slow link may need longer for all parts.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A loan ends when its tree is not read for this time. A slow link may need `CALL_TIMEOUT` for each part.
const LOAN_TIMEOUT: Duration = Duration::from_secs(30);
const _: () = assert!(LOAN_TIMEOUT.as_millis() > 2 * CALL_TIMEOUT.as_millis());
/// The error for a node whose loan has ended.
const NOT_LENT: &str = "the tree is not lent any more";
/// Longest sleep of the thread. No event reports lost files, or loans and holds that are no longer used, so the thread
/// looks for them.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A shared tree that another node copies. Nothing is published during the loan.
pub(super) struct TreeLoan {
    number: u64,
    /// The epoch of the chain. A node that has lost its place in the chain reads no further.
    epoch: u64,
    /// The open tree; none before it is opened, and while a part is read.
    reader: Option<TreeReader>,
    used_at: Instant,
}

/// Why a node has not caught up yet.
#[derive(Debug, thiserror::Error)]
enum RejoinError {
    #[error("the chain has changed")]
    ChainChanged,
    #[error("not every log is announced, and none has grown for {} s", ANNOUNCEMENT_TIMEOUT.as_secs())]
    NotAnnounced,
    #[error("another replica catches up first")]
    OtherReplica,
    #[error("cannot open its logs: {0}")]
    Logs(io::Error),
    #[error("{0}")]
    Peer(String),
    #[error("a part of its directory is lost")]
    LostPart,
    #[error("cannot build the shared tree: {0}")]
    Tree(#[from] io::Error),
}

/// Starts the thread that brings a replica back whenever it is off the chain.
pub(super) fn start(volume: &Arc<ReplicatedVolume>) -> io::Result<()> {
    let (volume, watch) = (Arc::clone(volume), ReplicaWatch::new(volume));
    thread::Builder::new().name("rejoin".to_owned()).spawn(move || run(&volume, watch))?;
    Ok(())
}

fn run(volume: &Arc<ReplicatedVolume>, mut watch: ReplicaWatch) {
    let mut schedule = RetrySchedule::new();
    loop {
        let mut is_off = false;
        volume.wait_as(WaitingThread::Rejoin, schedule.until_retry().unwrap_or(SLEEP_MAX).min(SLEEP_MAX), |state| {
            is_off = is_off_chain(&state.record, &volume.node.name);
            let has_work = is_off || state.logs.len() < state.record.clients.len();
            has_work && schedule.until_retry().is_none()
        });
        if volume.is_closed() || watch.close_lost_replica() {
            return;
        }
        volume.end_stale_loan();
        volume.end_stale_hold();
        if schedule.until_retry().is_some() {
            continue;
        }
        let opened = open_logs(volume).map_err(RejoinError::Logs);
        let joined = opened.and_then(|()| if is_off { rejoin(volume, &watch).map(Some) } else { Ok(None) });
        if volume.is_closed() {
            return;
        }
        if is_off {
            watch.reopen_tree();
        }
        match joined {
            Ok(epoch) => {
                schedule.reset();
                if let Some(epoch) = epoch {
                    tracing::info!(volume = %volume.key.name, epoch, "this node has caught up, and is a live replica");
                }
            }
            Err(error) if is_off => {
                tracing::warn!(%error, volume = %volume.key.name, "this node has not caught up yet");
                schedule.delay(abort_join(volume, &error));
                remove_silent_node(volume, &error);
            }
            Err(error) => {
                tracing::error!(%error, volume = %volume.key.name, "a log cannot be opened");
                schedule.delay(false);
            }
        }
    }
}

/// The time of the next attempt, and the wait after a further failure.
struct RetrySchedule {
    retry_at: Instant,
    wait: Duration,
}

impl RetrySchedule {
    fn new() -> Self {
        Self { retry_at: Instant::now(), wait: RETRY_WAIT_MIN }
    }

    /// The time until the next attempt; none when it is due.
    fn until_retry(&self) -> Option<Duration> {
        self.retry_at.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// Delays the next attempt after a failure. With `is_own_failure`, the wait after the next failure is longer.
    fn delay(&mut self, is_own_failure: bool) {
        self.retry_at = Instant::now() + self.next_wait(is_own_failure);
    }

    fn next_wait(&mut self, is_own_failure: bool) -> Duration {
        if !is_own_failure {
            return RETRY_WAIT_MIN;
        }
        let longer = (self.wait * 2).min(RETRY_WAIT_MAX);
        std::mem::replace(&mut self.wait, longer)
    }

    fn reset(&mut self) {
        self.wait = RETRY_WAIT_MIN;
    }
}

/// Ends a failed attempt, so that writers do not wait for it. Returns whether this node has caused the failure.
fn abort_join(volume: &ReplicatedVolume, error: &RejoinError) -> bool {
    let own_name = &volume.node.name;
    let is_joining = |record: &VolumeRecord| record.joining.as_ref() == Some(own_name);
    match error {
        RejoinError::OtherReplica => return false,
        // If this node is no longer the joining one, a member has removed it because it did not take a log.
        RejoinError::ChainChanged => return !is_joining(&volume.lock().record),
        RejoinError::NotAnnounced
        | RejoinError::Logs(_)
        | RejoinError::Peer(_)
        | RejoinError::LostPart
        | RejoinError::Tree(_) => {}
    }
    let ended = volume.update_catalog(|record| {
        let epoch = record.epoch;
        is_joining(record) && membership::remove_member(record, own_name, epoch)
    });
    if let Err(error) = ended {
        tracing::warn!(%error, volume = %volume.key.name, "the chain cannot be changed");
    }
    true
}

/// Removes the node that this attempt has waited for, if it is silent. No other node may wait for it.
fn remove_silent_node(volume: &ReplicatedVolume, error: &RejoinError) {
    let record = Arc::clone(&volume.lock().record);
    let suspect = match error {
        RejoinError::OtherReplica => record.joining.as_ref(),
        RejoinError::Peer(_) => record.chain.last(),
        RejoinError::ChainChanged
        | RejoinError::NotAnnounced
        | RejoinError::Logs(_)
        | RejoinError::LostPart
        | RejoinError::Tree(_) => None,
    };
    if let Some(Err(error)) = suspect.map(|suspect| volume.remove_silent_nodes(&record, suspect)) {
        tracing::warn!(%error, volume = %volume.key.name, "the chain cannot be changed");
    }
}

fn is_off_chain(record: &VolumeRecord, node: &NodeName) -> bool {
    record.state == VolumeState::Ready && record.replicas.contains(node) && !record.chain.contains(node)
}

/// Opens the log of each client, even if the client has written nothing yet.
fn open_logs(volume: &Arc<ReplicatedVolume>) -> io::Result<()> {
    let client_count = volume.lock().record.clients.len() as u16;
    (0..client_count).try_for_each(|client| log_copier::ensure_open(volume, client))
}

/// Makes one attempt to rejoin. Returns the epoch in which this node has become a member.
///
/// ```text
/// off the chain ──begin_join──▶ joining: all logs are announced ──copy the tree──▶ ──finish_join──▶ member
///       ▲                           │ the chain has changed, or the member that lends its tree does not answer
///       └───────────────────────────┘
/// ```
fn rejoin(volume: &Arc<ReplicatedVolume>, watch: &ReplicaWatch) -> Result<u64, RejoinError> {
    let own_name = &volume.node.name;
    if volume.node.is_revoked() {
        return Err(peer(ReplicaError::Revoked(own_name.clone())));
    }
    forget_logs(volume);
    let joined_record = volume.update_catalog(|record| membership::begin_join(record, own_name)).map_err(peer)?;
    if joined_record.joining.as_ref() != Some(own_name) {
        return Err(RejoinError::OtherReplica);
    }
    let starts = wait_announced(volume, &joined_record)?;
    let marks = copy_tree(volume, &joined_record, starts, watch)?;
    install_tree(volume, &joined_record, &marks)?;
    let (epoch, client_count) = (joined_record.epoch, joined_record.clients.len());
    let finished = volume.update_catalog(|record| {
        // The log of a client that was added after `begin_join` is not announced on this node.
        record.clients.len() == client_count && membership::finish_join(record, own_name, epoch)
    });
    let finished = finished.map_err(peer)?;
    if finished.chain.contains(own_name) { Ok(finished.epoch) } else { Err(RejoinError::ChainChanged) }
}

/// Resets the logs: their records do not count until the predecessors announce the logs again.
fn forget_logs(volume: &ReplicatedVolume) {
    let mut state = volume.lock();
    state.is_catching_up = true;
    let regions: Vec<_> = state
        .logs
        .values_mut()
        .filter_map(|log| {
            log.copied.chain.forget();
            log.region.take()
        })
        .collect();
    drop(state);
    // Revoking a region waits for writes that are under way.
    drop(regions);
    volume.notify();
}

/// Waits until the predecessor has announced each log. Returns the points at which the logs begin on this node.
fn wait_announced(volume: &Arc<ReplicatedVolume>, joined_record: &VolumeRecord) -> Result<Vec<LogPoint>, RejoinError> {
    open_logs(volume).map_err(RejoinError::Logs)?;
    let clients = 0..joined_record.clients.len() as u16;
    let logged =
        |state: &ReplicaState| -> u64 { state.logs.values().map(|log| log.copied.chain.stored().position).sum() };
    let (mut reached, mut deadline) = (logged(&volume.lock()), Instant::now() + ANNOUNCEMENT_TIMEOUT);
    loop {
        let mut starts = Vec::new();
        let is_announced = volume.wait_until(volume.node.attempt_timeout(), |state| {
            let logs = clients.clone().map(|client| state.logs.get(&client));
            let announced = logs.flatten().filter(|log| log.copied.chain.is_announced());
            starts = announced.map(|log| log.copied.chain.published().point).collect();
            starts.len() == clients.len() || state.record.epoch != joined_record.epoch
        });
        if volume.lock().record.epoch != joined_record.epoch {
            return Err(RejoinError::ChainChanged);
        }
        if is_announced {
            return Ok(starts);
        }
        let present = logged(&volume.lock());
        if present > reached {
            (reached, deadline) = (present, Instant::now() + ANNOUNCEMENT_TIMEOUT);
        }
        if volume.is_closed() || Instant::now() >= deadline {
            return Err(RejoinError::NotAnnounced);
        }
        // The last member announces the logs. Its predecessor does not miss it while nothing is written.
        if let Some(predecessor) = joined_record.chain.last() {
            volume.remove_silent_nodes(joined_record, predecessor).map_err(peer)?;
        }
    }
}

/// Copies the tree of the last member to a directory next to the present tree. Returns the published mark of each log in the
/// copy.
fn copy_tree(
    volume: &ReplicatedVolume,
    joined_record: &VolumeRecord,
    at_least: Vec<LogPoint>,
    watch: &ReplicaWatch,
) -> Result<Vec<PublishedMark>, RejoinError> {
    let lender = joined_record.chain.last().ok_or(RejoinError::ChainChanged)?;
    let peers = &volume.node.peers;
    let request = LendTree { volume: volume.key.clone(), epoch: joined_record.epoch, at_least };
    let lent = peers.call::<LendTree>(lender, &request, CALL_TIMEOUT).map_err(peer)?;
    let path = volume.directory.new_shared_path();
    remove_any(&path)?;
    let built = build_tree(volume, lender, &lent, watch);
    if built.is_err() {
        // Frees the space of the incomplete tree, for example on a full disk.
        let _ = remove_any(&path);
    }
    built.map(|()| lent.marks)
}

fn build_tree(
    volume: &ReplicatedVolume,
    lender: &NodeName,
    lent: &LentTree,
    watch: &ReplicaWatch,
) -> Result<(), RejoinError> {
    let (peers, path) = (&volume.node.peers, volume.directory.new_shared_path());
    SharedTree::create(&path)?;
    let shared = SharedTree::open(&path)?;
    let mut publisher = Publisher::open(shared, Durability::Memory, CallBudget::default()).map_err(io::Error::other)?;
    loop {
        // Copying takes long. A loss that is found only afterwards needs another copy.
        if watch.find_loss()?.is_some() {
            return Err(RejoinError::LostPart);
        }
        let request = ReadTree { volume: volume.key.clone(), loan: lent.loan };
        let part: TreePart = peers.call::<ReadTree>(lender, &request, CALL_TIMEOUT).map_err(peer)?;
        publisher.apply(&part.changes, &mut &part).map_err(io::Error::other)?;
        if part.is_last {
            break;
        }
    }
    for (client, mark) in lent.marks.iter().enumerate() {
        publisher.set_mark(client as u16, *mark).map_err(io::Error::other)?;
    }
    publisher.sync().map_err(io::Error::other)?;
    Ok(())
}

/// Replaces the old tree by the new one. Publishing continues at the marks of the new tree.
fn install_tree(
    volume: &ReplicatedVolume,
    joined_record: &VolumeRecord,
    marks: &[PublishedMark],
) -> Result<(), RejoinError> {
    // The client of this node has the present tree open. The next client opens the new tree.
    volume.end_client("this node copies the volume again");
    volume.wait_not_publishing().map_err(RejoinError::Peer)?;
    let (present, old) = (volume.directory.shared_path(), volume.directory.old_shared_path());
    remove_any(&old)?;
    ignore_missing(fs::rename(&present, &old))?;
    fs::rename(volume.directory.new_shared_path(), &present)?;
    let mut state = volume.lock();
    // If a predecessor has opened a log again, the log may begin after the mark of the tree.
    let has_gap = marks.iter().enumerate().any(|(client, mark)| {
        let log = &state.log(client as u16).copied.chain;
        !log.is_announced() || log.published().point > mark.point
    });
    if state.record.epoch != joined_record.epoch || has_gap {
        return Err(RejoinError::ChainChanged);
    }
    for (client, mark) in marks.iter().enumerate() {
        let log = state.log(client as u16);
        log.copied.chain.install_tree(*mark);
        log.update_window();
    }
    state.is_catching_up = false;
    drop(state);
    volume.notify();
    Ok(remove_any(&old)?)
}

fn peer(error: impl std::fmt::Display) -> RejoinError {
    RejoinError::Peer(error.to_string())
}

/// Handles `LendTree`: pauses publishing, and opens the shared tree for another node.
pub(super) fn lend_tree(volume: &ReplicatedVolume, request: &LendTree) -> Result<LentTree, String> {
    let record = volume.read_record().map_err(|error| error.to_string())?;
    if record.epoch != request.epoch {
        return Err("the chain has changed".to_owned());
    }
    // The reader of an earlier loan has given up. Publishing continues without it, so that the logs reach their points.
    volume.lock().loan = None;
    volume.notify();
    // Half of the time that the caller waits for the reply.
    let has_published = volume.wait_until(CALL_TIMEOUT / 2, |state| {
        let mut at_least = request.at_least.iter().enumerate();
        let published = |client: usize| state.logs.get(&(client as u16)).map(|log| log.copied.chain.published().point);
        let has_points = at_least.all(|(client, point)| published(client).is_some_and(|published| published >= *point));
        has_points && !state.is_tree_partial()
    });
    if !has_published {
        return Err("the logs are not published yet".to_owned());
    }
    let number = getrandom::u64().map_err(|error| error.to_string())?;
    volume.lock().loan = Some(TreeLoan { number, epoch: request.epoch, reader: None, used_at: Instant::now() });
    let opened = volume.wait_not_publishing().and_then(|()| {
        volume.directory.open_shared().and_then(TreeReader::new).map_err(|error| unreadable_tree(volume, &error))
    });
    let mut state = volume.lock();
    let clients = 0..request.at_least.len() as u16;
    let marks = clients.map(|client| state.log(client).copied.chain.published()).collect();
    let result = opened.and_then(|reader| {
        if state.is_tree_partial() {
            return Err(volume.partial_tree());
        }
        let loan = state.loan_of(number).ok_or(NOT_LENT)?;
        (loan.reader, loan.used_at) = (Some(reader), Instant::now());
        Ok(LentTree { loan: number, marks })
    });
    if result.is_err() {
        state.loan.take_if(|loan| loan.number == number);
    }
    drop(state);
    volume.notify();
    result
}

/// Handles `ReadTree`: returns the next part of the tree. After the last part, or an error, publishing continues.
pub(super) fn read_tree(volume: &ReplicatedVolume, request: &ReadTree) -> Result<TreePart, String> {
    let reader = volume.lock().loan_of(request.loan).and_then(|loan| loan.reader.take());
    let mut reader = reader.ok_or(NOT_LENT)?;
    let part = reader.next_part().map_err(|error| unreadable_tree(volume, &error));
    let mut state = volume.lock();
    // While the part was read, the loan may have ended, and the tree may have changed.
    let loan = state.loan_of(request.loan).ok_or(NOT_LENT)?;
    if part.as_ref().is_ok_and(|part| !part.is_last) {
        (loan.reader, loan.used_at) = (Some(reader), Instant::now());
    } else {
        state.loan = None;
    }
    drop(state);
    volume.notify();
    part
}

pub(super) fn unreadable_tree(volume: &ReplicatedVolume, error: &io::Error) -> String {
    format!("node {} cannot read its shared tree: {error}", volume.node.name)
}

impl ReplicaState {
    /// Returns the loan with this number, if it has not ended.
    fn loan_of(&mut self, number: u64) -> Option<&mut TreeLoan> {
        self.loan.as_mut().filter(|loan| loan.number == number)
    }
}

impl ReplicatedVolume {
    /// Ends a loan whose node cannot catch up any more, because the chain has changed; and a loan that was not used for
    /// [`LOAN_TIMEOUT`], because the node that copies the tree may have died.
    fn end_stale_loan(&self) {
        let mut state = self.lock();
        let epoch = state.record.epoch;
        let ended = state.loan.take_if(|loan| loan.epoch != epoch || loan.used_at.elapsed() >= LOAN_TIMEOUT);
        drop(state);
        if ended.is_some() {
            self.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::offload::node::tests::SingleReplica;

    #[test]
    fn a_loan_ends_with_the_epoch_in_which_the_other_node_catches_up() {
        let replica = SingleReplica::create();
        let volume = replica.open().unwrap();
        let epoch = volume.lock().record.epoch;
        let lend = || volume.lock().loan = Some(TreeLoan { number: 1, epoch, reader: None, used_at: Instant::now() });
        lend();
        volume.end_stale_loan();
        assert!(volume.lock().loan.is_some());
        // Another node removes the one that catches up.
        let remove = |record: &mut VolumeRecord| {
            record.epoch += 1;
            true
        };
        volume.update_catalog(remove).unwrap();
        volume.end_stale_loan();
        assert!(volume.lock().loan.is_none());
    }

    #[test]
    fn attempts_that_fail_have_growing_pauses() {
        let mut schedule = RetrySchedule::new();
        assert_eq!(schedule.until_retry(), None);
        let waits = [1, 2, 4, 8, 16, 20, 20].map(|factor| factor * RETRY_WAIT_MIN);
        assert_eq!(waits.map(|_| schedule.next_wait(true)), waits);
        assert_eq!(schedule.next_wait(false), RETRY_WAIT_MIN, "another replica was first");
        schedule.reset();
        assert_eq!(schedule.next_wait(true), RETRY_WAIT_MIN);
    }
}
