//! Random schedules of a chain on a virtual clock: clients write, and the copiers of `copier` send records over links of different
//! rates. Nodes pause, die, lose their memory or their replica, refuse logs, have full disks, are removed, and return. A
//! simulated log has only the terms, numbers and sizes of its records. Each seed is one schedule.

mod copying;
mod deaths;
mod network;
mod rejoin;
mod sim_log;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;
use fastrand::Rng;

use self::network::{SimEvent, SimNetwork};
use self::sim_log::{CopierTimes, SimLog, SimRecord, SimRecords, count_of};
use crate::chain::copier::ReplicaRate;
use crate::chain::membership::{outdates_tree, remove_silent, test_record};
use crate::publish::PublishedMark;

const SEEDS: u64 = 1000;
const STEPS: u32 = 700;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const DETECTION_TIME: Duration = Duration::from_secs(1);
/// The default of `--replica-rate-min`. The slowest link has twice this rate.
const REPLICA_RATE_MIN: u64 = 64 << 10;
/// Longest time of a pause, a death, and of each other fault.
const FAULT_MS_MAX: u64 = 6000;
/// Longest time until committed records are published, in milliseconds.
const PUBLISHING_MS_MAX: u64 = 20;
/// Time without failures after which all replicas must be equal, in addition to the time for sending what was written:
/// the recovery of several nodes takes one detection for each.
const HEALING_TIME: Duration = Duration::from_secs(20);
const HEALING_ROUND: Duration = Duration::from_millis(50);

const TIMES: CopierTimes = CopierTimes {
    rate: ReplicaRate { bytes_min: REPLICA_RATE_MIN, detection_time: DETECTION_TIME },
    timeout: DETECTION_TIME,
};

/// The progress of a node that rejoins the chain.
struct JoinAttempt {
    epoch: u64,
    has_tree: bool,
}

struct SimNode {
    name: NodeName,
    known: Arc<VolumeRecord>,
    is_alive: bool,
    /// Number of processes until now.
    boot: u32,
    /// Since when the node is dead or paused, and when it runs again.
    silent: Option<(Instant, Instant)>,
    refuses_until: Instant,
    disk_full_until: Instant,
    logs: Vec<SimLog>,
    /// All published records, in order.
    tree: Vec<SimRecord>,
    is_publishing: bool,
    /// The term of the node's client; none if the client may not write.
    term: Option<u32>,
    join: Option<JoinAttempt>,
    /// The tree may differ from the members' trees, so the node does not publish.
    is_catching_up: bool,
}

struct ChainSimulation {
    seed: u64,
    random: Rng,
    network: SimNetwork,
    record: Arc<VolumeRecord>,
    nodes: Vec<SimNode>,
    /// In the order of their numbers.
    acknowledged: Vec<SimRecord>,
    next_entry: u64,
    written_bytes: u64,
    counts: EventCounts,
    /// No more failures are injected.
    is_healing: bool,
    /// The catalog can neither be read nor written.
    is_catalog_dead: bool,
    /// When the present writer was fenced.
    fenced_at: Instant,
    /// When a node has first called a process that does not answer.
    called_at: HashMap<(usize, usize, u32), Instant>,
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

impl SimNode {
    /// Since when the node does not answer; none if it does.
    fn silent_since(&self, now: Instant) -> Option<Instant> {
        self.silent.filter(|(_, until)| !self.is_alive || now < *until).map(|(since, _)| since)
    }

    fn is_refusing(&self, now: Instant) -> bool {
        now < self.refuses_until
    }

    fn is_disk_full(&self, now: Instant) -> bool {
        now < self.disk_full_until
    }
}

impl ChainSimulation {
    /// Creates a volume with a replica and a client on each node. The chain has the first `members` nodes.
    fn new(seed: u64, counts: EventCounts, names: &[&str], members: usize, rate_log2_min: u32) -> Self {
        let mut record = test_record(&names[..members], names);
        record.replicas.clone_from(&record.clients);
        let record = Arc::new(record);
        let mut random = Rng::with_seed(seed);
        let network = SimNetwork::new(&mut random, names.len(), rate_log2_min);
        let now = network.now;
        let nodes = record.replicas.iter().map(|name| SimNode {
            name: name.clone(),
            known: Arc::clone(&record),
            is_alive: true,
            boot: 0,
            silent: None,
            refuses_until: now,
            disk_full_until: now,
            logs: (0..names.len()).map(|client| new_log(name, client, now)).collect(),
            tree: Vec::new(),
            is_publishing: false,
            term: None,
            join: None,
            is_catching_up: !record.chain.contains(name),
        });
        let nodes = nodes.collect();
        Self {
            seed,
            random,
            network,
            nodes,
            record,
            acknowledged: Vec::new(),
            next_entry: 0,
            written_bytes: 0,
            counts,
            is_healing: false,
            is_catalog_dead: false,
            fenced_at: now,
            called_at: HashMap::new(),
        }
    }

    fn index_of(&self, name: &NodeName) -> usize {
        self.nodes.iter().position(|node| node.name == *name).unwrap()
    }

    /// Whether a process answers calls now.
    fn answers(&self, node: usize) -> bool {
        self.nodes[node].silent_since(self.network.now).is_none()
    }

    /// Changes the record in the catalog, as one transaction.
    fn change(&mut self, node: usize, change: impl FnOnce(&mut VolumeRecord) -> bool) -> bool {
        if self.is_catalog_dead {
            return false;
        }
        let mut record = VolumeRecord::clone(&self.record);
        let is_changed = change(&mut record);
        if is_changed {
            record.revision += 1;
            if record.is_writer_fenced && !self.record.is_writer_fenced {
                self.fenced_at = self.network.now;
            }
            self.record = Arc::new(record);
        }
        self.refresh(node);
        is_changed
    }

    /// A node reads the record of the volume from the catalog. A new one wakes its copiers.
    fn refresh(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if self.is_catalog_dead || state.known.revision == self.record.revision {
            return;
        }
        let (record, number) = (Arc::clone(&self.record), node as u16);
        let holds = |term| record.writer == Some(number) && record.term == term && !record.is_writer_fenced;
        let is_member = record.chain.contains(&state.name);
        state.term = state.term.filter(|term| holds(*term) && is_member);
        state.is_catching_up |= outdates_tree(&state.known, &record, &state.name);
        state.known = record;
        (0..self.nodes.len()).for_each(|log| self.wake(node, log));
    }

    /// Makes the copier of a log look for work soon.
    fn wake(&mut self, node: usize, log: usize) {
        let now = self.network.now;
        self.nodes[node].logs[log].wake_at = Some(now);
        self.network.schedule(now, SimEvent::Wake { node, log });
    }

    /// Runs for some time.
    fn run_for(&mut self, time: Duration) {
        let end = self.network.now + time;
        while let Some(event) = self.network.next_event(end) {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: SimEvent) {
        let node = match &event {
            SimEvent::Wake { node, .. } | SimEvent::Publish { node } | SimEvent::Deliver { to: node, .. } => *node,
            SimEvent::CallTimeout(request) | SimEvent::Probed { request, .. } => request.node,
        };
        let state = &mut self.nodes[node];
        let now = self.network.now;
        if !state.is_alive {
            return;
        }
        if let Some((_, until)) = state.silent.filter(|(_, until)| now < *until) {
            return self.network.schedule(until, event);
        }
        match event {
            SimEvent::Wake { node, log } if state.logs[log].wake_at.is_some_and(|at| at <= now) => {
                state.logs[log].wake_at = None;
                self.drive(node, log);
            }
            SimEvent::Wake { .. } => {}
            SimEvent::Publish { node } => self.publish(node),
            SimEvent::Deliver { to, boot, message } if state.boot == boot => self.handle_message(to, message),
            SimEvent::Deliver { .. } => {}
            SimEvent::CallTimeout(request) => self.handle_timeout(request),
            SimEvent::Probed { request, suspect, since } => self.handle_probed(request, suspect, since),
        }
    }

    /// A node has made a call to a node that does not answer. Removes all silent nodes once this has lasted for an attempt and
    /// the time of failure detection.
    fn remove_dead(&mut self, node: usize, dead: usize) {
        let (now, called) = (self.network.now, (node, dead, self.nodes[dead].boot));
        let called_at = *self.called_at.entry(called).or_insert(now);
        if now < called_at + TIMES.timeout + DETECTION_TIME {
            return;
        }
        self.called_at.remove(&called);
        let silent = self.silent_nodes(node, now - DETECTION_TIME);
        if silent.contains(&self.nodes[dead].name) {
            let (name, epoch) = (self.nodes[node].name.clone(), self.nodes[node].known.epoch);
            let is_removed = self.change(node, |record| remove_silent(record, &silent, &name, epoch));
            self.counts.fail_overs += u32::from(is_removed);
        }
    }

    /// The client of a node appends a record.
    fn write(&mut self, node: usize) {
        let Some(term) = self.nodes[node].term.filter(|_| self.answers(node)) else { return };
        self.next_entry += 1;
        let log = &mut self.nodes[node].logs[node];
        let entry = SimRecord::new(term, self.next_entry, log.records.end().position);
        self.written_bytes += entry.end - entry.begin();
        log.records.entries.push(entry);
        log.copied.request_look();
        self.drive(node, node);
    }

    fn schedule_publishing(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if !state.is_publishing && state.logs.iter().any(|log| log.copied.chain.is_publishable()) {
            state.is_publishing = true;
            let wait = Duration::from_millis(self.random.u64(..PUBLISHING_MS_MAX));
            self.network.schedule(self.network.now + wait, SimEvent::Publish { node });
        }
    }

    fn publish(&mut self, node: usize) {
        let now = self.network.now;
        let state = &mut self.nodes[node];
        state.is_publishing = false;
        let Some(client) = state.logs.iter().position(|log| log.copied.chain.is_publishable()) else { return };
        if state.is_catching_up || state.is_disk_full(now) {
            state.is_publishing = true;
            let at = now + Duration::from_millis(PUBLISHING_MS_MAX);
            return self.network.schedule(at, SimEvent::Publish { node });
        }
        let log = &mut state.logs[client];
        let chain = &mut log.copied.chain;
        let (from, to) = (count_of(chain.published().point), count_of(chain.committed()));
        let to = if chain.is_recovering() { to } else { self.random.usize(from + 1..=to) };
        state.tree.extend(&log.records.entries[from..to]);
        let epoch = log.records.entries[to - 1].term;
        chain.publish(PublishedMark { point: log.records.point_of(to), epoch, inode_max: 0 });
        self.drive(node, client);
        self.schedule_publishing(node);
    }

    fn step(&mut self) {
        let is_long = self.random.u32(..25) == 0;
        let wait_ms = self.random.u64(..if is_long { 500 } else { 5 });
        self.run_for(Duration::from_millis(wait_ms));
        let now = self.network.now;
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_alive && self.nodes[node].silent.is_none_or(|(_, until)| until <= now) {
                self.start(node);
            }
        }
        let node = self.random.usize(..self.nodes.len());
        let fault_end = now + Duration::from_millis(self.random.u64(..FAULT_MS_MAX));
        if !self.answers(node) {
            return;
        }
        match self.random.u32(..100) {
            0..40 => self.write(node),
            40..50 => self.acquire(node),
            50..60 => self.refresh(node),
            60..96 => self.rejoin(node),
            _ => match self.random.u32(..9) {
                0 => self.crash(node, fault_end),
                5 => {
                    // Any set of nodes dies at once.
                    for other in 0..self.nodes.len() {
                        if self.answers(other) && self.random.bool() {
                            self.crash(other, fault_end);
                        }
                    }
                }
                1 => self.lose_replica(node),
                2 => self.nodes[node].silent = Some((now, fault_end)),
                3 | 6 | 7 => self.nodes[node].refuses_until = fault_end,
                4 => self.nodes[node].disk_full_until = fault_end,
                _ => {}
            },
        }
    }

    /// Checks that every live replica has every acknowledged record, and that each tree is a prefix of the longest one.
    fn check(&self) {
        let seed = self.seed;
        let members = || self.nodes.iter().filter(|node| self.record.chain.contains(&node.name));
        for node in members() {
            let published = node.tree.last();
            // The tree has the records in order, so only later ones must be in a log.
            for entry in self.acknowledged.iter().rev().take_while(|entry| published.is_none_or(|last| *entry > last)) {
                let in_log = |log: &SimLog| {
                    log.records.entries[..count_of(log.copied.chain.stored())].iter().rev().any(|other| other == entry)
                };
                let has_it = node.logs.iter().any(in_log);
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

    /// Whether all replicas are live and equal, and have all records of the writer.
    fn is_healed(&self) -> bool {
        let tree = &self.nodes[0].tree;
        let is_equal = |index: usize| {
            let node = &self.nodes[index];
            let last = node.logs[index].records.entries.last().filter(|_| node.term.is_some());
            node.tree == *tree && last.is_none_or(|last| last.number == 0 || tree.contains(last))
        };
        self.record.chain.len() == self.nodes.len() && (0..self.nodes.len()).all(is_equal)
    }

    /// The state of all copiers, for a failed test.
    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.record);
        for node in &self.nodes {
            let now = self.network.now;
            text += &format!("\n{}: {:?}, {} records", node.name, node.silent_since(now), node.tree.len());
            for log in &node.logs {
                text += &format!("\n  {:?}\n    {:?}\n    {:?}", log.copied, log.records, log.forwarder);
            }
        }
        text
    }

    /// Runs without failures, and checks that all replicas become equal in time.
    fn heal(&mut self) {
        let (seed, now) = (self.seed, self.network.now);
        self.is_healing = true;
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_alive {
                self.start(node);
            }
            let state = &mut self.nodes[node];
            (state.refuses_until, state.disk_full_until) = (now, now);
        }
        // Each hop sends only whole pieces.
        let sending = self.network.slowest_time(self.written_bytes) * self.nodes.len() as u32;
        let deadline = now + HEALING_TIME + sending;
        while !self.is_healed() {
            assert!(self.network.now < deadline, "seed {seed}: the replicas are not equal:{}", self.describe());
            (0..self.nodes.len()).for_each(|node| self.rejoin(node));
            self.run_for(HEALING_ROUND);
            self.check();
        }
        let tree = &self.nodes[0].tree;
        assert!(self.acknowledged.iter().all(|entry| tree.contains(entry)), "seed {seed}: {:?}", self.record);
    }
}

fn new_log(node: &NodeName, client: usize, now: Instant) -> SimLog {
    let mark = PublishedMark::start_of(client as u16);
    SimLog::open(node, client, TIMES, mark, SimRecords::default(), now)
}

#[test]
fn no_schedule_loses_an_acknowledged_record() {
    let mut counts = EventCounts::default();
    for seed in 0..SEEDS {
        let mut simulation = ChainSimulation::new(seed, counts, &NODES, NODES.len(), 0);
        for _ in 0..STEPS {
            simulation.step();
            simulation.check();
        }
        simulation.heal();
        counts = simulation.counts;
        counts.acknowledged += simulation.acknowledged.len();
    }
    let least = [counts.joins, counts.fail_overs, counts.refusals, counts.losses].into_iter().min();
    assert!(counts.acknowledged > 5000 && least > Some(500), "the schedules have too few events: {counts:?}");
}
