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

/// Time between two heartbeats to one member. So a displayed state is about a second old at most. In a cluster of a thousand
/// nodes, each node sends a thousand small messages a second.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A member that is silent for this time is unreachable. The time is five heartbeats, so that one lost or late heartbeat has
/// no effect.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(5);

/// Longest regular time between two calls of [`Membership::handle_time`]. After a longer time, this node was stopped or not
/// scheduled, and received messages may not have been read yet.
pub const POLL_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// A member that is silent for this time is forgotten. In this time, a machine can boot twice.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Limit on members. With more members, a full mesh of heartbeats would cost too much.
pub const MEMBERS_MAX: usize = 1024;

/// The properties that a node announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// The address of its control API.
    pub address: SocketAddr,
    /// The address of its fabric server.
    pub fabric_address: SocketAddr,
    /// A random number that its daemon draws when it starts.
    pub incarnation: u64,
    /// Number of children that run on the node.
    pub children: u32,
    /// Why the node accepts no children; `None` if it accepts them.
    pub not_ready: Option<String>,
    /// Its release; empty for a node of an earlier release, which does not report it.
    pub version: String,
    /// The process id of its daemon on its machine; 0 for a node of an earlier release.
    pub pid: u32,
    /// The features of its processor; `None` for a node of an earlier release, which does not report them.
    pub processor: Option<ProcessorFeatures>,
}

/// Whether a member answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// A message from the member, or the answer that introduced it, arrived less than [`UNREACHABLE_AFTER`] ago.
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
    /// Time since its last message.
    pub silence: Duration,
    /// Whether the member is this node itself.
    pub is_self: bool,
}

/// A change of the membership, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// The first message from a member arrived, or the first one since the member was forgotten.
    Joined(NodeName),
    /// The daemon of a member was restarted.
    Restarted(NodeName),
    /// A member that was unreachable answers again.
    Returned(NodeName),
    /// A member has been silent for [`UNREACHABLE_AFTER`].
    Unreachable(NodeName),
    /// A member has been silent for [`FORGOTTEN_AFTER`], and is no longer a member.
    Forgotten(NodeName),
}

/// Why a node cannot be a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Two daemons have one name.
    #[error("the name is taken by the node at {address}")]
    NameTaken {
        /// The control address of the other daemon.
        address: SocketAddr,
    },
    /// The cluster has [`MEMBERS_MAX`] members.
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
    /// The members that have left. Their late heartbeats, and other nodes that still name them, must not bring them back.
    left: BTreeMap<NodeName, LeftMember>,
    /// Time of the last call of [`Self::handle_time`].
    polled_at: Option<Instant>,
}

/// A run of a daemon that has left the cluster.
#[derive(Debug, Clone, Copy)]
struct LeftMember {
    incarnation: u64,
    at: Instant,
}

impl Membership {
    /// The membership of a node that knows only itself.
    pub fn new(own_member: Member) -> Self {
        Self { own: own_member, peers: BTreeMap::new(), left: BTreeMap::new(), polled_at: None }
    }

    /// The properties that this node announces.
    pub fn own_member(&self) -> &Member {
        &self.own
    }

    /// Sets the number of children that run on this node, for the next heartbeats.
    pub fn set_children(&mut self, children: u32) {
        self.own.children = children;
    }

    /// Sets the reason why this node accepts no children; `None` if it accepts them.
    pub fn set_not_ready(&mut self, reason: Option<String>) {
        self.own.not_ready = reason;
    }

    /// Handles a received heartbeat.
    ///
    /// # Errors
    /// The sender cannot be a member. The caller should send it this error.
    pub fn handle_heartbeat(&mut self, from: Member, now: Instant) -> Result<Option<MembershipEvent>, JoinError> {
        self.record_heartbeat(from, now)
    }

    /// Handles the answer to a heartbeat. `members` begins with the answering member. The others are those whose messages
    /// that member receives.
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

    /// Handles the message of a member that stops: removes the member. Ignores a message of an earlier run of its daemon.
    pub fn handle_leave(&mut self, from: &Member, now: Instant) {
        if self.peers.get(&from.name).is_some_and(|peer| peer.member.incarnation == from.incarnation) {
            self.peers.remove(&from.name);
            self.left.insert(from.name.clone(), LeftMember { incarnation: from.incarnation, at: now });
        }
    }

    /// Whether this run of the member's daemon has left.
    fn has_left(&self, member: &Member) -> bool {
        self.left.get(&member.name).is_some_and(|left| left.incarnation == member.incarnation)
    }

    /// Removes a member whose certificate was revoked. Returns whether there was one.
    pub fn remove_revoked(&mut self, name: &NodeName) -> bool {
        self.peers.remove(name).is_some()
    }

    /// Advances the time. Returns the members that became unreachable or were forgotten. Call it more often than every
    /// [`POLL_INTERVAL_MAX`].
    pub fn handle_time(&mut self, now: Instant) -> Vec<MembershipEvent> {
        let missed = self.missed_time(now);
        self.peers.values_mut().for_each(|peer| peer.discount_missed(missed, now));
        self.polled_at = Some(now);
        self.left.retain(|_, left| now.saturating_duration_since(left.at) < FORGOTTEN_AFTER);
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

    /// Returns the members to which a heartbeat is due now. Each is due again after [`HEARTBEAT_INTERVAL`].
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

    /// The member with this name; `None` if there is none.
    pub fn view(&self, name: &NodeName, now: Instant) -> Option<MemberView> {
        self.views(now).into_iter().find(|view| &view.member.name == name)
    }

    fn record_heartbeat(&mut self, from: Member, now: Instant) -> Result<Option<MembershipEvent>, JoinError> {
        if from.name == self.own.name {
            let is_me = from.incarnation == self.own.incarnation;
            return if is_me { Ok(None) } else { Err(JoinError::NameTaken { address: self.own.address }) };
        }
        if self.has_left(&from) {
            return Ok(None);
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

    /// The time in which this node should have called [`Self::handle_time`], but did not.
    fn missed_time(&self, now: Instant) -> Duration {
        let since = self.polled_at.map(|looked_at| now.saturating_duration_since(looked_at));
        since.unwrap_or_default().saturating_sub(POLL_INTERVAL_MAX)
    }

    fn add_from_gossip(&mut self, named: Member, now: Instant) {
        let is_known = named.name == self.own.name || self.peers.contains_key(&named.name) || self.has_left(&named);
        if !is_known && self.peers.len() + 1 < MEMBERS_MAX {
            self.peers.insert(named.name.clone(), Peer::from_gossip(named, now));
        }
    }
}
