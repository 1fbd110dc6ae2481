//! Random schedules of a chain: clients write, records are copied over links of different rates and published. Nodes die, lose their memory or their
//! replica, are removed, and return. A simulated log has only the terms and numbers of its records. Each seed is one
//! schedule.

mod deaths;
mod rejoin;

use std::collections::HashMap;

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;
use fastrand::Rng;

use crate::chain::membership::{begin_term, end_term, outdates_tree, remove_member, remove_silent, test_record};
use crate::chain::{ChainLog, LogRestart, PathPosition, PathVersion};
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

/// When a node is silent long enough to be removed.
enum DetectionModel {
    /// After a random number of calls.
    Random,
    /// After a number of rounds since the first call of a node to the silent one.
    Rounds { present: u32, limit: u32, silent_since: HashMap<(usize, usize), u32> },
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
    /// The catalog can neither be read nor written.
    is_catalog_dead: bool,
    detection: DetectionModel,
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
    /// Creates a volume with a replica and a client on each node. The chain has the first `members` nodes.
    fn new(seed: u64, counts: EventCounts, names: &[&str], members: usize) -> Self {
        let mut record = test_record(&names[..members], names);
        record.replicas.clone_from(&record.clients);
        let mut random = Rng::with_seed(seed);
        let nodes = record.replicas.iter().map(|name| SimNode {
            name: name.clone(),
            rate: 1 << random.u32(..=RATE_LOG2_MAX),
            known: record.clone(),
            is_alive: true,
            logs: (0..names.len() as u16).map(SimLog::new).collect(),
            tree: Vec::new(),
            term: None,
            join: None,
            is_catching_up: !record.chain.contains(name),
        });
        let nodes = nodes.collect();
        Self {
            random,
            nodes,
            record,
            acknowledged: Vec::new(),
            next_entry: 0,
            counts,
            is_healing: false,
            is_catalog_dead: false,
            detection: DetectionModel::Random,
        }
    }

    fn index_of(&self, name: &NodeName) -> usize {
        self.nodes.iter().position(|node| node.name == *name).unwrap()
    }

    /// Changes the record in the catalog, as one transaction.
    fn change(&mut self, node: usize, change: impl FnOnce(&mut VolumeRecord) -> bool) -> bool {
        if self.is_catalog_dead {
            return false;
        }
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
        if self.is_catalog_dead {
            return;
        }
        let (record, number) = (self.record.clone(), node as u16);
        let node = &mut self.nodes[node];
        let holds = |term| record.writer == Some(number) && record.term == term && !record.is_writer_fenced;
        let is_member = record.chain.contains(&node.name);
        node.term = node.term.filter(|term| holds(*term) && is_member);
        node.is_catching_up |= outdates_tree(&node.known, &record, &node.name);
        node.known = record;
    }

    /// Whether a node that makes a call to a dead node has detected its death.
    fn detects(&mut self, node: usize, dead: usize) -> bool {
        match &mut self.detection {
            DetectionModel::Random => self.random.bool(),
            DetectionModel::Rounds { present, limit, silent_since } => {
                *present - *silent_since.entry((node, dead)).or_insert(*present) >= *limit
            }
        }
    }

    /// A node has made a call to a dead node. Removes all dead nodes once the node has detected the death.
    fn remove_dead(&mut self, node: usize, dead: usize) {
        if self.detects(node, dead) {
            let (name, epoch) = (self.nodes[node].name.clone(), self.nodes[node].known.epoch);
            let silent: Vec<_> =
                self.nodes.iter().filter(|node| !node.is_alive).map(|node| node.name.clone()).collect();
            self.counts.fail_overs +=
                u32::from(self.change(node, |record| remove_silent(record, &silent, &name, epoch)));
        }
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
                let (chain, is_linked) = (&state.chain, state.link.is_some_and(|(_, linked)| linked == path));
                let must_open = known.joining.as_ref() == Some(&successor) && !is_linked;
                let lags = chain.committed() < chain.stored() || chain.published_everywhere() < chain.committed();
                // A client may ask for the space on the disks at any time.
                let needs_space = !self.is_healing && self.random.bool();
                if lags || must_open || needs_space {
                    let successor = self.index_of(&successor);
                    self.forward(node, log, successor, path);
                }
            }
        }
        self.acknowledge(node, log);
    }

    fn forward(&mut self, node: usize, log: usize, successor: usize, path: PathVersion) {
        let is_alive = self.nodes[successor].is_alive;
        let is_refused = is_alive && !self.is_healing && self.random.u32(..200) == 0;
        if !is_alive {
            self.nodes[node].logs[log].link = None;
            return self.remove_dead(node, successor);
        }
        if is_refused {
            self.nodes[node].logs[log].link = None;
            let name = self.nodes[successor].name.clone();
            let is_removed = self.change(node, |record| remove_member(record, &name, path.epoch));
            self.counts.refusals += u32::from(is_removed);
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
        if self.is_catalog_dead
            || !self.record.chain.contains(&self.nodes[node].name)
            || self.nodes[node].term.is_some()
        {
            return;
        }
        match self.record.writer {
            None => {
                self.change(node, |record| begin_term(record, node as u16));
                self.nodes[node].term = Some(self.record.term);
            }
            Some(writer) if self.record.is_writer_fenced => {
                let head = self.index_of(&self.record.chain[0].clone());
                if self.nodes[head].is_alive {
                    self.finish(head, usize::from(writer));
                } else {
                    self.remove_dead(node, head);
                }
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
            Some(writer) => self.remove_dead(node, usize::from(writer)),
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

    fn step(&mut self) {
        let node = self.random.usize(..self.nodes.len());
        let log = self.random.usize(..self.nodes.len());
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

    /// A node takes each of its steps once.
    fn work(&mut self, node: usize) {
        self.rejoin(node);
        (0..self.nodes.len()).for_each(|log| self.copy(node, log));
        self.publish(node);
    }

    /// Runs without failures, and checks that all replicas become equal.
    fn heal(&mut self, seed: u64) {
        self.is_healing = true;
        for _ in 0..HEALING_ROUNDS {
            for node in 0..self.nodes.len() {
                if !self.nodes[node].is_alive {
                    self.start(node);
                }
                self.work(node);
                self.check(seed);
            }
        }
        assert_eq!(self.record.chain.len(), self.nodes.len(), "seed {seed}: {:?}", self.record);
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
        let mut simulation = ChainSimulation::new(seed, counts, &NODES, NODES.len());
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
