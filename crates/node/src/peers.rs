//! The other nodes: their membership, and connections to their control ports.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::client::{Client, network_channel, node_client, peer_client};
use farfork_api::failure::Failure;
use farfork_api::v1::peer_client::PeerClient;
use farfork_cluster::membership::{
    JoinError, Member, MemberState, MemberView, Membership, MembershipEvent, UNREACHABLE_AFTER,
};
use farfork_wire::NodeName;
use tokio::time::interval;
use tonic::Code;
use tonic::transport::Channel;

use crate::clock::unix_ms_now;
use crate::trust::{AppliedRoster, NameReservations, Security};

/// Time for which a connection is used for new requests. An older connection stays open until its last request has
/// completed or a certificate expires. Nodes renew their certificates a month before the expiry, so each request has
/// almost a month to complete.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A node that is unreachable for this time counts as lost, and requests that it executes fail. A link may recover until then.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Interval at which a request checks whether the node that executes it is lost.
const LOST_INTERVAL: Duration = Duration::from_millis(500);

/// A connection, with the time at which it was made.
#[derive(Debug)]
struct CachedChannel {
    channel: Channel,
    since: Instant,
}

/// The cluster as this node knows it.
#[derive(Debug)]
pub(crate) struct Peers {
    membership: Mutex<Membership>,
    security: Security,
    /// Cached connections, by address and expected name. Each carries many requests, and reconnects by itself. If a
    /// member is known at the address, the peer's certificate must have the member's name.
    channels: Mutex<HashMap<(SocketAddr, Option<NodeName>), CachedChannel>>,
    /// The roster with which the connections and members comply. Lock order: after `membership`.
    applied_roster: Mutex<AppliedRoster>,
    reserved_names: NameReservations,
    /// The control address of the node that last reported that it holds the authority.
    authority_address: Mutex<Option<SocketAddr>>,
    /// The real-time clock of each member minus this node's clock, in milliseconds, at its last heartbeat.
    clock_differences: Mutex<HashMap<NodeName, i64>>,
}

/// The next step if a member is unreachable.
pub(crate) fn unreachable_step(view: &MemberView) -> String {
    let address = view.member.address;
    format!("check its daemon (`farfork up --restart` starts an ended one again), and the network to {address}")
}

fn silence_failure(view: &MemberView, object: impl Display) -> Failure {
    let cause = format!("node `{}` has been silent for {} s", view.member.name, view.silence.as_secs());
    Failure::new(Code::Unavailable, object, cause).with_next_step(unreachable_step(view))
}

impl Peers {
    pub(crate) fn new(own_member: Member, security: Security) -> Self {
        let followed = security.credentials().map(|credentials| AppliedRoster::from_roster(&credentials.roster().0));
        let followed = Mutex::new(followed.unwrap_or_default());
        Self {
            membership: Mutex::new(Membership::new(own_member)),
            security,
            channels: Mutex::default(),
            applied_roster: followed,
            reserved_names: NameReservations::default(),
            authority_address: Mutex::default(),
            clock_differences: Mutex::default(),
        }
    }

    /// Returns the node's trust settings.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// Returns the names of machines that have joined and have not sent a heartbeat yet.
    pub(crate) fn reserved_names(&self) -> &NameReservations {
        &self.reserved_names
    }

    /// Returns the control address of another node that holds the authority, if one is known.
    pub(crate) fn authority_address(&self) -> Option<SocketAddr> {
        *self.authority_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether a node reported that it holds the authority.
    pub(crate) fn record_authority(&self, address: SocketAddr, holds: bool) {
        let mut known = self.authority_address.lock().unwrap_or_else(PoisonError::into_inner);
        match (holds, *known) {
            (true, _) => *known = Some(address),
            (false, Some(before)) if before == address => *known = None,
            (false, _) => {}
        }
    }

    /// Records the clock that a member reports in a heartbeat, in milliseconds since 1970; 0 if it reports none.
    pub(crate) fn record_clock(&self, name: NodeName, clock_unix_ms: u64) {
        if clock_unix_ms != 0 {
            let difference_ms = clock_unix_ms.cast_signed().saturating_sub(unix_ms_now().cast_signed());
            self.clock_differences().insert(name, difference_ms);
        }
    }

    /// Returns the clock of a member minus this node's clock, in milliseconds; `None` if the member has reported none.
    pub(crate) fn clock_difference_ms(&self, name: &NodeName) -> Option<i64> {
        self.clock_differences().get(name).copied()
    }

    fn clock_differences(&self) -> MutexGuard<'_, HashMap<NodeName, i64>> {
        self.clock_differences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this node's name.
    pub(crate) fn local_name(&self) -> NodeName {
        self.membership().own_member().name.clone()
    }

    /// Locks the membership state machine.
    pub(crate) fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all nodes, including this one, ordered by name.
    pub(crate) fn views(&self) -> Vec<MemberView> {
        self.membership().views(Instant::now())
    }

    /// Whether a node of this name is alive.
    pub(crate) fn is_alive(&self, name: &NodeName) -> bool {
        self.views().iter().any(|view| view.member.name == *name && view.state == MemberState::Alive)
    }

    /// Returns the nodes that are alive, without this one.
    pub(crate) fn others_alive(&self) -> Vec<Member> {
        let views = self.views().into_iter();
        let others = views.filter(|view| !view.is_self && view.state == MemberState::Alive);
        others.map(|view| view.member).collect()
    }

    /// Returns the addresses of all other nodes, alive or not.
    pub(crate) fn others(&self) -> Vec<SocketAddr> {
        self.views().into_iter().filter(|view| !view.is_self).map(|view| view.member.address).collect()
    }

    /// Returns a client of another node, for a request about `object`.
    ///
    /// # Errors
    /// No node has this name, or the node is unreachable.
    pub(crate) fn client(&self, node: &NodeName, object: impl Display) -> Result<Client, Failure> {
        Ok(node_client(self.channel_to(node, object)?))
    }

    /// Returns a client of another node's peer service, for a request about `object`.
    ///
    /// # Errors
    /// No node has this name, or the node is unreachable.
    pub(crate) fn peer(&self, node: &NodeName, object: impl Display) -> Result<PeerClient<Channel>, Failure> {
        Ok(peer_client(self.channel_to(node, object)?))
    }

    /// Returns a connection to a control port. If a member is known at this address, only that member is accepted as
    /// the peer; otherwise any node of the cluster.
    pub(crate) fn channel(&self, address: SocketAddr) -> Channel {
        let expected = self.membership().name_at(address).cloned();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, now) = ((address, expected.clone()), Instant::now());
        channels.retain(|other, cached| *other != key || now - cached.since < CONNECTION_AGE_MAX);
        let make =
            || CachedChannel { channel: network_channel(address, expected, self.security.tls_mode()), since: now };
        channels.entry(key).or_insert_with(make).channel.clone()
    }

    /// Drops all cached connections, so that new requests use the current credentials.
    pub(crate) fn drop_channels(&self) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// After a change of the roster, drops all older connections and removes the members that it revokes. Returns these. A
    /// node that joins again under a revoked name sends heartbeats, and so becomes a member again.
    #[must_use = "the seeds of revoked members are lost"]
    pub(crate) fn apply_roster(&self) -> Vec<NodeName> {
        let Some(credentials) = self.security.credentials() else { return Vec::new() };
        if credentials.roster_counter() == self.applied_roster().counter() {
            return Vec::new();
        }
        let (roster, _) = credentials.roster();
        // Hold both locks, so that no reply to an older request is applied in between.
        let mut membership = self.membership();
        let before = std::mem::replace(&mut *self.applied_roster(), AppliedRoster::from_roster(&roster));
        self.drop_channels();
        let revoked = self.applied_roster().revoked_since(&before);
        for node in &revoked {
            if membership.remove_revoked(node) {
                tracing::warn!(%node, "was revoked, and is no longer a member");
            }
        }
        revoked
    }

    /// Applies the members in the reply to a heartbeat. Ignores the reply if the roster has changed since the request,
    /// because the sender may have been revoked. A member with a revoked name is accepted only as the first entry, the
    /// sender: for other members, the sender may not know the revocation yet.
    pub(crate) fn handle_heartbeat_answer(
        &self,
        mut members: Vec<Member>,
        roster_counter: u64,
    ) -> Result<Option<MembershipEvent>, JoinError> {
        let mut membership = self.membership();
        let followed = self.applied_roster();
        if followed.counter() != roster_counter {
            return Ok(None);
        }
        let mut is_answering = true;
        members.retain(|member| std::mem::take(&mut is_answering) || !followed.is_revoked(&member.name));
        membership.handle_answer(members, Instant::now())
    }

    /// Returns the version of the roster with which connections and members comply.
    pub(crate) fn applied_roster_counter(&self) -> u64 {
        self.applied_roster().counter()
    }

    fn applied_roster(&self) -> MutexGuard<'_, AppliedRoster> {
        self.applied_roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections to addresses that no longer belong to a member.
    pub(crate) fn drop_stale_channels(&self) {
        let known: Vec<SocketAddr> = self.views().into_iter().map(|view| view.member.address).collect();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|(address, _), _| known.contains(address));
    }

    /// Returns the member with this name.
    ///
    /// # Errors
    /// No member has this name. The failure lists the members.
    pub(crate) fn find(&self, node: &NodeName, object: impl Display) -> Result<MemberView, Failure> {
        let known = self.membership().view(node, Instant::now());
        known.ok_or_else(|| {
            let names: Vec<String> = self.views().iter().map(|v| v.member.name.to_string()).collect();
            Failure::new(Code::NotFound, object, format!("there is no node `{node}`"))
                .with_next_step(format!("this cluster has: {}", names.join(", ")))
        })
    }

    /// Returns a failure about `object` when a node is unreachable for [`LOST_AFTER`], or is no longer a member.
    pub(crate) async fn wait_until_lost(&self, node: &NodeName, object: &str) -> Failure {
        let mut checks = interval(LOST_INTERVAL);
        loop {
            checks.tick().await;
            let view = match self.find(node, object) {
                Ok(view) => view,
                Err(failure) => return failure,
            };
            if view.state == MemberState::Unreachable && view.silence >= UNREACHABLE_AFTER + LOST_AFTER {
                return silence_failure(&view, object);
            }
        }
    }

    fn channel_to(&self, node: &NodeName, object: impl Display) -> Result<Channel, Failure> {
        let view = self.find(node, &object)?;
        if view.state == MemberState::Unreachable {
            return Err(silence_failure(&view, object));
        }
        Ok(self.channel(view.member.address))
    }
}
