//! `farfork volume check`: compares the live replicas of a volume by digests, and repairs damaged ones by a new copy.
//!
//! Inodes are compared while all replicas are held at the same points of the logs. Data is compared while the replicas
//! publish. A part that differs is compared again while the replicas are held. So publishing stops only for short times.

mod attempts;
mod comparison;
mod repair;
pub(super) mod scrub;

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeState;
use farfork_rpc::TypedCall;
use farfork_wire::NodeName;

use self::attempts::{AttemptError, describe_chain_change, repeat_attempts};
use self::comparison::{are_equal, data_parts, differing_inodes, find_damaged};
use super::node::{OffloadNode, ReplicaError};
use crate::chain::CALL_TIMEOUT;
use crate::chain::calls::{
    DigestData, DigestTree, DigestedTree, FindPaths, HoldTree, LogDamage, PublishLog, ReadInodeDigests, ReleaseTree,
    ValidateLogs, VolumeKey,
};
use crate::log::LogPoint;
use crate::process::control::{
    CheckProgress, CheckReport, DIFFERENCES_MAX, DifferenceSubject, ReplicaDifference, VolumeCheck,
};
use crate::publish::{DATA_PART_BYTES, DataPart, Digest, InodeDigest, TreeDigest};
use crate::record::InodeNumber;

/// Longest wait for the digests of all inodes, or of one batch of data.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest wait until all replicas are held at the same points. A client that reads a tree, or a replica that copies one,
/// must finish first.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two reads of the catalog while members are called: a member that left the chain may never answer.
const CHAIN_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait until a member that did not answer has left the chain. If it stays, the check fails.
const CHAIN_CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after a change of the chain, before the replicas are compared again. A node that returns changes the chain several
/// times at short intervals: it leaves, begins to copy, and joins.
const CHAIN_SETTLE_WAIT: Duration = Duration::from_secs(2);
/// Wait before the next attempt to hold the replicas.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Maximum number of parts in one call. Sparse files take few calls, because digests of parts without data cost almost
/// nothing.
const BATCH_PARTS_MAX: usize = 16_384;
/// Maximum number of parts that are compared during one hold. A member can digest this number of parts in one call.
const HELD_PARTS_MAX: usize = 4;

/// A part of a file that differs between replicas.
struct DifferingPart {
    part: DataPart,
    /// Digest of each readable member.
    digests: Vec<Option<Digest>>,
}

/// The result of comparing parts.
struct DataComparison {
    /// Number of parts that were compared.
    part_count: usize,
    differing: Vec<DifferingPart>,
}

/// The replicas that a check compares.
struct ReplicaCheck {
    node: Arc<OffloadNode>,
    key: VolumeKey,
    /// The nodes of the clients, by number.
    clients: Vec<NodeName>,
    members: Vec<NodeName>,
    /// The members whose trees can be read. Digests are in this order.
    readable: Vec<NodeName>,
    epoch: u64,
    hold: u64,
    /// The member that the user has named as correct.
    good: Option<NodeName>,
}

/// Compares the replicas, and repairs them if requested. `report_progress` returns false to end the check.
pub(super) fn check(
    node: &Arc<OffloadNode>,
    request: &VolumeCheck,
    report_progress: impl FnMut(CheckProgress) -> bool,
) -> Result<CheckReport, String> {
    let (key, mut report) = compare(node, request, report_progress)?;
    if request.should_repair {
        match repair::repair(node, &key, &report, request.good.as_ref(), &report.damaged_nodes()) {
            Ok(outcome) => (report.repaired, report.remounting) = (outcome.repaired, outcome.remounting),
            // The differences are reported even if the repair fails.
            Err(reason) => report.repair_failure = Some(reason),
        }
    }
    scrub::save(node, &key, &report);
    Ok(report)
}

/// Compares the replicas. Starts again if the chain changes during the comparison.
fn compare(
    node: &Arc<OffloadNode>,
    request: &VolumeCheck,
    mut report_progress: impl FnMut(CheckProgress) -> bool,
) -> Result<(VolumeKey, CheckReport), String> {
    // All attempts use the same number of the hold: a node that was not reached at the end of an attempt may still be held.
    let hold = getrandom::u64().map_err(|error| error.to_string())?;
    let mut is_wanted = true;
    repeat_attempts(&request.name, || {
        let mut check = ReplicaCheck::start(node, request, hold).map_err(AttemptError::Failed)?;
        let compared = check.compare(&mut |progress| {
            is_wanted = report_progress(progress);
            is_wanted
        });
        let interruption = if compared.is_err() && is_wanted { check.wait_for_interruption() } else { None };
        // Releases all trees, also after a failure.
        check.end();
        let report = compared.map_err(|reason| interruption.unwrap_or(AttemptError::Failed(reason)));
        if matches!(report, Err(AttemptError::ChainChanged(_))) {
            thread::sleep(CHAIN_SETTLE_WAIT);
        }
        report.map(|report| (check.key, report))
    })
}

impl ReplicaCheck {
    fn start(node: &Arc<OffloadNode>, request: &VolumeCheck, hold: u64) -> Result<Self, String> {
        let name = &request.name;
        let record = node.record(name).map_err(|error| error.to_string())?;
        if record.state != VolumeState::Ready {
            return Err(format!("volume {name} is being created or dropped"));
        }
        if let Some(good) = request.good.as_ref().filter(|good| !record.chain.contains(good)) {
            return Err(format!("volume {name}: node {good} has no live replica: see `farfork volume status {name}`"));
        }
        let key = VolumeKey { name: name.clone(), id: record.id };
        if let Some(writer) = record.writer.and_then(|writer| record.clients.get(usize::from(writer))) {
            // Publishes all records that were logged before, so that they are compared. If this fails, the check covers the
            // published part.
            let _ = node.peers.call::<PublishLog>(writer, &PublishLog(key.clone()), CALL_TIMEOUT);
        }
        let node = Arc::clone(node);
        let (members, readable, good) = (record.chain, Vec::new(), request.good.clone());
        Ok(Self { node, key, clients: record.clients, members, readable, epoch: record.epoch, hold, good })
    }

    fn compare(&mut self, report_progress: &mut impl FnMut(CheckProgress) -> bool) -> Result<CheckReport, String> {
        let mut report = CheckReport { replicas: self.members.clone(), ..CheckReport::default() };
        let Some(files) = self.compare_inodes(&mut report)? else { return Ok(report) };
        let mut progress = CheckProgress { compared_bytes: 0, data_bytes: report.data_bytes };
        let mut suspects = Vec::new();
        let mut parts = data_parts(&files);
        let mut batch = VecDeque::new();
        loop {
            batch.extend(parts.by_ref().take(BATCH_PARTS_MAX - batch.len()));
            if batch.is_empty() {
                break;
            }
            if !report_progress(progress) {
                return Err("the command that has started the check has ended".to_owned());
            }
            let batch_parts: Vec<DataPart> = batch.iter().map(|(part, _)| *part).collect();
            let comparison = self.compare_data(&batch_parts)?;
            suspects.extend(comparison.differing.into_iter().map(|differing| differing.part));
            progress.compared_bytes += batch.drain(..comparison.part_count).map(|(_, bytes)| bytes).sum::<u64>();
        }
        report_progress(progress);
        let mut differing = Vec::new();
        for parts in suspects.chunks(HELD_PARTS_MAX) {
            self.hold()?;
            differing.extend(self.compare_data(parts)?.differing);
            self.release();
            if differing.len() >= DIFFERENCES_MAX {
                break;
            }
        }
        self.report_data(&differing, &mut report)?;
        Ok(report)
    }

    /// Compares everything except data. Returns the inode digests of one replica; none if no tree can be read.
    fn compare_inodes(&mut self, report: &mut CheckReport) -> Result<Option<Vec<InodeDigest>>, String> {
        self.hold()?;
        let request = DigestTree { volume: self.key.clone(), hold: self.hold };
        let trees = self.call_all::<DigestTree>(&self.members, &request, DIGEST_TIMEOUT);
        let request = ValidateLogs { volume: self.key.clone(), hold: self.hold };
        let logs = self.call_all::<ValidateLogs>(&self.members, &request, DIGEST_TIMEOUT);
        self.release();
        let (trees, logs) = (trees?, logs?);
        if let Some(AttemptError::ChainChanged(change)) = self.interruption() {
            // A replica that rejoins replaces its tree, even during a hold.
            return Err(change);
        }
        self.report_logs(&logs, report);
        let digests = self.report_trees(trees, report);
        let Some(first) = digests.first() else { return Ok(None) };
        (report.inodes, report.data_bytes) = (first.inodes, first.data_bytes);
        let mut all = vec![self.read_digests(&self.readable[0])?];
        if !are_equal(&digests) {
            for member in &self.readable[1..] {
                all.push(self.read_digests(member)?);
            }
            self.report_inodes(&all, report)?;
        }
        Ok(Some(all.swap_remove(0)))
    }

    fn read_digests(&self, member: &NodeName) -> Result<Vec<InodeDigest>, String> {
        let mut digests: Vec<InodeDigest> = Vec::new();
        loop {
            let after = digests.last().map_or(0, |digest| digest.inode.0);
            let request = ReadInodeDigests { volume: self.key.clone(), hold: self.hold, after };
            let part = self.call::<ReadInodeDigests>(member, &request, CALL_TIMEOUT)?;
            if part.is_empty() {
                return Ok(digests);
            }
            digests.extend(part);
        }
    }

    /// Compares the parts that every member digests in one call, from the first part on. These may be fewer than `parts`.
    fn compare_data(&self, parts: &[DataPart]) -> Result<DataComparison, String> {
        let request = DigestData { volume: self.key.clone(), hold: self.hold, parts: parts.to_vec() };
        let replies = self.call_all::<DigestData>(&self.readable, &request, DIGEST_TIMEOUT)?;
        let part_count = replies.iter().map(Vec::len).min().unwrap_or(0).min(parts.len());
        if part_count == 0 {
            return Err("a member has digested no data".to_owned());
        }
        let mut differing = Vec::new();
        for (index, part) in parts[..part_count].iter().enumerate() {
            let digests: Vec<_> = replies.iter().map(|digests| digests[index]).collect();
            if !are_equal(&digests) {
                differing.push(DifferingPart { part: *part, digests });
            }
        }
        Ok(DataComparison { part_count, differing })
    }

    /// Stops publishing on all members, at the same points.
    fn hold(&self) -> Result<(), String> {
        let deadline = Instant::now() + HOLD_TIMEOUT;
        loop {
            let Err(reason) = self.try_hold() else { return Ok(()) };
            self.release();
            if self.interruption().is_some() {
                return Err(reason);
            }
            if Instant::now() >= deadline {
                let name = &self.key.name;
                return Err(format!("volume {name}: the replicas cannot be compared now, try again: {reason}"));
            }
            thread::sleep(RETRY_WAIT);
        }
    }

    fn try_hold(&self) -> Result<(), String> {
        let request = |points| HoldTree { volume: self.key.clone(), epoch: self.epoch, hold: self.hold, points };
        // Hold the head first. Of two concurrent checks, only the check that gets the head then holds the other members.
        self.call_all::<HoldTree>(&self.members[..1], &request(Vec::new()), CALL_TIMEOUT)?;
        let present = self.call_all::<HoldTree>(&self.members, &request(Vec::new()), CALL_TIMEOUT)?;
        if are_equal(&present) {
            return Ok(());
        }
        let logs = present.iter().map(Vec::len).max().unwrap_or(0);
        let point = |log: usize| present.iter().filter_map(|points| points.get(log).copied()).max();
        let points: Vec<LogPoint> = (0..logs).filter_map(point).collect();
        let held = self.call_all::<HoldTree>(&self.members, &request(points.clone()), CALL_TIMEOUT)?;
        if held.iter().all(|held| *held == points) { Ok(()) } else { Err("they are at different points".to_owned()) }
    }

    /// Lets publishing continue.
    fn release(&self) {
        self.release_trees(false);
    }

    /// Lets publishing continue, and ends the hold, so that another check may begin.
    fn end(&self) {
        self.release_trees(true);
    }

    /// Calls `ReleaseTree` on all members. A member that cannot be reached releases its tree after a timeout.
    fn release_trees(&self, is_end: bool) {
        let request = ReleaseTree { volume: self.key.clone(), epoch: self.epoch, hold: self.hold, is_end };
        let _ = self.call_each::<ReleaseTree>(&self.members, &request, CALL_TIMEOUT);
    }

    fn call<C: TypedCall>(&self, member: &NodeName, request: &C::Request, limit: Duration) -> Result<C::Reply, String> {
        self.node.peers.call::<C>(member, request, limit).map_err(|error| error.to_string())
    }

    /// Calls several members at once. Stops waiting for replies when the chain has changed, or the volume is dropped.
    fn call_each<C>(&self, members: &[NodeName], request: &C::Request, limit: Duration) -> Vec<Result<C::Reply, String>>
    where
        C: TypedCall,
        C::Request: Clone + Send + 'static,
        C::Reply: Send + 'static,
    {
        let (sender, replies) = mpsc::channel();
        for (index, member) in members.iter().enumerate() {
            let (node, member, request, sender) =
                (Arc::clone(&self.node), member.clone(), request.clone(), sender.clone());
            let call = move || {
                let reply = node.peers.call::<C>(&member, &request, limit).map_err(|error| error.to_string());
                // An error means that the check no longer waits for replies.
                let _ = sender.send((index, reply));
            };
            if let Err(error) = thread::Builder::new().name("check-call".to_owned()).spawn(call) {
                tracing::error!(%error, "a member is not called");
            }
        }
        drop(sender);
        let no_answer = |member: &NodeName| Err(format!("node {member} does not answer"));
        let mut results: Vec<_> = members.iter().map(no_answer).collect();
        loop {
            match replies.recv_timeout(CHAIN_POLL_INTERVAL) {
                Ok((index, reply)) => results[index] = reply,
                Err(mpsc::RecvTimeoutError::Timeout) if self.interruption().is_none() => {}
                Err(_) => return results,
            }
        }
    }

    fn call_all<C>(&self, members: &[NodeName], request: &C::Request, limit: Duration) -> Result<Vec<C::Reply>, String>
    where
        C: TypedCall,
        C::Request: Clone + Send + 'static,
        C::Reply: Send + 'static,
    {
        self.call_each::<C>(members, request, limit).into_iter().collect()
    }

    /// Why the members need not be compared any more: the chain has changed, or the volume is dropped.
    fn interruption(&self) -> Option<AttemptError> {
        let name = &self.key.name;
        let ended = |what| Some(AttemptError::Failed(format!("volume {name} {what} dropped: the check has ended")));
        match self.node.record(name) {
            Ok(record) if record.id == self.key.id => match record.state {
                VolumeState::Dropping => ended("is being"),
                _ if record.epoch == self.epoch => None,
                _ => Some(AttemptError::ChainChanged(describe_chain_change(&self.members, &record.chain))),
            },
            Ok(_) | Err(ReplicaError::UnknownVolume(_)) => ended("was"),
            Err(_) => None,
        }
    }

    /// As `interruption`, but waits for one: a member that does not answer will soon leave the chain.
    fn wait_for_interruption(&self) -> Option<AttemptError> {
        let deadline = Instant::now() + CHAIN_CHANGE_TIMEOUT.min(2 * self.node.detection_time);
        loop {
            let interruption = self.interruption();
            if interruption.is_some() || Instant::now() >= deadline {
                return interruption;
            }
            thread::sleep(RETRY_WAIT);
        }
    }
}

/// Adds results to the report.
impl ReplicaCheck {
    fn damaged<T: PartialEq>(&self, values: &[T]) -> Vec<NodeName> {
        find_damaged(values, self.good_index()).into_iter().map(|index| self.readable[index].clone()).collect()
    }

    /// The index of `good` in `readable`; none also when the tree of this member cannot be read.
    fn good_index(&self) -> Option<usize> {
        self.readable.iter().position(|member| Some(member) == self.good.as_ref())
    }

    fn report_logs(&self, logs: &[Vec<LogDamage>], report: &mut CheckReport) {
        let mut add = |subject, member: &NodeName| {
            report.differences.push(ReplicaDifference { subject, damaged: vec![member.clone()] });
        };
        for (member, damages) in self.members.iter().zip(logs) {
            for (client, damage) in self.clients.iter().zip(damages) {
                let client = || client.clone();
                if let Some(LogPoint { position, .. }) = damage.valid_end {
                    add(DifferenceSubject::Log { client: client(), position }, member);
                }
                if let Some(reason) = damage.mark.clone() {
                    add(DifferenceSubject::Mark { client: client(), reason }, member);
                }
            }
        }
    }

    /// Reports each tree that cannot be read, and foreign files. Returns the digests of the readable trees.
    fn report_trees(&mut self, trees: Vec<DigestedTree>, report: &mut CheckReport) -> Vec<TreeDigest> {
        let mut digests = Vec::new();
        for (member, tree) in self.members.iter().zip(trees) {
            let reasons = match tree {
                DigestedTree::Unreadable { reason } => vec![reason],
                DigestedTree::Readable { digest, foreign } => {
                    digests.push(digest);
                    self.readable.push(member.clone());
                    foreign.into_iter().map(|path| format!("{path} is no file of the volume")).collect()
                }
            };
            report.differences.extend(reasons.into_iter().map(|reason| {
                let subject = DifferenceSubject::Tree { reason };
                ReplicaDifference { subject, damaged: vec![member.clone()] }
            }));
        }
        digests
    }

    fn report_inodes(&self, replicas: &[Vec<InodeDigest>], report: &mut CheckReport) -> Result<(), String> {
        let mut differing = differing_inodes(replicas);
        differing.truncate(DIFFERENCES_MAX);
        let paths = self.find_paths(differing.iter().map(|(inode, _)| *inode).collect())?;
        for ((inode, digests), path) in differing.into_iter().zip(paths) {
            let subject = DifferenceSubject::Inode { inode: inode.0, path };
            report.differences.push(ReplicaDifference { subject, damaged: self.damaged(&digests) });
        }
        Ok(())
    }

    fn report_data(&self, differing: &[DifferingPart], report: &mut CheckReport) -> Result<(), String> {
        let paths = self.find_paths(differing.iter().map(|differing| differing.part.inode).collect())?;
        for (DifferingPart { part, digests }, path) in differing.iter().zip(paths) {
            let begin = part.index * DATA_PART_BYTES;
            let range = begin..begin + DATA_PART_BYTES;
            let subject = DifferenceSubject::Data { inode: part.inode.0, path, range };
            report.differences.push(ReplicaDifference { subject, damaged: self.damaged(digests) });
        }
        Ok(())
    }

    fn find_paths(&self, inodes: Vec<InodeNumber>) -> Result<Vec<Option<String>>, String> {
        if inodes.is_empty() {
            return Ok(Vec::new());
        }
        let member = &self.readable[self.good_index().unwrap_or(0)];
        self.call::<FindPaths>(member, &FindPaths { volume: self.key.clone(), inodes }, DIGEST_TIMEOUT)
    }
}
