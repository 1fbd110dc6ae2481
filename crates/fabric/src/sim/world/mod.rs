//! A world of simulated nodes, whose network, time and misfortunes all come from one seed.
//!
//! ```text
//!   World ── step ─▶ actors that are ready take a turn ─▶ streams ─▶ segments on paths ─▶ events, each at its time
//!     ▲                                                                                      │
//!     └───────────────────── nothing ready: time jumps to the next event ◀────────────────────┘
//! ```
//!
//! All runs in the thread that calls [`World::step`]; no real time passes, and nothing but the seed and the calls
//! decides what happens: the same give the same [`World::digest`]. What takes part is an [`Actor`] (a server), or the
//! caller itself (a test's requester), which looks at its streams between steps.
//!
//! Each node has a clock of its own; protocols are given [`World::now_at`] of their node.

mod actors;
mod conditions;
mod events;
mod network;
mod pipe;
mod stream;
mod trace;

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use actors::{Actor, ActorId};
pub use conditions::{Conditions, Skew};
pub use stream::{Dialling, Listener, Stream};

use actors::Actors;
use network::{ACCEPTOR, DIALLER, Network, NodeState};

/// What a round of turns takes: so that what is always ready does not stop the time.
const ROUND: Duration = Duration::from_micros(2);

/// When a world ends that waits for nothing: some years on.
const END: Duration = Duration::from_secs(100_000_000);

/// A node of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// Where a node listens. As text, `2:7001`: node and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// One of its doors.
    pub port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node.0, self.port)
    }
}

impl FromStr for Place {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let (node, port) = text.split_once(':').ok_or(ErrorKind::InvalidInput)?;
        let invalid = |_| io::Error::from(ErrorKind::InvalidInput);
        Ok(Self { node: NodeId(node.parse().map_err(invalid)?), port: port.parse().map_err(invalid)? })
    }
}

/// The world. Clones are the same world.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    seed: u64,
    origin: Instant,
    network: Mutex<Network>,
    actors: Mutex<Actors>,
}

impl World {
    /// A world without nodes.
    pub fn new(seed: u64) -> Self {
        let (network, actors) = (Mutex::new(Network::new(seed)), Mutex::default());
        Self { shared: Arc::new(Shared { seed, origin: Instant::now(), network, actors }) }
    }

    /// What it was made from.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    fn network(&self) -> MutexGuard<'_, Network> {
        self.shared.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn actors(&self) -> MutexGuard<'_, Actors> {
        self.shared.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new node.
    pub fn add_node(&self, name: &str) -> NodeId {
        let nodes = &mut self.network().nodes;
        let (skew, pace, rests_until) = (Skew::default(), Duration::ZERO, Duration::ZERO);
        nodes.push(NodeState { name: name.to_owned(), skew, stopped: false, pace, rests_until });
        NodeId(nodes.len() as u32 - 1)
    }

    /// A node's name.
    pub fn name(&self, node: NodeId) -> String {
        self.network().nodes[node.0 as usize].name.clone()
    }

    /// The time by a clock that is right.
    pub fn now(&self) -> Instant {
        self.shared.origin + Skew::default().local(self.network().now)
    }

    /// A time that no test lives to see.
    pub fn end(&self) -> Instant {
        self.shared.origin + END
    }

    /// The time by a node's own clock.
    pub fn now_at(&self, node: NodeId) -> Instant {
        let network = self.network();
        self.shared.origin + network.nodes[node.0 as usize].skew.local(network.now)
    }

    /// What a clock that is right shows when a node's own shows `local`.
    pub fn right_time(&self, node: NodeId, local: Instant) -> Instant {
        self.shared.origin + Skew::default().local(self.elapsed_when(node, local))
    }

    /// When, since the world's beginning, a node's own clock shows `local`.
    fn elapsed_when(&self, node: NodeId, local: Instant) -> Duration {
        let shown = local.saturating_duration_since(self.shared.origin);
        self.network().nodes[node.0 as usize].skew.elapsed(shown)
    }

    /// A random number below `limit`, from the world's seed.
    pub fn random_below(&self, limit: u64) -> u64 {
        self.network().random.u64(..limit)
    }

    /// Whether something with this chance happens now.
    pub fn random_chance(&self, chance: f64) -> bool {
        self.network().random.f64() < chance
    }

    /// Sets what a node's clock is like. Only before its time was asked for.
    pub fn set_skew(&self, node: NodeId, skew: Skew) {
        self.network().nodes[node.0 as usize].skew = skew;
    }

    /// Stops a node (its connections stay, its actors get no turns), or lets it go on.
    pub fn set_stopped(&self, node: NodeId, stopped: bool) {
        let mut network = self.network();
        let now = network.now;
        network.trace.note(now, format_args!("node {} stopped: {stopped}", node.0));
        network.nodes[node.0 as usize].stopped = stopped;
    }

    /// Makes a node rest so long after each turn.
    pub fn set_pace(&self, node: NodeId, pace: Duration) {
        self.network().nodes[node.0 as usize].pace = pace;
    }

    /// Whether a node is neither stopped nor resting: who is no actor asks before a turn.
    pub fn is_awake(&self, node: NodeId) -> bool {
        let network = self.network();
        let state = &network.nodes[node.0 as usize];
        !state.stopped && state.rests_until <= network.now
    }

    /// Sets what the path from one node to another is like; the way back is another path.
    pub fn set_conditions(&self, from: NodeId, to: NodeId, conditions: &Conditions) {
        self.network().set_conditions(from, to, conditions.clone());
    }

    /// Cuts the path from one node to another, or heals it. What is sent meanwhile arrives after that.
    pub fn set_cut(&self, from: NodeId, to: NodeId, cut: bool) {
        self.network().set_cut(from, to, cut);
    }

    /// Breaks all connections between two nodes.
    pub fn reset_between(&self, one: NodeId, other: NodeId) {
        self.network().reset_between(one, other);
    }

    /// Two streams that are connected: the first is `from`'s.
    pub fn pair(&self, from: NodeId, to: NodeId) -> (Stream, Stream) {
        let connection = self.network().pair(from, to);
        (Stream::new(self, connection, DIALLER), Stream::new(self, connection, ACCEPTOR))
    }

    /// Listens.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn listen(&self, at: Place) -> io::Result<Listener> {
        if self.network().listen(at) { Ok(Listener::new(self, at)) } else { Err(ErrorKind::AddrInUse.into()) }
    }

    /// Begins to connect.
    pub fn dial(&self, from: NodeId, to: Place) -> Dialling {
        let connection = self.network().dial(from, to);
        Dialling::new(self, connection)
    }

    /// A number that two worlds share only when the same happened in them.
    pub fn digest(&self) -> u64 {
        self.network().trace.digest()
    }

    /// The last events, a line each: what a failing test prints.
    pub fn story(&self) -> String {
        self.network().trace.story()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({})", self.shared.seed)
    }
}

#[cfg(test)]
mod tests;
