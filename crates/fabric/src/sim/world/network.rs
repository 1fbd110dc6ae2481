//! The simulated network's state: nodes, paths and connections. [`super::events`] changes it over time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;

use super::conditions::{ClockSkew, PathConditions};
use super::events::NetworkEvent;
use super::pipe::{SimPacket, SimPipe};
use super::trace::EventTrace;
use super::{NodeId, SimAddress};

/// Longest segment, in bytes. A long frame has several segments, so faults can hit it in the middle.
const SEGMENT_BYTES_MAX: usize = 16 << 10;

/// The side of a connection that dialled, and the side that accepted.
pub(super) const DIALER_SIDE: usize = 0;
pub(super) const ACCEPTOR_SIDE: usize = 1;

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) skew: ClockSkew,
    pub(super) stopped: bool,
    /// Pause after each turn.
    pub(super) turn_delay: Duration,
    pub(super) paused_until: Duration,
}

/// A path from one node to another.
#[derive(Debug, Default)]
pub(super) struct NetworkPath {
    conditions: PathConditions,
    pub(super) is_down: bool,
    /// Events that were due during a cut. They occur once the path is repaired.
    pub(super) held_events: Vec<NetworkEvent>,
    /// Time at which the path has sent its last queued byte.
    free_at: Duration,
}

#[derive(Debug)]
pub(super) struct SimConnection {
    /// The nodes of both sides.
    pub(super) nodes: [NodeId; 2],
    /// The bytes that each side reads.
    pub(super) pipes: [SimPipe; 2],
    pub(super) open: [bool; 2],
    /// Whether the dialler was accepted or refused; `None` before the reply.
    pub(super) accepted: Option<bool>,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Duration,
    pub(super) random: Rng,
    pub(super) trace: EventTrace,
    pub(super) nodes: Vec<NodeState>,
    pub(super) paths: BTreeMap<(NodeId, NodeId), NetworkPath>,
    pub(super) connections: BTreeMap<u64, SimConnection>,
    pub(super) listeners: BTreeMap<SimAddress, VecDeque<u64>>,
    /// Events by time, then in the order of scheduling.
    pub(super) events: BTreeMap<(Duration, u64), NetworkEvent>,
    pub(super) next_event: u64,
    next_connection: u64,
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            random: Rng::with_seed(seed),
            trace: EventTrace::default(),
            nodes: Vec::new(),
            paths: BTreeMap::new(),
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_connection: 0,
        }
    }

    pub(super) fn set_conditions(&mut self, from: NodeId, to: NodeId, conditions: PathConditions) {
        self.paths.entry((from, to)).or_default().conditions = conditions;
    }

    /// Cuts or repairs the path from one node to another.
    pub(super) fn set_link_down(&mut self, from: NodeId, to: NodeId, cut: bool) {
        self.trace.record(self.now, format_args!("path {} to {} cut: {cut}", from.0, to.0));
        let path = self.paths.entry((from, to)).or_default();
        path.is_down = cut;
        let held = if cut { Vec::new() } else { std::mem::take(&mut path.held_events) };
        for event in held {
            let at = self.now + self.random_delay(from, to);
            self.schedule(at, event);
        }
    }

    pub(super) fn add_listener(&mut self, at: SimAddress) -> bool {
        let free = !self.listeners.contains_key(&at);
        if free {
            self.listeners.insert(at, VecDeque::new());
        }
        free
    }

    /// Removes a listener, and closes the connections that were not accepted.
    pub(super) fn remove_listener(&mut self, at: SimAddress) {
        for connection in self.listeners.remove(&at).unwrap_or_default() {
            self.close(connection, ACCEPTOR_SIDE);
        }
    }

    pub(super) fn begin_connect(&mut self, from: NodeId, to: SimAddress) -> u64 {
        let connection = self.add_connection(from, to.node);
        let at = self.now + self.random_delay(from, to.node);
        self.schedule(at, NetworkEvent::ConnectRequest { connection, port: to.port });
        connection
    }

    /// Adds a connection between two nodes that is already established.
    pub(super) fn connect_pair(&mut self, from: NodeId, to: NodeId) -> u64 {
        let id = self.add_connection(from, to);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.accepted = Some(true);
            connection.open[ACCEPTOR_SIDE] = true;
        }
        id
    }

    fn add_connection(&mut self, from: NodeId, to: NodeId) -> u64 {
        let id = self.next_connection;
        self.next_connection += 1;
        let pipes = [SimPipe::default(), SimPipe::default()];
        // The acceptor's side opens when the connection enters the backlog.
        let connection = SimConnection { nodes: [from, to], pipes, open: [true, false], accepted: None };
        self.connections.insert(id, connection);
        id
    }

    pub(super) fn accept(&mut self, at: SimAddress) -> Option<u64> {
        self.listeners.get_mut(&at)?.pop_front()
    }

    /// Returns the node that opened a connection.
    pub(super) fn dialer_node(&self, id: u64) -> Option<NodeId> {
        self.connections.get(&id).map(|connection| connection.nodes[DIALER_SIDE])
    }

    pub(super) fn can_accept(&self, at: SimAddress) -> bool {
        self.listeners.get(&at).is_some_and(|backlog| !backlog.is_empty())
    }

    pub(super) fn connection_mut(&mut self, id: u64) -> Option<&mut SimConnection> {
        self.connections.get_mut(&id)
    }

    pub(super) fn find_connection(&self, id: u64) -> Option<&SimConnection> {
        self.connections.get(&id)
    }

    /// Sends from one side of a connection. Returns the number of accepted bytes.
    pub(super) fn send(&mut self, id: u64, side: usize, bytes: &[u8]) -> usize {
        let Some(connection) = self.connections.get(&id) else { return 0 };
        let count = bytes.len().min(connection.pipes[1 - side].free_bytes());
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
        if self.random.f64() < conditions.bit_flip_chance {
            let (at, bit) = (self.random.usize(..segment.len()), self.random.u8(..8));
            segment[at] ^= 1 << bit;
            self.trace.record(self.now, format_args!("connection {id} bit {bit} of byte {at} flips"));
        }
        if self.random.f64() < conditions.blackhole_chance {
            connection.pipes[1 - side].is_blackholed = true;
            self.trace.record(self.now, format_args!("connection {id} side {side}: packets are dropped from here on"));
        }
        let is_reset = self.random.f64() < conditions.reset_chance;
        path.free_at = path.free_at.max(self.now) + transmission_time(segment.len(), conditions.bytes_per_s);
        let leaves = path.free_at;
        self.send_packet(id, side, SimPacket::Segment(segment), leaves);
        if is_reset {
            self.reset(id);
        }
    }

    /// Resets a connection. Each side receives the reset after its delay.
    pub(super) fn reset(&mut self, id: u64) {
        self.trace.record(self.now, format_args!("connection {id} breaks"));
        for side in [DIALER_SIDE, ACCEPTOR_SIDE] {
            self.send_packet(id, side, SimPacket::Reset, self.now);
        }
    }

    /// Resets all connections between two nodes.
    pub(super) fn reset_connections_between(&mut self, one: NodeId, other: NodeId) {
        let between = |nodes: [NodeId; 2]| nodes == [one, other] || nodes == [other, one];
        let ids: Vec<u64> = self.connections.iter().filter(|(_, c)| between(c.nodes)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.reset(id));
    }

    pub(super) fn send_packet(&mut self, id: u64, side: usize, packet: SimPacket, leaves: Duration) {
        let Some(nodes) = self.connections.get(&id).map(|connection| connection.nodes) else { return };
        let delay = self.random_delay(nodes[side], nodes[1 - side]);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = &mut connection.pipes[1 - side];
        pipe.push(packet);
        if pipe.is_blackholed {
            return;
        }
        pipe.last_arrival = pipe.last_arrival.max(leaves + delay);
        let at = pipe.last_arrival;
        self.schedule(at, NetworkEvent::Delivery { connection: id, side: 1 - side });
    }

    /// Closes one side of a connection, because its stream was dropped.
    pub(super) fn close(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.open[side] = false;
        if connection.open[1 - side] {
            self.send_packet(id, side, SimPacket::Fin, self.now);
        } else {
            self.connections.remove(&id);
        }
    }

    pub(super) fn random_delay(&mut self, from: NodeId, to: NodeId) -> Duration {
        let conditions = &self.paths.entry((from, to)).or_default().conditions;
        let (min, max) = (conditions.delay_min.as_nanos() as u64, conditions.delay_max.as_nanos() as u64);
        Duration::from_nanos(self.random.u64(min..=max.max(min)))
    }
}

fn transmission_time(bytes: usize, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes as u64 * 1_000_000_000 / bytes_per_s.max(1))
}
