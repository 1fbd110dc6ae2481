//! The virtual clock, and the network of a simulation. Each pair of nodes has a link with a rate and a latency. Messages of one
//! connection arrive in order, and those of different connections may overtake each other.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::sim_log::{SimRecord, SimRequest};
use crate::chain::PathVersion;
use crate::chain::calls::StoredLog;
use crate::chain::copier::PieceAnnouncement;
use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// Rate of the slowest link: 1 Mbit/s, in bytes per second.
const RATE_MIN: u64 = 125_000;
/// Binary logarithm of the ratio to the fastest link: about 10 Gbit/s.
const RATE_LOG2_MAX: u32 = 13;
const LATENCY_US_MAX: u64 = 3000;
/// Largest difference between the latencies of two messages of a link.
const JITTER_US_MAX: u64 = 1000;
/// Bytes of a call without data, or of a reply.
const CALL_BYTES: u64 = 200;

/// A process of a node.
#[derive(Clone, Copy)]
pub(super) struct SimProcess {
    pub(super) node: usize,
    pub(super) boot: u32,
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(super) enum SimEvent {
    /// The copier of a log looks for work.
    Wake { node: usize, log: usize },
    /// The publisher of a node looks for work.
    Publish { node: usize },
    /// A message arrives at a process. It is lost if the process has ended since.
    Deliver { to: usize, boot: u32, message: SimMessage },
    /// A call has no reply in time.
    CallTimeout(SimRequest),
    /// The other nodes had time to answer whether they are alive.
    Probed { request: SimRequest, suspect: usize, since: Instant },
}

#[derive(Clone, Debug)]
pub(super) enum SimMessage {
    Open {
        request: SimRequest,
        path: PathVersion,
        published: PublishedMark,
        stored: LogPoint,
    },
    Store {
        request: SimRequest,
        path: PathVersion,
        revision: u64,
        region: u64,
        piece: PieceAnnouncement,
        data: SimWrite,
    },
    Write {
        request: SimRequest,
        region: u64,
        data: SimWrite,
    },
    Reply {
        request: SimRequest,
        reply: SimReply,
    },
}

/// Bytes of a log: the positions, and the records that have bytes in this range.
#[derive(Clone, Debug, Default)]
pub(super) struct SimWrite {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) entries: Vec<SimRecord>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SimReply {
    Opened {
        region: u64,
        stored: LogPoint,
    },
    Written(u64),
    Stored(StoredLog),
    OtherPath,
    DiskFull,
    PublishedAhead,
    Refused,
    /// The region of a write is revoked.
    Revoked,
}

/// A connection carries the messages of a log in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SimConnection {
    from: usize,
    to: usize,
    log: usize,
    is_write: bool,
}

struct SimLink {
    /// Bytes per second.
    rate: u64,
    latency: Duration,
    busy_until: Instant,
}

pub(super) struct SimNetwork {
    pub(super) now: Instant,
    events: BTreeMap<(Instant, u64), SimEvent>,
    next_event: u64,
    links: HashMap<(usize, usize), SimLink>,
    arrivals: HashMap<SimConnection, Instant>,
}

impl SimNetwork {
    /// Creates the links of a number of nodes. The slowest one has at least a rate of `RATE_MIN` times a power of two.
    pub(super) fn new(random: &mut Rng, nodes: usize, rate_log2_min: u32) -> Self {
        let now = Instant::now();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let mut link = |pair| {
            let rate = RATE_MIN << random.u32(rate_log2_min..=RATE_LOG2_MAX);
            let latency = Duration::from_micros(random.u64(20..LATENCY_US_MAX));
            (pair, SimLink { rate, latency, busy_until: now })
        };
        let links = pairs.map(&mut link).collect();
        Self { now, events: BTreeMap::new(), next_event: 0, links, arrivals: HashMap::new() }
    }

    /// The time for sending bytes over the slowest link.
    pub(super) fn slowest_time(&self, bytes: u64) -> Duration {
        let rate = self.links.values().map(|link| link.rate).min().unwrap_or(RATE_MIN);
        Duration::from_micros(bytes * 1_000_000 / rate)
    }

    pub(super) fn schedule(&mut self, at: Instant, event: SimEvent) {
        self.events.insert((at.max(self.now), self.next_event), event);
        self.next_event += 1;
    }

    /// Returns the next event until `end`, and sets the clock to its time. Sets the clock to `end` if there is none.
    pub(super) fn next_event(&mut self, end: Instant) -> Option<SimEvent> {
        let next = self.events.first_entry().filter(|next| next.key().0 <= end);
        let Some(next) = next else {
            self.now = end;
            return None;
        };
        self.now = next.key().0;
        Some(next.remove())
    }

    /// Sends a message from a node to the present process of another one.
    pub(super) fn send(&mut self, random: &mut Rng, from: usize, to: SimProcess, message: SimMessage) {
        let SimProcess { node: to, boot } = to;
        let (log, bytes, is_write) = match &message {
            SimMessage::Write { request, data, .. } => (request.log, data.to - data.from, true),
            SimMessage::Store { request, data, .. } => (request.log, CALL_BYTES + data.to - data.from, false),
            SimMessage::Open { request, .. } => (request.log, CALL_BYTES, false),
            SimMessage::Reply { request, reply } => (request.log, CALL_BYTES, matches!(reply, SimReply::Written(_))),
        };
        let link = self.links.get_mut(&(from, to)).expect("each pair of nodes has a link");
        let sending = Duration::from_micros(bytes * 1_000_000 / link.rate);
        link.busy_until = link.busy_until.max(self.now) + sending;
        let arrival = link.busy_until + link.latency + Duration::from_micros(random.u64(..JITTER_US_MAX));
        let last = self.arrivals.entry(SimConnection { from, to, log, is_write }).or_insert(arrival);
        *last = arrival.max(*last);
        let at = *last;
        self.schedule(at, SimEvent::Deliver { to, boot, message });
    }
}
