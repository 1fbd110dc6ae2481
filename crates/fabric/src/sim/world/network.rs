//! The simulated network's state: nodes, paths and connections. What becomes of it is [`super::events`]' business.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;

use super::conditions::{Conditions, Skew};
use super::events::Event;
use super::pipe::{Parcel, Pipe};
use super::trace::Trace;
use super::{NodeId, Place};

/// Longest segment, in bytes: several make a long frame, so that frames are cut anywhere.
const SEGMENT_BYTES_MAX: usize = 16 << 10;

/// The side of a connection that dialled, and the one that accepted.
pub(super) const DIALLER: usize = 0;
pub(super) const ACCEPTOR: usize = 1;

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) skew: Skew,
    pub(super) stopped: bool,
    /// Rest after each turn.
    pub(super) pace: Duration,
    pub(super) rests_until: Duration,
}

/// From one node to another.
#[derive(Debug, Default)]
pub(super) struct Path {
    conditions: Conditions,
    pub(super) cut: bool,
    /// What arrives once the path is whole again.
    pub(super) held: Vec<Event>,
    /// When its last byte has left.
    free_at: Duration,
}

#[derive(Debug)]
pub(super) struct Connection {
    /// Of the two sides.
    pub(super) nodes: [NodeId; 2],
    /// What each side reads.
    pub(super) pipes: [Pipe; 2],
    pub(super) open: [bool; 2],
    /// What the dialler learned: accepted or refused.
    pub(super) answered: Option<bool>,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Duration,
    pub(super) random: Rng,
    pub(super) trace: Trace,
    pub(super) nodes: Vec<NodeState>,
    pub(super) paths: BTreeMap<(NodeId, NodeId), Path>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) listeners: BTreeMap<Place, VecDeque<u64>>,
    /// By time, then in the order of scheduling.
    pub(super) events: BTreeMap<(Duration, u64), Event>,
    pub(super) next_event: u64,
    next_connection: u64,
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            random: Rng::with_seed(seed),
            trace: Trace::default(),
            nodes: Vec::new(),
            paths: BTreeMap::new(),
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_connection: 0,
        }
    }

    pub(super) fn set_conditions(&mut self, from: NodeId, to: NodeId, conditions: Conditions) {
        self.paths.entry((from, to)).or_default().conditions = conditions;
    }

    /// Cuts or heals the path from one node to another.
    pub(super) fn set_cut(&mut self, from: NodeId, to: NodeId, cut: bool) {
        self.trace.note(self.now, format_args!("path {} to {} cut: {cut}", from.0, to.0));
        let path = self.paths.entry((from, to)).or_default();
        path.cut = cut;
        let held = if cut { Vec::new() } else { std::mem::take(&mut path.held) };
        for event in held {
            let at = self.now + self.draw_delay(from, to);
            self.schedule(at, event);
        }
    }

    pub(super) fn listen(&mut self, at: Place) -> bool {
        let free = !self.listeners.contains_key(&at);
        if free {
            self.listeners.insert(at, VecDeque::new());
        }
        free
    }

    /// Nobody listens there any more; who waits to be accepted is reset.
    pub(super) fn unlisten(&mut self, at: Place) {
        for connection in self.listeners.remove(&at).unwrap_or_default() {
            self.close(connection, ACCEPTOR);
        }
    }

    pub(super) fn dial(&mut self, from: NodeId, to: Place) -> u64 {
        let connection = self.add(from, to.node);
        let at = self.now + self.draw_delay(from, to.node);
        self.schedule(at, Event::Knock { connection, port: to.port });
        connection
    }

    /// A connection between two nodes that is there at once.
    pub(super) fn pair(&mut self, from: NodeId, to: NodeId) -> u64 {
        let id = self.add(from, to);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answered = Some(true);
            connection.open[ACCEPTOR] = true;
        }
        id
    }

    fn add(&mut self, from: NodeId, to: NodeId) -> u64 {
        let id = self.next_connection;
        self.next_connection += 1;
        let pipes = [Pipe::default(), Pipe::default()];
        // The acceptor's side is open as soon as it may be accepted.
        let connection = Connection { nodes: [from, to], pipes, open: [true, false], answered: None };
        self.connections.insert(id, connection);
        id
    }

    pub(super) fn accept(&mut self, at: Place) -> Option<u64> {
        self.listeners.get_mut(&at)?.pop_front()
    }

    /// The node that a connection comes from.
    pub(super) fn dialler_of(&self, id: u64) -> Option<NodeId> {
        self.connections.get(&id).map(|connection| connection.nodes[DIALLER])
    }

    pub(super) fn can_accept(&self, at: Place) -> bool {
        self.listeners.get(&at).is_some_and(|backlog| !backlog.is_empty())
    }

    pub(super) fn connection(&mut self, id: u64) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    pub(super) fn peek(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Sends from a side of a connection; gives how much it took.
    pub(super) fn send(&mut self, id: u64, side: usize, bytes: &[u8]) -> usize {
        let Some(connection) = self.connections.get(&id) else { return 0 };
        let count = bytes.len().min(connection.pipes[1 - side].room());
        for segment in bytes[..count].chunks(SEGMENT_BYTES_MAX) {
            self.send_segment(id, side, segment.to_vec());
        }
        count
    }

    fn send_segment(&mut self, id: u64, side: usize, mut segment: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (from, to) = (connection.nodes[side], connection.nodes[1 - side]);
        let path = self.paths.entry((from, to)).or_default();
        let conditions = &path.conditions;
        if self.random.f64() < conditions.flip_chance {
            let (at, bit) = (self.random.usize(..segment.len()), self.random.u8(..8));
            segment[at] ^= 1 << bit;
            self.trace.note(self.now, format_args!("connection {id} bit {bit} of byte {at} flips"));
        }
        if self.random.f64() < conditions.swallow_chance {
            connection.pipes[1 - side].swallowed = true;
            self.trace.note(self.now, format_args!("connection {id} side {side} is swallowed from here"));
        }
        let resets = self.random.f64() < conditions.reset_chance;
        path.free_at = path.free_at.max(self.now) + transmission(segment.len(), conditions.bytes_per_s);
        let leaves = path.free_at;
        self.send_parcel(id, side, Parcel::Segment(segment), leaves);
        if resets {
            self.reset(id);
        }
    }

    /// Breaks a connection; each side learns it in its time.
    pub(super) fn reset(&mut self, id: u64) {
        self.trace.note(self.now, format_args!("connection {id} breaks"));
        for side in [DIALLER, ACCEPTOR] {
            self.send_parcel(id, side, Parcel::Reset, self.now);
        }
    }

    /// Breaks all connections between two nodes.
    pub(super) fn reset_between(&mut self, one: NodeId, other: NodeId) {
        let between = |nodes: [NodeId; 2]| nodes == [one, other] || nodes == [other, one];
        let ids: Vec<u64> = self.connections.iter().filter(|(_, c)| between(c.nodes)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.reset(id));
    }

    pub(super) fn send_parcel(&mut self, id: u64, side: usize, parcel: Parcel, leaves: Duration) {
        let Some(nodes) = self.connections.get(&id).map(|connection| connection.nodes) else { return };
        let delay = self.draw_delay(nodes[side], nodes[1 - side]);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = &mut connection.pipes[1 - side];
        pipe.send(parcel);
        if pipe.swallowed {
            return;
        }
        pipe.last_arrival = pipe.last_arrival.max(leaves + delay);
        let at = pipe.last_arrival;
        self.schedule(at, Event::Arrive { connection: id, side: 1 - side });
    }

    /// A side is dropped.
    pub(super) fn close(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.open[side] = false;
        if connection.open[1 - side] {
            self.send_parcel(id, side, Parcel::End, self.now);
        } else {
            self.connections.remove(&id);
        }
    }

    pub(super) fn draw_delay(&mut self, from: NodeId, to: NodeId) -> Duration {
        let conditions = &self.paths.entry((from, to)).or_default().conditions;
        let (min, max) = (conditions.delay_min.as_nanos() as u64, conditions.delay_max.as_nanos() as u64);
        Duration::from_nanos(self.random.u64(min..=max.max(min)))
    }
}

fn transmission(bytes: usize, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes as u64 * 1_000_000_000 / bytes_per_s.max(1))
}
