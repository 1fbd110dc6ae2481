//! Random schedules of a chain: clients write, records are copied over links of different rates and published. Nodes die, lose their memory or their
//! replica, are removed, and return. A simulated log has only the terms and numbers of its records. Each seed is one
//! schedule.

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;
use fastrand::Rng;

use super::membership::{
    begin_join, begin_term, end_term, fence_writer, finish_join, outdates_tree, remove_member, test_record,
};
use super::{ChainLog, LogRestart, PathPosition, PathVersion};
use crate::log::LogPoint;
use crate::publish::PublishedMark;

const SEEDS: u64 = 1000;
const STEPS: u32 = 600;
/// Number of rounds without failures, in which every node takes all its steps. Enough for the slowest recovery.
const HEALING_ROUNDS: u32 = 200;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const RECORD_BYTES: u64 = 64;
/// Binary logarithm of the rate of the fastest link, in records per step. With the slowest one, 1 record per step, the rates
/// differ as 1 Mbit/s and 10 Gbit/s do.
const RATE_LOG2_MAX: u32 = 13;

/// A record: its term, and a number that no other record has.
type Entry = (u32, u64);

/// One log on one node.
struct SimLog {
    chain: ChainLog,
    entries: Vec<Entry>,
    /// The successor, and the path for which it was opened.
    link: Option<(usize, PathVersion)>,
    appends: Vec<SimAppend>,
}

/// A request of the predecessor that has no reply yet.
#[derive(Clone, Copy)]
struct SimAppend {
    predecessor: usize,
    path: PathVersion,
    end: LogPoint,
    /// The predecessor has no more records.
    is_last_piece: bool,
}

/// The progress of a node that rejoins the chain.
struct JoinAttempt {
    epoch: u64,
    has_tree: bool,
}

struct SimNode {
    name: NodeName,
    /// Number of records that the node sends in a step.
    rate: usize,
    known: VolumeRecord,
    is_alive: bool,
    logs: Vec<SimLog>,
    /// All published records, in order.
    tree: Vec<Entry>,
    /// The term of the node's client; none if the client may not write.
    term: Option<u32>,
    join: Option<JoinAttempt>,
    /// The tree may differ from the members' trees, so the node does not publish.
    is_catching_up: bool,
}

struct ChainSimulation {
    random: Rng,
    record: VolumeRecord,
    nodes: Vec<SimNode>,
    acknowledged: Vec<Entry>,
    next_entry: u64,
    counts: EventCounts,
    /// No more failures are injected.
    is_healing: bool,
}

/// Numbers of events in all schedules. `refusals` and `losses` count removals of living nodes: they refused a log, or lost
/// their replica.
#[derive(Debug, Default)]
struct EventCounts {
    acknowledged: usize,
    fail_overs: u32,
    joins: u32,
    refusals: u32,
    losses: u32,
}

fn point_of(count: usize) -> LogPoint {
    LogPoint { sequence: count as u64 + 1, position: count as u64 * RECORD_BYTES }
}

fn count_of(point: LogPoint) -> usize {
    point.sequence as usize - 1
}

impl SimLog {
    fn new(client: u16) -> Self {
        let chain = ChainLog::open(PublishedMark::start_of(client), LogPoint::START);
        Self { chain, entries: Vec::new(), link: None, appends: Vec::new() }
    }

    fn restart(&mut self, restart: LogRestart) {
        self.entries.truncate(count_of(restart.end));
        self.chain.restart(restart, restart.end);
        self.appends.clear();
    }
}

impl ChainSimulation {
    fn new(seed: u64, counts: EventCounts) -> Self {
        let record = test_record(&NODES, &NODES);
        let mut random = Rng::with_seed(seed);
        let nodes = record.replicas.iter().map(|name| SimNode {
            name: name.clone(),
            rate: 1 << random.u32(..=RATE_LOG2_MAX),
            known: record.clone(),
            is_alive: true,
            logs: (0..NODES.len() as u16).map(SimLog::new).collect(),
            tree: Vec::new(),
            term: None,
            join: None,
            is_catching_up: false,
        });
        let nodes = nodes.collect();
        Self { random, record, nodes, acknowledged: Vec::new(), next_entry: 0, counts, is_healing: false }
    }

    fn index_of(&self, name: &NodeName) -> usize {
        self.nodes.iter().position(|node| node.name == *name).unwrap()
    }

    /// Changes the record in the catalog, as one transaction.
    fn change(&mut self, node: usize, change: impl FnOnce(&mut VolumeRecord) -> bool) -> bool {
        let mut record = self.record.clone();
        let is_changed = change(&mut record);
        if is_changed {
            record.revision += 1;
            self.record = record;
        }
        self.refresh(node);
        is_changed
    }

    fn refresh(&mut self, node: usize) {
        let record = self.record.clone();
        let node = &mut self.nodes[node];
        let number = NODES.iter().position(|name| *name == node.name.to_string()).unwrap() as u16;
        let holds = |term| record.writer == Some(number) && record.term == term && !record.is_writer_fenced;
        let is_member = record.chain.contains(&node.name);
        node.term = node.term.filter(|term| holds(*term) && is_member);
        node.is_catching_up |= outdates_tree(&node.known, &record, &node.name);
        node.known = record;
    }

    /// The client of a node appends a record.
    fn write(&mut self, node: usize) {
        let Some(term) = self.nodes[node].term else { return };
        self.next_entry += 1;
        let entry = (term, self.next_entry);
        self.nodes[node].logs[node].entries.push(entry);
    }

    /// Runs one step of the copier of a log on a node: receives, forwards and acknowledges records.
    fn copy(&mut self, node: usize, log: usize) {
        let known = self.nodes[node].known.clone();
        let name = self.nodes[node].name.clone();
        let is_source = known.writer == Some(log as u16) && !known.is_writer_fenced && log == node;
        let state = &mut self.nodes[node].logs[log];
        let path = PathVersion::of(&known, log as u16);
        state.appends.retain(|append| append.path == path);
        let end = if is_source {
            point_of(state.entries.len())
        } else {
            state.appends.iter().map(|append| append.end).max().unwrap_or(state.chain.stored())
        };
        if end >= state.chain.stored() && count_of(end) <= state.entries.len() {
            state.chain.store(end);
        }
        if state.appends.iter().any(|append| append.is_last_piece && append.end <= state.chain.stored()) {
            state.chain.announce();
        }
        match PathPosition::of(&known, log as u16, &name) {
            PathPosition::Off => state.appends.clear(),
            PathPosition::Last => {
                let announced = state.appends.iter().map(|append| append.end).max();
                let is_first = PathPosition::is_first(&known, log as u16, &name);
                let end = if is_first { state.chain.stored() } else { announced.unwrap_or(LogPoint::START) };
                let published = state.chain.published().point;
                state.chain.commit(end, published);
            }
            PathPosition::Before(successor) => {
                let successor = self.index_of(&successor);
                self.forward(node, log, successor, path);
            }
        }
        self.acknowledge(node, log);
    }

    fn forward(&mut self, node: usize, log: usize, successor: usize, path: PathVersion) {
        let is_alive = self.nodes[successor].is_alive;
        let is_refused = is_alive && !self.is_healing && self.random.u32(..200) == 0;
        if !is_alive || is_refused {
            self.nodes[node].logs[log].link = None;
            let name = self.nodes[successor].name.clone();
            if is_refused || self.random.bool() {
                let is_removed = self.change(node, |record| remove_member(record, &name, path.epoch));
                let count = if is_refused { &mut self.counts.refusals } else { &mut self.counts.fail_overs };
                *count += u32::from(is_removed);
            }
            return;
        }
        let is_newer = self.nodes[node].known.revision > self.nodes[successor].known.revision;
        if is_newer || self.nodes[node].logs[log].link != Some((successor, path)) {
            self.refresh(successor);
        }
        if PathVersion::of(&self.nodes[successor].known, log as u16) != path {
            self.nodes[node].logs[log].link = None;
            return self.refresh(node);
        }
        let (published, stored) = {
            let chain = &self.nodes[node].logs[log].chain;
            (chain.published(), chain.stored())
        };
        let next = &self.nodes[successor];
        let is_joining = self.record.joining.as_ref() == Some(&next.name) && next.is_catching_up;
        if self.nodes[node].logs[log].link != Some((successor, path)) {
            let next = &mut self.nodes[successor].logs[log];
            if let Some(restart) = next.chain.accept_predecessor(published, stored, is_joining).unwrap() {
                // Placeholders for records before the start: these are in the tree that the node will copy.
                next.entries.resize(count_of(restart.end).max(next.entries.len()), (0, 0));
                next.restart(restart);
            }
            self.nodes[node].logs[log].link = Some((successor, path));
        }
        let from = self.nodes[node].logs[log].entries[..count_of(stored)].to_vec();
        let rate = self.nodes[node].rate;
        let next = &mut self.nodes[successor].logs[log];
        let have = count_of(next.chain.stored());
        let piece_end = from.len().min(have + rate);
        if have < piece_end {
            next.entries.truncate(have);
            next.entries.extend(&from[have..piece_end]);
        }
        let is_last_piece = piece_end == from.len() || have >= from.len();
        let end = if is_last_piece { stored } else { point_of(piece_end) };
        next.appends.push(SimAppend { predecessor: node, path, end, is_last_piece });
    }

    /// Acknowledges committed records to the predecessor, or to the client.
    fn acknowledge(&mut self, node: usize, log: usize) {
        let state = &mut self.nodes[node].logs[log];
        let (committed, published) = (state.chain.committed(), state.chain.published_everywhere());
        let answered: Vec<_> = state.appends.extract_if(.., |append| append.end <= committed).collect();
        for SimAppend { predecessor, end, .. } in answered {
            let sender = &mut self.nodes[predecessor];
            if sender.is_alive && sender.logs[log].link.is_some_and(|(to, _)| to == node) {
                sender.logs[log].chain.commit(end, published);
            }
        }
        if log == node && self.nodes[node].term.is_some() {
            let committed = count_of(self.nodes[node].logs[log].chain.committed());
            let entries = self.nodes[node].logs[log].entries[..committed].to_vec();
            for entry in entries.into_iter().filter(|entry| entry.0 > 0) {
                if !self.acknowledged.contains(&entry) {
                    self.acknowledged.push(entry);
                }
            }
        }
    }

    fn publish(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if node.is_catching_up {
            return;
        }
        let Some(log) = node.logs.iter_mut().find(|log| log.chain.is_publishable()) else { return };
        let (from, to) = (count_of(log.chain.published().point), count_of(log.chain.committed()));
        let to = if log.chain.is_recovering() { to } else { self.random.usize(from + 1..=to) };
        node.tree.extend(&log.entries[from..to]);
        let epoch = log.entries[to - 1].0;
        log.chain.publish(PublishedMark { point: point_of(to), epoch, inode_max: 0 });
    }

    /// Takes one step to make the client of a node the writer.
    fn acquire(&mut self, node: usize) {
        self.refresh(node);
        if !self.record.chain.contains(&self.nodes[node].name) || self.nodes[node].term.is_some() {
            return;
        }
        match self.record.writer {
            None => {
                self.change(node, |record| begin_term(record, node as u16));
                self.nodes[node].term = Some(self.record.term);
            }
            Some(writer) if self.record.is_writer_fenced => {
                let head = self.index_of(&self.record.chain[0].clone());
                self.finish(head, usize::from(writer));
            }
            Some(writer) if self.nodes[usize::from(writer)].is_alive => {
                let writer = usize::from(writer);
                self.refresh(writer);
                self.nodes[writer].term = None;
                let state = &self.nodes[writer].logs[writer];
                // Continues only if the copier has read all records that the client has appended.
                if state.chain.stored() == point_of(state.entries.len()) {
                    self.finish(writer, writer);
                }
            }
            Some(writer) => {
                let term = self.record.term;
                self.counts.fail_overs += u32::from(self.change(node, |record| fence_writer(record, writer, term)));
            }
        }
    }

    /// Ends a term if all records are published everywhere, as far as the first node of the path knows.
    fn finish(&mut self, node: usize, writer: usize) {
        self.refresh(node);
        let chain = &self.nodes[node].logs[writer].chain;
        if self.nodes[node].is_alive && chain.published_everywhere() >= chain.stored() {
            let term = self.record.term;
            self.change(node, |record| end_term(record, writer as u16, term));
        }
    }

    fn crash(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        (state.is_alive, state.term, state.join) = (false, None, None);
        for log in &mut state.logs {
            log.link = None;
            log.appends.clear();
        }
    }

    /// Starts a node again. After a simulated power failure, the node leaves the chain, and its logs are shorter.
    fn start(&mut self, node: usize) {
        self.nodes[node].is_alive = true;
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        self.nodes[node].is_catching_up = !self.record.chain.contains(&name);
        let epoch = self.record.epoch;
        let is_alone = self.record.chain == [name.clone()];
        if !is_alone && self.random.u32(..3) == 0 {
            self.change(node, |record| remove_member(record, &name, epoch));
            for log in &mut self.nodes[node].logs {
                let published = count_of(log.chain.published().point);
                let left = self.random.usize(published..=log.entries.len().max(published));
                log.entries.truncate(left);
            }
        }
        let (writer, term) = (self.record.writer, self.record.term);
        for (client, log) in self.nodes[node].logs.iter_mut().enumerate() {
            let published = log.chain.published();
            // Keeps unpublished records only if their term continues.
            let unpublished = log.entries.iter().skip(count_of(published.point));
            let is_current = |entry: &&Entry| writer == Some(client as u16) && entry.0 == term;
            let valid = count_of(published.point) + unpublished.take_while(is_current).count();
            log.entries.truncate(valid);
            // Adds placeholders: a log may lack records that are published.
            log.entries.resize(log.entries.len().max(count_of(published.point)), (0, 0));
            log.chain = ChainLog::open(published, point_of(log.entries.len()));
        }
    }

    /// Takes one step to bring a node back to the chain.
    fn rejoin(&mut self, node: usize) {
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        if self.record.chain.contains(&name) {
            self.nodes[node].join = None;
            return;
        }
        let epoch = self.record.epoch;
        let must_abort = !self.is_healing && self.random.u32(..50) == 0;
        match &self.nodes[node].join {
            Some(join) if join.epoch == epoch && must_abort => {
                self.nodes[node].join = None;
                self.change(node, |record| remove_member(record, &name, epoch));
            }
            Some(join) if join.epoch == epoch && join.has_tree => {
                if self.change(node, |record| finish_join(record, &name, epoch)) {
                    self.nodes[node].join = None;
                    self.counts.joins += 1;
                }
            }
            Some(join) if join.epoch == epoch => self.copy_tree(node),
            _ => {
                self.nodes[node].is_catching_up = true;
                self.nodes[node].logs.iter_mut().for_each(|log| log.chain.forget());
                if self.change(node, |record| begin_join(record, &name)) {
                    self.nodes[node].join = Some(JoinAttempt { epoch: self.record.epoch, has_tree: false });
                }
            }
        }
    }

    /// Removes the directory of a replica while its node runs. The last live replica stays.
    fn lose_replica(&mut self, node: usize) {
        let (name, epoch) = (self.nodes[node].name.clone(), self.record.epoch);
        self.change(node, |record| remove_member(record, &name, epoch));
        if self.record.chain.contains(&name) {
            return;
        }
        self.counts.losses += 1;
        let state = &mut self.nodes[node];
        (state.term, state.join, state.is_catching_up) = (None, None, true);
        (state.tree, state.logs) = (Vec::new(), (0..NODES.len() as u16).map(SimLog::new).collect());
    }

    fn copy_tree(&mut self, node: usize) {
        let lender = self.index_of(&self.record.chain.last().unwrap().clone());
        let logs = 0..NODES.len();
        let is_ready = self.nodes[lender].is_alive
            && logs.clone().all(|log| {
                let chain = &self.nodes[node].logs[log].chain;
                let lent = self.nodes[lender].logs[log].chain.published().point;
                chain.is_announced() && lent >= chain.published().point
            });
        if !is_ready {
            return;
        }
        self.nodes[node].tree = self.nodes[lender].tree.clone();
        for log in logs {
            let mark = self.nodes[lender].logs[log].chain.published();
            self.nodes[node].logs[log].chain.install_tree(mark);
        }
        self.nodes[node].join.as_mut().unwrap().has_tree = true;
        self.nodes[node].is_catching_up = false;
    }

    fn step(&mut self) {
        let node = self.random.usize(..NODES.len());
        let log = self.random.usize(..NODES.len());
        let choice = self.random.u32(..100);
        if !self.nodes[node].is_alive {
            if choice < 20 {
                self.start(node);
            }
            return;
        }
        match choice {
            0..20 => self.write(node),
            20..72 => self.copy(node, log),
            72..86 => self.publish(node),
            86..88 => self.acquire(node),
            88..90 => self.refresh(node),
            90..99 => self.rejoin(node),
            _ if self.random.u32(..3) == 0 => self.crash(node),
            _ if self.random.u32(..4) == 0 => self.lose_replica(node),
            _ => {}
        }
    }

    /// Checks that every live replica has every acknowledged record, and that each tree is a prefix of the longest one.
    fn check(&self, seed: u64) {
        let members = || self.nodes.iter().filter(|node| self.record.chain.contains(&node.name));
        for node in members() {
            for entry in &self.acknowledged {
                let in_log = |log: &SimLog| log.entries[..count_of(log.chain.stored())].contains(entry);
                let has_it = node.tree.contains(entry) || node.logs.iter().any(in_log);
                assert!(has_it, "seed {seed}: {} lacks {entry:?}, {:?}", node.name, self.record);
            }
        }
        let longest = members().map(|node| &node.tree).max_by_key(|tree| tree.len()).unwrap();
        for node in members() {
            assert!(longest.starts_with(&node.tree), "seed {seed}: the tree of {} differs", node.name);
        }
        let is_in_order = longest.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(is_in_order, "seed {seed}: {longest:?}");
    }

    /// Runs without failures, and checks that all replicas become equal.
    fn heal(&mut self, seed: u64) {
        self.is_healing = true;
        for _ in 0..HEALING_ROUNDS {
            for node in 0..NODES.len() {
                if !self.nodes[node].is_alive {
                    self.start(node);
                }
                self.rejoin(node);
                (0..NODES.len()).for_each(|log| self.copy(node, log));
                self.publish(node);
                self.check(seed);
            }
        }
        assert_eq!(self.record.chain.len(), NODES.len(), "seed {seed}: {:?}", self.record);
        for node in &self.nodes {
            assert_eq!(node.tree, self.nodes[0].tree, "seed {seed}: {}", node.name);
            assert!(self.acknowledged.iter().all(|entry| node.tree.contains(entry)), "seed {seed}: {}", node.name);
        }
    }
}

#[test]
fn no_schedule_loses_an_acknowledged_record() {
    let mut counts = EventCounts::default();
    for seed in 0..SEEDS {
        let mut simulation = ChainSimulation::new(seed, counts);
        for _ in 0..STEPS {
            simulation.step();
            simulation.check(seed);
        }
        simulation.heal(seed);
        counts = simulation.counts;
        counts.acknowledged += simulation.acknowledged.len();
    }
    let least = [counts.joins, counts.fail_overs, counts.refusals, counts.losses].into_iter().min();
    assert!(counts.acknowledged > 5000 && least > Some(500), "the schedules have too few events: {counts:?}");
}
