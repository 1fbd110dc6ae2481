//! Executes the tasks and actions of the copiers of simulated nodes: reads records, and sends and receives messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

use super::network::{SimEvent, SimMessage, SimProcess, SimReply, SimWrite};
use super::sim_log::{SimRequest, count_of};
use super::{ChainSimulation, DETECTION_TIME};
use crate::chain::calls::StoredLog;
use crate::chain::copier::{
    LogAnnouncement, LogClient, LogSource, PieceAnnouncement, ReadResult, ReadTask, ReplyTime, SendAction, SendFailure,
    StartedTask,
};
use crate::chain::membership::{remove_member, remove_silent};
use crate::chain::{PathVersion, TreeSpace};
use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// A node that answers within this time is alive, so the other nodes are not called.
const PROMPT_ANSWER_MAX: Duration = Duration::from_millis(100);
/// Longest time until a copier looks for work.
const SLEEP_MAX: Duration = Duration::from_secs(1);

impl ChainSimulation {
    /// Executes the work of a log on a node that needs no wait, and schedules the next look.
    pub(super) fn drive(&mut self, node: usize, log: usize) {
        if !self.nodes[node].is_alive {
            return;
        }
        let mut wake_at = self.network.now + SLEEP_MAX;
        loop {
            let has_read = self.read_records(node, log, &mut wake_at);
            let has_sent = self.forward(node, log, &mut wake_at);
            self.reply(node, log);
            if !has_read && !has_sent {
                break;
            }
        }
        let scheduled = &mut self.nodes[node].logs[log].wake_at;
        if scheduled.is_none_or(|scheduled| wake_at < scheduled) {
            *scheduled = Some(wake_at);
            self.network.schedule(wake_at, SimEvent::Wake { node, log });
        }
    }

    /// Reads the records that are due. Returns false if none are.
    fn read_records(&mut self, node: usize, log: usize, wake_at: &mut Instant) -> bool {
        let SimNodeView { record, is_client } = self.view(node, log);
        let now = self.network.now;
        let state = &mut self.nodes[node].logs[log];
        let commit_requested = Some(state.records.end());
        let client = is_client.then_some(LogClient { commit_requested });
        let Some(task) = state.validator.poll_task(&record, client, &state.copied, now, wake_at) else { return false };
        if let Some(restart) = task.restart {
            state.records.restart(restart);
        }
        let from = task.restart.map_or(state.copied.chain.stored(), |restart| restart.end);
        let ReadTask { source, ref record, .. } = task;
        let stored = match source {
            LogSource::Client => {
                let new = &state.records.entries[count_of(from)..];
                let valid = new.iter().take_while(|entry| entry.term == record.term).count();
                state.records.point_of(count_of(from) + valid)
            }
            LogSource::Predecessor { end } => state.records.validate(from, end.max(from)),
        };
        let result = state.validator.handle_records(&task, stored, record, &mut state.copied, now);
        if let ReadResult::Stored { refused, is_client_invalid } = result {
            let place = || format!("seed {}: log {log} of node {node}: {task:?}\n{}", self.seed, self.describe());
            assert!(refused.is_empty(), "a piece is announced before its bytes have arrived: {}", place());
            assert!(!is_client_invalid, "a record of the writer is not valid: {}", place());
        }
        true
    }

    /// Sends the records that are due. Returns false if nothing can be sent now.
    fn forward(&mut self, node: usize, log: usize, wake_at: &mut Instant) -> bool {
        let SimNodeView { record, .. } = self.view(node, log);
        let now = self.network.now;
        let needs_space = !self.is_healing && self.random.u32(..50) == 0;
        let state = &mut self.nodes[node].logs[log];
        if state.forwarder.successor().is_none() {
            if needs_space {
                // A client may ask for the space on the disks at any time.
                state.copied.later_space.request();
            }
            let Some(task) = state.forwarder.poll_task(&record, &state.copied, false, now, wake_at) else {
                return false;
            };
            match state.forwarder.start(&task, &mut state.copied, now) {
                StartedTask::Sending => {}
                StartedTask::Refused(requests) => {
                    requests.into_iter().for_each(|request| self.send_reply(node, request, SimReply::OtherPath));
                }
                StartedTask::Committed | StartedTask::Idle => {}
            }
        }
        let state = &self.nodes[node].logs[log];
        let Some(successor) = state.forwarder.successor().cloned() else {
            self.schedule_publishing(node);
            return true;
        };
        let successor = self.index_of(&successor);
        loop {
            let state = &mut self.nodes[node].logs[log];
            match state.forwarder.poll_action(&state.records, now) {
                SendAction::End => {
                    self.schedule_publishing(node);
                    return true;
                }
                SendAction::Pending => return false,
                SendAction::Wait(at) => match state.forwarder.handle_timer(now) {
                    Ok(()) => {
                        *wake_at = (*wake_at).min(at);
                        return false;
                    }
                    Err(_) => state.forwarder.handle_failure(SendFailure::Unanswered, &mut state.copied, now),
                },
                action => self.execute(node, log, successor, action),
            }
        }
    }

    fn execute(&mut self, node: usize, log: usize, successor: usize, action: SendAction) {
        let Some(task) = self.nodes[node].logs[log].forwarder.task() else { return };
        let (path, revision, epoch) = (task.path, task.record.revision, task.record.epoch);
        let now = self.network.now;
        let to = SimProcess { node: successor, boot: self.nodes[successor].boot };
        match action {
            SendAction::Open { published, stored, timeout } => {
                let request = self.start_call(node, log, timeout);
                self.nodes[node].logs[log].link = request.number;
                self.send(node, to, SimMessage::Open { request, path, published, stored });
            }
            SendAction::Write { from, to: end, .. } => {
                let state = &self.nodes[node].logs[log];
                let request = SimRequest { node, log, number: state.link };
                let (region, data) = (state.successor_region, state.records.read(from, end));
                self.send(node, to, SimMessage::Write { request, region, data });
            }
            SendAction::Announce(piece) => {
                let request = self.start_call(node, log, piece.timeout);
                let state = &self.nodes[node].logs[log];
                let read = |from: u64| state.records.read(from, piece.end.position.max(from));
                let data = piece.inline_from.map_or_else(SimWrite::default, |from| read(from.position));
                let region = state.successor_region;
                self.send(node, to, SimMessage::Store { request, path, revision, region, piece, data });
            }
            SendAction::Probe => {
                let request = self.start_call(node, log, Duration::MAX);
                self.network
                    .schedule(now + PROMPT_ANSWER_MAX, SimEvent::Probed { request, suspect: successor, since: now });
            }
            SendAction::Validate => self.nodes[node].logs[log].forwarder.handle_validated(true),
            SendAction::Leave => {
                let name = self.nodes[node].name.clone();
                self.change(node, |record| remove_member(record, &name, epoch));
                let has_left = (!self.is_catalog_dead).then(|| !self.record.chain.contains(&name));
                self.nodes[node].logs[log].forwarder.handle_left(has_left);
            }
            SendAction::Remove(silent) => self.remove_successor(node, log, successor, epoch, &silent),
            SendAction::ReadRecord => self.refresh(node),
            SendAction::Wait(_) | SendAction::Pending | SendAction::End => {}
        }
    }

    fn remove_successor(&mut self, node: usize, log: usize, successor: usize, epoch: u64, silent: &[NodeName]) {
        let (own, name) = (self.nodes[node].name.clone(), self.nodes[successor].name.clone());
        if silent.is_empty() {
            let is_removed = self.change(node, |record| remove_member(record, &name, epoch));
            self.counts.refusals += u32::from(is_removed);
        } else {
            let is_removed = self.change(node, |record| remove_silent(record, silent, &own, epoch));
            self.counts.fail_overs += u32::from(is_removed);
        }
        let is_done = !self.is_catalog_dead;
        self.nodes[node].logs[log].forwarder.handle_removed(is_done);
    }

    /// Begins a call with a time limit.
    fn start_call(&mut self, node: usize, log: usize, timeout: Duration) -> SimRequest {
        let state = &mut self.nodes[node].logs[log];
        state.call += 1;
        let request = SimRequest { node, log, number: state.call };
        if let Some(at) = self.network.now.checked_add(timeout) {
            self.network.schedule(at, SimEvent::CallTimeout(request));
        }
        request
    }

    fn send(&mut self, from: usize, to: SimProcess, message: SimMessage) {
        self.network.send(&mut self.random, from, to, message);
    }

    fn send_reply(&mut self, from: usize, request: SimRequest, reply: SimReply) {
        let to = SimProcess { node: request.node, boot: self.nodes[request.node].boot };
        self.send(from, to, SimMessage::Reply { request, reply });
    }

    /// Replies to the predecessor, and acknowledges records to the client.
    fn reply(&mut self, node: usize, log: usize) {
        let path = PathVersion::of(&self.nodes[node].known, log as u16);
        let (now, own) = (self.network.now, self.space_of(node));
        let copied = &mut self.nodes[node].logs[log].copied;
        let due = copied.take_replies(path, now);
        let (committed, published) = (copied.chain.committed(), copied.chain.published_everywhere());
        let space = copied.later_space.is_known().then(|| copied.later_space.reported().min(own));
        due.other_path.into_iter().for_each(|request| self.send_reply(node, request, SimReply::OtherPath));
        let stored = |is_complete| SimReply::Stored(StoredLog { committed, published, space, is_complete });
        due.complete.into_iter().for_each(|request| self.send_reply(node, request, stored(true)));
        due.early.into_iter().for_each(|request| self.send_reply(node, request, stored(false)));
        if log == node && self.nodes[node].term.is_some() {
            let entries = &self.nodes[node].logs[log].records.entries[..count_of(committed)];
            let last = self.acknowledged.last().copied();
            let new = entries.iter().rev().take_while(|entry| entry.term > 0 && last.is_none_or(|last| last < **entry));
            let new: Vec<_> = new.copied().collect();
            self.acknowledged.extend(new.into_iter().rev());
        }
    }

    fn space_of(&self, node: usize) -> TreeSpace {
        if self.nodes[node].is_disk_full(self.network.now) { TreeSpace::Full } else { TreeSpace::UNLIMITED }
    }

    /// Handles a message that has arrived.
    pub(super) fn handle_message(&mut self, node: usize, message: SimMessage) {
        match message {
            SimMessage::Open { request, path, published, stored } => {
                self.refresh(node);
                let reply = self.open_log(node, request.log, path, published, stored);
                self.send_reply(node, request, reply);
            }
            SimMessage::Write { request, region, data } => {
                let log = &mut self.nodes[node].logs[request.log];
                let reply = if log.region == region { SimReply::Written(data.to) } else { SimReply::Revoked };
                if log.region == region {
                    log.records.write(data);
                }
                self.send_reply(node, request, reply);
            }
            SimMessage::Store { request, path, revision, region, piece, data } => {
                if revision > self.nodes[node].known.revision {
                    self.refresh(node);
                }
                self.store_log(node, request, path, region, &piece, data);
                self.drive(node, request.log);
            }
            SimMessage::Reply { request, reply } => {
                self.handle_reply(request, reply);
                self.drive(node, request.log);
            }
        }
    }

    fn open_log(
        &mut self,
        node: usize,
        log: usize,
        path: PathVersion,
        published: PublishedMark,
        stored: LogPoint,
    ) -> SimReply {
        let now = self.network.now;
        let state = &mut self.nodes[node];
        if path != PathVersion::of(&state.known, log as u16) {
            return SimReply::OtherPath;
        }
        if state.is_refusing(now) {
            return SimReply::Refused;
        }
        if state.is_disk_full(now) && state.logs[log].records.entries.is_empty() {
            return SimReply::DiskFull;
        }
        let needs_tree = state.is_catching_up;
        if state.logs[log].copied.handle_open(published, stored, needs_tree).is_err() {
            return SimReply::PublishedAhead;
        }
        self.drive(node, log);
        let state = &mut self.nodes[node].logs[log];
        assert!(!state.copied.must_restart());
        state.region += 1;
        SimReply::Opened { region: state.region, stored: state.copied.chain.stored() }
    }

    fn store_log(
        &mut self,
        node: usize,
        request: SimRequest,
        path: PathVersion,
        region: u64,
        piece: &PieceAnnouncement,
        data: SimWrite,
    ) {
        let now = self.network.now;
        let state = &mut self.nodes[node];
        let is_present = path == PathVersion::of(&state.known, request.log as u16);
        if !is_present || (data.from < data.to && state.logs[request.log].region != region) {
            return self.send_reply(node, request, SimReply::OtherPath);
        }
        if state.is_refusing(now) {
            return self.send_reply(node, request, SimReply::Refused);
        }
        let log = &mut state.logs[request.log];
        log.records.write(data);
        let wait = if piece.has_more { Duration::ZERO } else { piece.wait };
        let reply_time = ReplyTime::Stored { has_more: piece.has_more, answer_at: now + wait };
        let (end, is_urgent, needs_space) = (piece.end, piece.is_urgent, piece.needs_space);
        log.copied.handle_append(LogAnnouncement { path, end, is_urgent, needs_space, reply_time }, request);
    }

    fn handle_reply(&mut self, request: SimRequest, reply: SimReply) {
        let now = self.network.now;
        let state = &mut self.nodes[request.node].logs[request.log];
        let expected = if matches!(reply, SimReply::Written(_) | SimReply::Revoked) { state.link } else { state.call };
        if request.number != expected {
            return;
        }
        if !matches!(reply, SimReply::Written(_)) {
            // No later reply or timeout of this call counts.
            state.call += 1;
        }
        let failure = match reply {
            SimReply::Opened { region, stored } => {
                state.successor_region = region;
                return state.forwarder.handle_opened(stored);
            }
            SimReply::Written(position) => return state.forwarder.handle_written(position, now),
            SimReply::Stored(later) => return state.forwarder.handle_stored(later, &mut state.copied, now),
            SimReply::OtherPath => SendFailure::OtherPath,
            SimReply::DiskFull => SendFailure::DiskFull,
            SimReply::PublishedAhead => SendFailure::PublishedAhead,
            SimReply::Refused => SendFailure::Refused,
            SimReply::Revoked => SendFailure::Unanswered,
        };
        self.fail_request(request.node, request.log, failure);
    }

    fn fail_request(&mut self, node: usize, log: usize, failure: SendFailure) {
        let now = self.network.now;
        let state = &mut self.nodes[node].logs[log];
        state.link = 0;
        state.forwarder.handle_failure(failure, &mut state.copied, now);
    }

    pub(super) fn handle_timeout(&mut self, request: SimRequest) {
        if self.nodes[request.node].logs[request.log].call == request.number {
            self.nodes[request.node].logs[request.log].call += 1;
            self.fail_request(request.node, request.log, SendFailure::Unanswered);
            self.drive(request.node, request.log);
        }
    }

    /// The nodes that were silent since the begin of the probe are silent, once this has lasted for the time of failure
    /// detection.
    pub(super) fn handle_probed(&mut self, request: SimRequest, suspect: usize, since: Instant) {
        let SimRequest { node, log, number } = request;
        if self.nodes[node].logs[log].call != number {
            return;
        }
        let now = self.network.now;
        let silent = self.silent_nodes(node, since);
        let is_silent = silent.contains(&self.nodes[suspect].name);
        if is_silent && now < since + DETECTION_TIME {
            return self.network.schedule(since + DETECTION_TIME, SimEvent::Probed { request, suspect, since });
        }
        let silent = if is_silent { silent } else { Vec::new() };
        self.nodes[node].logs[log].forwarder.handle_probed(silent, now);
        self.drive(node, log);
    }

    /// The nodes of the chain that have not run since a time.
    pub(super) fn silent_nodes(&self, node: usize, since: Instant) -> Vec<NodeName> {
        let now = self.network.now;
        let others = self.nodes.iter().enumerate().filter(|(index, _)| *index != node);
        let silent = others.filter(|(_, other)| other.silent_since(now).is_some_and(|from| from <= since));
        silent.map(|(_, other)| other.name.clone()).collect()
    }
}

/// The state of a node that its copiers use.
pub(super) struct SimNodeView {
    record: Arc<VolumeRecord>,
    /// The client of this node writes the log.
    is_client: bool,
}

impl ChainSimulation {
    fn view(&self, node: usize, log: usize) -> SimNodeView {
        let state = &self.nodes[node];
        SimNodeView { record: Arc::clone(&state.known), is_client: log == node && state.term.is_some() }
    }
}
