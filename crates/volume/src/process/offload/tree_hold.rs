//! The part of a check that each replica does: holds the shared tree at one point, and computes digests. `check` compares
//! the digests.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::rejoin::unreadable_tree;
use super::volume::{ReplicaState, ReplicatedVolume};
use crate::chain::CALL_TIMEOUT;
use crate::chain::calls::{
    DigestData, DigestTree, DigestedTree, FindPaths, HoldTree, LogDamage, ReadInodeDigests, ReleaseTree, ValidateLogs,
};
use crate::log::LogPoint;
use crate::process::control::DIFFERENCES_MAX;
use crate::publish::{
    DATA_PART_BYTES, DataDigester, Digest, DigestedInodes, InodeDigest, PublishedMark, TreeDigest, digest_inodes,
    load_namespace,
};
use crate::record::InodeNumber;
use crate::replay::LogReplay;
use crate::view::InodeContent;

/// A hold ends when no call has named it for this time: the checking node has died.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);
/// As `HOLD_TIMEOUT`, but after the tree was released. The check may have to wait for slower replicas.
const RELEASED_TIMEOUT: Duration = Duration::from_secs(120);
/// The error for a node whose hold has ended.
const NOT_HELD: &str = "the check has ended: the tree is not held any more";
/// A call ends after it has read this number of bytes, so that a check can report its progress. Holes do not count.
const DIGEST_BYTES_MAX: u64 = 4 * DATA_PART_BYTES;
/// Number of ended holds to remember, so that a delayed `HoldTree` does not begin an ended hold again. Fewer checks than
/// this end while a call is delayed.
const ENDED_HOLDS_MAX: usize = 16;
/// Maximum number of digests in the reply to one call.
const DIGESTS_MAX: usize = 8192;

/// A hold of the shared tree.
pub(super) struct TreeHold {
    number: u64,
    /// Epoch of the chain that is checked.
    epoch: u64,
    /// The members of this chain.
    members: Vec<NodeName>,
    /// The point at which publishing of each log stops, by client number. None: publishing continues, and only the digests
    /// are kept.
    points: Option<Vec<LogPoint>>,
    digests: Vec<InodeDigest>,
    /// Time at which the last call has ended. None while a call uses the hold.
    used_at: Option<Instant>,
}

/// A hold that has ended.
pub(super) struct EndedHold {
    number: u64,
    /// Epoch of the chain that was checked.
    epoch: u64,
}

impl TreeHold {
    fn new(request: &HoldTree, members: Vec<NodeName>, points: Vec<LogPoint>) -> Self {
        let (number, epoch) = (request.hold, request.epoch);
        Self { number, epoch, members, points: Some(points), digests: Vec::new(), used_at: Some(Instant::now()) }
    }

    /// The point up to which a log may be published; none without a limit.
    pub(super) fn limit_of(&self, client: u16) -> Option<LogPoint> {
        let points = self.points.as_ref()?;
        Some(points.get(usize::from(client)).copied().unwrap_or(LogPoint::START))
    }

    /// Whether the check has ended without a release: no call has named the hold for some time, or a member that is checked
    /// has left the chain. It may be the checking node, and programs wait for publishing.
    fn is_stale(&self, record: &VolumeRecord) -> bool {
        let limit = if self.points.is_some() { HOLD_TIMEOUT } else { RELEASED_TIMEOUT };
        let has_left = |member: &NodeName| !record.chain.contains(member);
        self.used_at.is_some_and(|used_at| used_at.elapsed() >= limit)
            || (self.points.is_some() && self.members.iter().any(has_left))
    }
}

/// Handles `HoldTree`: stops publishing at the points, or where it is if the request has none. Waits for some time until
/// each log is published up to its point. Returns the points up to which they are published, which may be earlier.
pub(super) fn hold(volume: &ReplicatedVolume, request: &HoldTree) -> Result<Vec<LogPoint>, String> {
    let record = volume.read_record().map_err(|error| error.to_string())?;
    if record.epoch != request.epoch || !record.chain.contains(&volume.node.name) {
        return Err("the chain has changed".to_owned());
    }
    let clients = 0..record.clients.len() as u16;
    {
        let mut state = volume.lock();
        if state.is_publishing_paused() {
            return Err(format!("node {} lends its tree, or a client reads it: try again", volume.node.name));
        }
        // A check that starts again after a change of the chain uses the same number, with a later epoch.
        let has_ended = |ended: &EndedHold| ended.number == request.hold && ended.epoch >= request.epoch;
        if state.ended_holds.iter().any(has_ended) {
            return Err(NOT_HELD.to_owned());
        }
        // A check of an earlier chain fails or starts again. This node may have missed the end of that check.
        let is_other = |hold: &&TreeHold| hold.number != request.hold && hold.epoch >= request.epoch;
        let other = state.hold.as_ref().filter(is_other);
        if other.is_some_and(|hold| !hold.is_stale(&record)) {
            return Err(format!("another check of volume {} is running", volume.key.name));
        }
        let points =
            if request.points.is_empty() { published_points(&state, clients.clone()) } else { request.points.clone() };
        match state.hold_of(request.hold) {
            Some(hold) => {
                (hold.epoch, hold.points) = (request.epoch, Some(points));
                hold.members.clone_from(&record.chain);
            }
            None => state.hold = Some(TreeHold::new(request, record.chain.clone(), points)),
        }
    }
    volume.notify();
    use_hold(volume, request.hold, || {
        volume.wait_not_publishing()?;
        volume.wait_until(CALL_TIMEOUT / 2, |state| {
            let published = published_points(state, clients.clone());
            let has_points = published.iter().zip(&request.points).all(|(published, point)| published >= point);
            has_points && !state.is_tree_partial()
        });
        let state = volume.lock();
        if state.is_tree_partial() { Err(volume.partial_tree()) } else { Ok(published_points(&state, clients)) }
    })
}

fn published_points(state: &ReplicaState, clients: Range<u16>) -> Vec<LogPoint> {
    let point = |client| state.logs.get(&client).map_or(LogPoint::START, |log| log.copied.chain.published().point);
    clients.map(point).collect()
}

/// Computes the digests of all inodes, and keeps them in the hold.
pub(super) fn digest_tree(volume: &ReplicatedVolume, request: &DigestTree) -> Result<DigestedTree, String> {
    let digested = use_hold(volume, request.hold, || {
        Ok(volume.directory.open_shared().and_then(|shared| digest_inodes(&shared)))
    })?;
    let DigestedInodes { digests, mut foreign } = match digested {
        Ok(digested) => digested,
        Err(error) => return Ok(DigestedTree::Unreadable { reason: unreadable_tree(volume, &error) }),
    };
    foreign.truncate(DIFFERENCES_MAX);
    let digest = TreeDigest::of(&digests);
    volume.lock().hold_of(request.hold).ok_or(NOT_HELD)?.digests = digests;
    Ok(DigestedTree::Readable { digest, foreign })
}

/// Returns the digests that follow an inode number.
pub(super) fn read_digests(volume: &ReplicatedVolume, request: &ReadInodeDigests) -> Result<Vec<InodeDigest>, String> {
    use_hold(volume, request.hold, || {
        let mut state = volume.lock();
        let digests = &state.hold_of(request.hold).ok_or(NOT_HELD)?.digests;
        let begin = digests.partition_point(|digest| digest.inode.0 <= request.after);
        Ok(digests[begin..].iter().take(DIGESTS_MAX).copied().collect())
    })
}

/// Computes the digests of the parts in order, of at least one. Stops after the part that reaches `DIGEST_BYTES_MAX` bytes.
pub(super) fn digest_parts(volume: &ReplicatedVolume, request: &DigestData) -> Result<Vec<Option<Digest>>, String> {
    use_hold(volume, request.hold, || {
        let shared = volume.directory.open_shared().map_err(|error| unreadable_tree(volume, &error))?;
        let mut digester = DataDigester::new(shared);
        let mut digests = Vec::new();
        for part in request.parts.iter().copied() {
            digests.push(digester.digest(part).unwrap_or_else(|error| {
                if !volume.is_closed() {
                    tracing::error!(%error, volume = %volume.key.name, ?part, "a part of a file cannot be read");
                }
                None
            }));
            if digester.read_bytes() >= DIGEST_BYTES_MAX {
                break;
            }
        }
        Ok(digests)
    })
}

/// Validates the unpublished part of each log, and the file of its published mark.
pub(super) fn validate_logs(volume: &ReplicatedVolume, request: &ValidateLogs) -> Result<Vec<LogDamage>, String> {
    use_hold(volume, request.hold, || {
        let clients = volume.lock().record.clients.len() as u16;
        (0..clients).map(|client| find_log_damage(volume, client)).collect()
    })
}

fn find_log_damage(volume: &ReplicatedVolume, client: u16) -> Result<LogDamage, String> {
    let (mark, end) = match volume.lock().logs.get(&client) {
        Some(log) => (log.copied.chain.published(), log.copied.chain.committed()),
        None => return Ok(LogDamage::default()),
    };
    let mark_damage = find_mark_damage(volume, client, &mark);
    let log = match volume.directory.open_log(client) {
        Ok(log) => log,
        Err(error) if error.is_loss() && !volume.is_closed() => {
            tracing::error!(%error, volume = %volume.key.name, client, "a log cannot be read");
            return Ok(LogDamage { valid_end: Some(mark.point), mark: mark_damage });
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut replay = LogReplay::new(log.header().ring_bytes, mark.point, mark.epoch);
    let valid_end = replay.read_to(&log, end).err().map(|_| replay.next_point());
    Ok(LogDamage { valid_end, mark: mark_damage })
}

/// Compares the file of a mark with the mark that the worker has reported: the worker writes the file after each change set.
/// If the tree cannot be opened, `digest_tree` reports this.
fn find_mark_damage(volume: &ReplicatedVolume, client: u16, published: &PublishedMark) -> Option<String> {
    let shared = volume.directory.open_shared().ok()?;
    match shared.open_mark(client) {
        Ok(file) if file.mark().point == published.point => None,
        Ok(file) => {
            let (found, expected) = (file.mark().point.position, published.point.position);
            Some(format!("the file has position {found}, and the log is published up to {expected}"))
        }
        Err(error) => Some(format!("the file cannot be read: {error}")),
    }
}

/// Handles `ReleaseTree`: lets publishing continue. The digests stay until the check has ended.
pub(super) fn release(volume: &ReplicatedVolume, request: &ReleaseTree) -> Result<(), String> {
    let mut state = volume.lock();
    if let Some(hold) = state.hold_of(request.hold) {
        hold.points = None;
    }
    if request.is_end {
        state.hold.take_if(|hold| hold.number == request.hold);
        state.ended_holds.push_back(EndedHold { number: request.hold, epoch: request.epoch });
        if state.ended_holds.len() > ENDED_HOLDS_MAX {
            state.ended_holds.pop_front();
        }
    }
    drop(state);
    volume.notify();
    Ok(())
}

/// Returns one path of each inode; none for an inode without an entry. The tree may change during the search.
pub(super) fn find_paths(volume: &ReplicatedVolume, request: &FindPaths) -> Result<Vec<Option<String>>, String> {
    let shared = volume.directory.open_shared();
    let namespace = shared.and_then(|shared| load_namespace(&shared, 0, InodeNumber::ROOT.0));
    let namespace = namespace.map_err(|error| unreadable_tree(volume, &error))?;
    let mut parents = HashMap::new();
    for (number, inode) in namespace.into_inodes() {
        if let InodeContent::Directory { entries, .. } = inode.content {
            parents.extend(entries.after(0).map(|entry| (entry.inode, (number, entry.name.clone()))));
        }
    }
    let path_of = |inode: &InodeNumber| {
        let (mut names, mut at) = (Vec::new(), *inode);
        while at != InodeNumber::ROOT {
            let (parent, name) = parents.get(&at)?;
            names.push(String::from_utf8_lossy(name.as_bytes()).into_owned());
            at = *parent;
        }
        names.reverse();
        Some(format!("/{}", names.join("/")))
    };
    Ok(request.inodes.iter().map(path_of).collect())
}

/// Runs `work`. The hold does not time out before `work` returns. Fails for a volume that was closed meanwhile: `work` may
/// have found its files removed.
fn use_hold<T>(volume: &ReplicatedVolume, number: u64, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    volume.lock().hold_of(number).ok_or(NOT_HELD)?.used_at = None;
    let result = work();
    let mut state = volume.lock();
    if state.is_closed {
        return Err(format!("node {} has closed volume {}", volume.node.name, volume.key.name));
    }
    state.hold_of(number).ok_or(NOT_HELD)?.used_at = Some(Instant::now());
    result
}

impl ReplicaState {
    fn hold_of(&mut self, number: u64) -> Option<&mut TreeHold> {
        self.hold.as_mut().filter(|hold| hold.number == number)
    }
}

impl ReplicatedVolume {
    /// Ends a hold whose checking node may have died.
    pub(super) fn end_stale_hold(&self) {
        let mut state = self.lock();
        let record = Arc::clone(&state.record);
        let ended = state.hold.take_if(|hold| hold.is_stale(&record));
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
    fn files_of_a_closed_volume_are_not_reported_as_damaged() {
        let replica = SingleReplica::create();
        let volume = replica.open().unwrap();
        let epoch = volume.lock().record.epoch;
        let (key, hold_number) = (replica.key.clone(), 5);
        hold(&volume, &HoldTree { volume: key.clone(), epoch, hold: hold_number, points: Vec::new() }).unwrap();
        let digest = DigestTree { volume: key, hold: hold_number };
        assert!(matches!(digest_tree(&volume, &digest), Ok(DigestedTree::Readable { .. })));
        volume.close();
        std::fs::remove_dir_all(volume.directory.path()).unwrap();
        assert!(digest_tree(&volume, &digest).unwrap_err().contains("has closed volume data"));
    }

    #[test]
    fn a_hold_ends_when_a_member_that_is_checked_has_left_the_chain() {
        let replica = SingleReplica::create();
        let volume = replica.open().unwrap();
        let mut record = VolumeRecord::clone(&volume.lock().record);
        record.chain.push(NodeName::new("n2").unwrap());
        let request = HoldTree { volume: replica.key.clone(), epoch: record.epoch, hold: 5, points: Vec::new() };
        let mut hold = TreeHold::new(&request, record.chain.clone(), Vec::new());
        record.epoch += 1;
        assert!(!hold.is_stale(&record), "another replica begins to catch up");
        record.chain.pop();
        assert!(hold.is_stale(&record));
        hold.points = None;
        assert!(!hold.is_stale(&record), "publishing continues, and the digests may be read");
    }
}
