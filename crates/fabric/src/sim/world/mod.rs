//! A world of simulated nodes: one random seed determines its network, time and faults.
//!
//! Everything runs in the thread that calls [`World::step`], and no real time passes. Only the random seed and the
//! calls determine the events: equal runs have equal [`World::trace_digest`]. A participant is an [`Actor`] (a server),
//! or the caller itself (a test's requester), which polls its streams between steps. Each node has its own clock
//! ([`World::local_time`]).

mod conditions;
mod events;
mod network;
mod pipe;
mod scheduler;
mod stream;
mod trace;

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use conditions::{ClockSkew, PathConditions};
pub use scheduler::{Actor, ActorId};
pub use stream::{SimConnectAttempt, SimListener, SimStream};

use network::{ACCEPTOR_SIDE, DIALER_SIDE, Network, NodeState};
use scheduler::ActorTable;

/// Duration of a round of turns. With it, time advances even if an actor is always ready.
const ROUND_DURATION: Duration = Duration::from_micros(2);

/// Lifetime of a world, as a limit for waits without a deadline: about three years.
const WORLD_DURATION: Duration = Duration::from_secs(100_000_000);

/// A node of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// An address of a listener. Text form: `2:7001`, node and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimAddress {
    /// The node.
    pub node: NodeId,
    /// The port.
    pub port: u16,
}

impl fmt::Display for SimAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node.0, self.port)
    }
}

impl FromStr for SimAddress {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let (node, port) = text.split_once(':').ok_or(ErrorKind::InvalidInput)?;
        let invalid = |_| io::Error::from(ErrorKind::InvalidInput);
        Ok(Self { node: NodeId(node.parse().map_err(invalid)?), port: port.parse().map_err(invalid)? })
    }
}

//   World -- step -> actors that are ready take a turn -> streams -> segments on paths -> events, each at its time
//     ^                                                                                      |
//     +--------------------- nothing ready: time jumps to the next event <-------------------+

/// A simulated world. Clones share its state.
#[derive(Clone)]
pub struct World {
    shared: Arc<WorldState>,
}

struct WorldState {
    random_seed: u64,
    origin: Instant,
    network: Mutex<Network>,
    actors: Mutex<ActorTable>,
}

impl World {
    /// Creates a world without nodes.
    pub fn new(seed: u64) -> Self {
        let (network, actors) = (Mutex::new(Network::new(seed)), Mutex::default());
        Self { shared: Arc::new(WorldState { random_seed: seed, origin: Instant::now(), network, actors }) }
    }

    /// Returns the random seed of the world.
    pub fn random_seed(&self) -> u64 {
        self.shared.random_seed
    }

    fn network(&self) -> MutexGuard<'_, Network> {
        self.shared.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn actors(&self) -> MutexGuard<'_, ActorTable> {
        self.shared.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node.
    pub fn add_node(&self, name: &str) -> NodeId {
        let nodes = &mut self.network().nodes;
        let (skew, pace, rests_until) = (ClockSkew::default(), Duration::ZERO, Duration::ZERO);
        nodes.push(NodeState {
            name: name.to_owned(),
            skew,
            stopped: false,
            turn_delay: pace,
            paused_until: rests_until,
        });
        NodeId(nodes.len() as u32 - 1)
    }

    /// Returns a node's name.
    pub fn node_name(&self, node: NodeId) -> String {
        self.network().nodes[node.0 as usize].name.clone()
    }

    /// Returns the time of a clock without skew.
    pub fn now(&self) -> Instant {
        self.shared.origin + ClockSkew::default().to_local(self.network().now)
    }

    /// Returns a time that no test reaches.
    pub fn end_of_time(&self) -> Instant {
        self.shared.origin + WORLD_DURATION
    }

    /// Returns the time of a node's own clock.
    pub fn local_time(&self, node: NodeId) -> Instant {
        let network = self.network();
        self.shared.origin + network.nodes[node.0 as usize].skew.to_local(network.now)
    }

    /// Returns the time of a clock without skew when a node's own clock shows `local`.
    pub fn to_world_time(&self, node: NodeId, local: Instant) -> Instant {
        self.shared.origin + ClockSkew::default().to_local(self.elapsed_at_local(node, local))
    }

    /// Returns the time since the world's beginning when a node's own clock shows `local`.
    fn elapsed_at_local(&self, node: NodeId, local: Instant) -> Duration {
        let shown = local.saturating_duration_since(self.shared.origin);
        self.network().nodes[node.0 as usize].skew.to_world(shown)
    }

    /// Draws a random number below `limit`, from the world's seed.
    pub fn random_below(&self, limit: u64) -> u64 {
        self.network().random.u64(..limit)
    }

    /// Draws a random decision: `true` with this chance.
    pub fn random_bool(&self, chance: f64) -> bool {
        self.network().random.f64() < chance
    }

    /// Sets a node's clock skew. Call it before the node's time is first read.
    pub fn set_clock_skew(&self, node: NodeId, skew: ClockSkew) {
        self.network().nodes[node.0 as usize].skew = skew;
    }

    /// Stops a node (its connections stay, its actors get no turns), or continues it.
    pub fn set_stopped(&self, node: NodeId, stopped: bool) {
        let mut network = self.network();
        let now = network.now;
        network.trace.record(now, format_args!("node {} stopped: {stopped}", node.0));
        network.nodes[node.0 as usize].stopped = stopped;
    }

    /// Sets the pause of a node after each turn.
    pub fn set_turn_delay(&self, node: NodeId, pace: Duration) {
        self.network().nodes[node.0 as usize].turn_delay = pace;
    }

    /// Whether a node is neither stopped nor pausing. Callers that are not actors check this before a turn.
    pub fn is_running(&self, node: NodeId) -> bool {
        let network = self.network();
        let state = &network.nodes[node.0 as usize];
        !state.stopped && state.paused_until <= network.now
    }

    /// Sets the conditions of the path from one node to another. The opposite direction is a separate path.
    pub fn set_conditions(&self, from: NodeId, to: NodeId, conditions: &PathConditions) {
        self.network().set_conditions(from, to, conditions.clone());
    }

    /// Cuts the path from one node to another, or repairs it. Packets that are sent during a cut arrive after the
    /// repair.
    pub fn set_link_down(&self, from: NodeId, to: NodeId, cut: bool) {
        self.network().set_link_down(from, to, cut);
    }

    /// Resets all connections between two nodes.
    pub fn reset_connections_between(&self, one: NodeId, other: NodeId) {
        self.network().reset_connections_between(one, other);
    }

    /// Creates a pair of connected streams. The first one is at node `from`.
    pub fn connect_pair(&self, from: NodeId, to: NodeId) -> (SimStream, SimStream) {
        let connection = self.network().connect_pair(from, to);
        (SimStream::new(self, connection, DIALER_SIDE), SimStream::new(self, connection, ACCEPTOR_SIDE))
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn listen(&self, at: SimAddress) -> io::Result<SimListener> {
        if self.network().add_listener(at) { Ok(SimListener::new(self, at)) } else { Err(ErrorKind::AddrInUse.into()) }
    }

    /// Starts to connect.
    pub fn dial(&self, from: NodeId, to: SimAddress) -> SimConnectAttempt {
        let connection = self.network().begin_connect(from, to);
        SimConnectAttempt::new(self, connection)
    }

    /// Returns a number that is equal for two worlds only if their events were the same.
    pub fn trace_digest(&self) -> u64 {
        self.network().trace.digest()
    }

    /// Formats the last events, one per line, for a failing test to print.
    pub fn format_trace(&self) -> String {
        self.network().trace.format()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({})", self.shared.random_seed)
    }
}

#[cfg(test)]
mod tests;
