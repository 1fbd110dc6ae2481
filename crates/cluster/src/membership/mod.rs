//! Membership: which nodes exist, and which of them still answer. Pure: time is an argument, and `farfork-node` sends
//! the messages.
//!
//! Every node sends a heartbeat with its own state to every other node once a second. The answer names the members that
//! are alive for the receiver, so that a node that knows one member soon knows all.

mod peer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use farfork_sys::cpu::ProcessorFeatures;
use farfork_wire::NodeName;

use peer::Peer;

/// Between two heartbeats to one member: a user who asks twice in a second rarely sees an old answer, and a thousand
/// nodes cost each other a thousand small messages a second.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// After so long a silence a member is unreachable: five heartbeats, so that one lost or late means nothing.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// A node that has not looked for longer was kept from it: what others said meanwhile may not have been read yet.
pub const POLL_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// After so long a silence a member is forgotten: a machine has had the time to boot twice.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Most members. Beyond it a full mesh of heartbeats is the wrong way.
pub const MEMBERS_MAX: usize = 1024;

/// The properties that a node announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// Where its control API listens.
    pub address: SocketAddr,
    /// Where its fabric's server listens.
    pub fabric_address: SocketAddr,
    /// Drawn at random when its daemon starts.
    pub incarnation: u64,
    /// Children that run there.
    pub children: u32,
    /// Why it takes no children, where it takes none.
    pub not_ready: Option<String>,
    /// The features of its processor; `None` for a node of an earlier release, which does not report them.
    pub processor: Option<ProcessorFeatures>,
}

/// Whether a member answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// A message of it, or about it, arrived lately.
    Alive,
    /// It has been silent for [`UNREACHABLE_AFTER`].
    Unreachable,
}

/// A member as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// The properties that the member announced.
    pub member: Member,
    /// Whether it answers.
    pub state: MemberState,
    /// Since when it has said nothing.
    pub silence: Duration,
    /// Whether it is the node that looks.
    pub is_self: bool,
}

/// A change of the membership, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// The first message of a member, or about it, arrived: since the start, or since it was forgotten.
    Joined(NodeName),
    /// The daemon of a member was started anew.
    Restarted(NodeName),
    /// A member that was unreachable answers again.
    Returned(NodeName),
    /// A member has been silent for too long.
    Unreachable(NodeName),
    /// A member has been silent for so long that it is no member any more.
    Forgotten(NodeName),
}

/// Why a node cannot be a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Two daemons have one name.
    #[error("the name is taken by the node at {address}")]
    NameTaken {
        /// Where the other one listens.
        address: SocketAddr,
    },
    /// There is no room.
    #[error("the cluster has {MEMBERS_MAX} members, and takes no more")]
    Full,
}

/// The members that one node knows, itself included.
///
/// ```text
///              heartbeat or answer                     silent for UNREACHABLE_AFTER
///   unknown ───────────────────────────▶ alive ───────────────────────────────────▶ unreachable
///      ▲  │ named in an answer             ▲                                             │  │
///      │  └──▶ introduced ─────────────────┴──────────── heartbeat or answer ────────────┘  │
///      │            │                                                                       │
///      └────────────┴── leave, or silent for FORGOTTEN_AFTER ───────────────────────────────┘
/// ```
///
/// Only messages that a node itself receives keep a member alive. An answer of a third node only introduces a member: a
/// dead member does not live on in the answers of others. Time in which this node did not poll, because it was stopped
/// or the machine was busy, does not count as silence of others.
#[derive(Debug)]
pub struct Membership {
    own: Member,
    peers: BTreeMap<NodeName, Peer>,
    /// When time last passed.
    polled_at: Option<Instant>,
}

impl Membership {
    /// A node that knows itself only.
    pub fn new(own_member: Member) -> Self {
        Self { own: own_member, peers: BTreeMap::new(), polled_at: None }
    }

    /// The properties that this node announces.
    pub fn own_member(&self) -> &Member {
        &self.own
    }

    /// Tells how many children run here, which the next heartbeats carry on.
    pub fn set_children(&mut self, children: u32) {
        self.own.children = children;
    }

    /// Tells why this node takes no children, where it takes none.
    pub fn set_not_ready(&mut self, reason: Option<String>) {
        self.own.not_ready = reason;
    }

    /// A heartbeat has come.
    ///
    /// # Errors
    /// The sender cannot be a member. The caller should answer so.
    pub fn handle_heartbeat(&mut self, from: Member, now: Instant) -> Result<Option<MembershipEvent>, JoinError> {
        self.record_heartbeat(from, now)
    }

    /// The answer to a heartbeat has arrived: the answering member first, then the members whose messages it receives.
    ///
    /// # Errors
    /// The answering node and this one cannot both be members.
    pub fn handle_answer(&mut self, members: Vec<Member>, now: Instant) -> Result<Option<MembershipEvent>, JoinError> {
        let mut members = members.into_iter();
        let Some(answering) = members.next() else {
            return Ok(None);
        };
        let event = self.record_heartbeat(answering, now)?;
        for named in members {
            self.add_from_gossip(named, now);
        }
        Ok(event)
    }

    /// A member says that it stops. An older run's word does not count.
    pub fn handle_leave(&mut self, from: &Member) {
        if self.peers.get(&from.name).is_some_and(|peer| peer.member.incarnation == from.incarnation) {
            self.peers.remove(&from.name);
        }
    }

    /// A member is trusted no longer, whatever it says; whether there was one.
    pub fn remove_revoked(&mut self, name: &NodeName) -> bool {
        self.peers.remove(name).is_some()
    }

    /// Time has passed: returns who fell silent. To be called more often than every [`POLL_INTERVAL_MAX`].
    pub fn handle_time(&mut self, now: Instant) -> Vec<MembershipEvent> {
        let missed = self.missed_time(now);
        self.peers.values_mut().for_each(|peer| peer.discount_missed(missed, now));
        self.polled_at = Some(now);
        let mut events = Vec::new();
        self.peers.retain(|name, peer| {
            if peer.silence(now) >= FORGOTTEN_AFTER {
                events.push(MembershipEvent::Forgotten(name.clone()));
                return false;
            }
            if peer.take_silence_report(now) {
                events.push(MembershipEvent::Unreachable(name.clone()));
            }
            true
        });
        events
    }

    /// The members that a heartbeat should go to now; each is due again after [`HEARTBEAT_INTERVAL`].
    pub fn poll_heartbeats(&mut self, now: Instant) -> Vec<Member> {
        let due = self.peers.values_mut().filter_map(|peer| peer.poll_heartbeat(now));
        due.collect()
    }

    /// The answer to a heartbeat: this node first, then the members whose messages it receives.
    pub fn known_members(&self, now: Instant) -> Vec<Member> {
        let now = now - self.missed_time(now);
        let alive_peers = self.peers.values().filter(|peer| peer.is_alive(now));
        std::iter::once(&self.own).chain(alive_peers.map(|peer| &peer.member)).cloned().collect()
    }

    /// All members, by name.
    pub fn views(&self, now: Instant) -> Vec<MemberView> {
        let now = now - self.missed_time(now);
        let own_view =
            MemberView { member: self.own.clone(), state: MemberState::Alive, silence: Duration::ZERO, is_self: true };
        let mut views: Vec<MemberView> = self.peers.values().map(|peer| peer.view(now)).collect();
        views.push(own_view);
        views.sort_by(|a, b| a.member.name.cmp(&b.member.name));
        views
    }

    /// The name of the member that listens at a control address.
    pub fn name_at(&self, address: SocketAddr) -> Option<&NodeName> {
        let found = self.peers.iter().find(|(_, peer)| peer.member.address == address);
        found.map(|(name, _)| name)
    }

    /// One member.
    pub fn view(&self, name: &NodeName, now: Instant) -> Option<MemberView> {
        self.views(now).into_iter().find(|view| &view.member.name == name)
    }

    fn record_heartbeat(&mut self, from: Member, now: Instant) -> Result<Option<MembershipEvent>, JoinError> {
        if from.name == self.own.name {
            let is_me = from.incarnation == self.own.incarnation;
            return if is_me { Ok(None) } else { Err(JoinError::NameTaken { address: self.own.address }) };
        }
        let missed = self.missed_time(now);
        if let Some(peer) = self.peers.get_mut(&from.name) {
            peer.discount_missed(missed, now);
            return peer.record_heartbeat(from, now);
        }
        if self.peers.len() + 1 >= MEMBERS_MAX {
            return Err(JoinError::Full);
        }
        let name = from.name.clone();
        self.peers.insert(name.clone(), Peer::from_heartbeat(from, now));
        Ok(Some(MembershipEvent::Joined(name)))
    }

    /// For how long this node was kept from looking.
    fn missed_time(&self, now: Instant) -> Duration {
        let since = self.polled_at.map(|looked_at| now.saturating_duration_since(looked_at));
        since.unwrap_or_default().saturating_sub(POLL_INTERVAL_MAX)
    }

    fn add_from_gossip(&mut self, named: Member, now: Instant) {
        let is_known = named.name == self.own.name || self.peers.contains_key(&named.name);
        if !is_known && self.peers.len() + 1 < MEMBERS_MAX {
            self.peers.insert(named.name.clone(), Peer::from_gossip(named, now));
        }
    }
}
