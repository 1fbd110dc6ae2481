//! The other nodes: their membership, and connections to their control ports.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::client::{Client, network_channel, node_client, peer_client};
use farfork_api::failure::Failure;
use farfork_api::v1::peer_client::PeerClient;
use farfork_cluster::membership::{JoinError, Member, MemberState, MemberView, Membership, MembershipEvent};
use farfork_wire::NodeName;
use tonic::Code;
use tonic::transport::Channel;

use crate::trust::{AppliedRoster, NameReservations, Security};

/// How long a connection takes new requests. One stands no longer than the certificates that were shown on it, and nodes
/// renew theirs a month before the end: so what is asked has a month to be answered.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A connection, since when.
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
    /// Connections, kept: each carries many requests, and mends itself. A node that is known has to be the one at the
    /// other end.
    channels: Mutex<HashMap<(SocketAddr, Option<NodeName>), CachedChannel>>,
    /// Taken after `membership`, where both are.
    applied_roster: Mutex<AppliedRoster>,
    reserved_names: NameReservations,
    /// The control address of the node that said last that it holds the authority.
    authority_address: Mutex<Option<SocketAddr>>,
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
        }
    }

    /// Whom this node trusts.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// Names that machines have joined with and have not spoken as.
    pub(crate) fn reserved_names(&self) -> &NameReservations {
        &self.reserved_names
    }

    /// The control address of the other node that holds the authority, as far as this one has heard.
    pub(crate) fn authority_address(&self) -> Option<SocketAddr> {
        *self.authority_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has said whether it holds the authority.
    pub(crate) fn record_authority(&self, address: SocketAddr, holds: bool) {
        let mut known = self.authority_address.lock().unwrap_or_else(PoisonError::into_inner);
        match (holds, *known) {
            (true, _) => *known = Some(address),
            (false, Some(before)) if before == address => *known = None,
            (false, _) => {}
        }
    }

    /// This node's name.
    pub(crate) fn local_name(&self) -> NodeName {
        self.membership().own_member().name.clone()
    }

    /// The members' state machine.
    pub(crate) fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All nodes, this one too, by name.
    pub(crate) fn views(&self) -> Vec<MemberView> {
        self.membership().views(Instant::now())
    }

    /// Whether a node of this name answers.
    pub(crate) fn is_alive(&self, name: &NodeName) -> bool {
        self.views().iter().any(|view| view.member.name == *name && view.state == MemberState::Alive)
    }

    /// The nodes that answer, without this one.
    pub(crate) fn others_alive(&self) -> Vec<Member> {
        let views = self.views().into_iter();
        let others = views.filter(|view| !view.is_self && view.state == MemberState::Alive);
        others.map(|view| view.member).collect()
    }

    /// The addresses of all others, alive or not.
    pub(crate) fn others(&self) -> Vec<SocketAddr> {
        self.views().into_iter().filter(|view| !view.is_self).map(|view| view.member.address).collect()
    }

    /// A client of another node, for a request about `object`.
    ///
    /// # Errors
    /// There is no such node, or it is silent.
    pub(crate) fn client(&self, node: &NodeName, object: impl Display) -> Result<Client, Failure> {
        Ok(node_client(self.channel_to(node, object)?))
    }

    /// A client of another node's service for nodes, for a request about `object`.
    ///
    /// # Errors
    /// There is no such node, or it is silent.
    pub(crate) fn peer(&self, node: &NodeName, object: impl Display) -> Result<PeerClient<Channel>, Failure> {
        Ok(peer_client(self.channel_to(node, object)?))
    }

    /// A connection to a control port: of the member that is known to listen there, or of any node of the cluster.
    pub(crate) fn channel(&self, address: SocketAddr) -> Channel {
        let expected = self.membership().name_at(address).cloned();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, now) = ((address, expected.clone()), Instant::now());
        channels.retain(|other, cached| *other != key || now - cached.since < CONNECTION_AGE_MAX);
        let make =
            || CachedChannel { channel: network_channel(address, expected, self.security.tls_mode()), since: now };
        channels.entry(key).or_insert_with(make).channel.clone()
    }

    /// Has what is asked from now on go over connections that begin with the credentials in force.
    pub(crate) fn drop_channels(&self) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Closes connections that began before the roster in force, and forgets the members that it revokes. Whoever comes
    /// back under such a name, as the cluster's node anew, will say so itself.
    pub(crate) fn apply_roster(&self) {
        let Some(credentials) = self.security.credentials() else { return };
        if credentials.roster_counter() == self.applied_roster().counter() {
            return;
        }
        let (roster, _) = credentials.roster();
        // Nobody takes what an answer said meanwhile for newer.
        let mut membership = self.membership();
        let before = std::mem::replace(&mut *self.applied_roster(), AppliedRoster::from_roster(&roster));
        self.drop_channels();
        for node in self.applied_roster().revoked_since(&before) {
            if membership.remove_revoked(&node) {
                tracing::warn!(%node, "was revoked, and is no member any more");
            }
        }
    }

    /// The members of an answer to a heartbeat, unless the roster has changed since the question: who answered may have
    /// been revoked. Names that were revoked are not taken from others, who may not have heard.
    pub(crate) fn handle_heartbeat_answer(
        &self,
        mut members: Vec<Member>,
        asked_under: u64,
    ) -> Result<Option<MembershipEvent>, JoinError> {
        let mut membership = self.membership();
        let followed = self.applied_roster();
        if followed.counter() != asked_under {
            return Ok(None);
        }
        let mut is_answering = true;
        members.retain(|member| std::mem::take(&mut is_answering) || !followed.is_revoked(&member.name));
        membership.handle_answer(members, Instant::now())
    }

    /// The number of the roster that connections and members are in line with.
    pub(crate) fn applied_roster_counter(&self) -> u64 {
        self.applied_roster().counter()
    }

    fn applied_roster(&self) -> MutexGuard<'_, AppliedRoster> {
        self.applied_roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections to addresses where no member is any more.
    pub(crate) fn drop_stale_channels(&self) {
        let known: Vec<SocketAddr> = self.views().into_iter().map(|view| view.member.address).collect();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|(address, _), _| known.contains(address));
    }

    /// The member of a name.
    ///
    /// # Errors
    /// None has it; the failure lists those that there are.
    pub(crate) fn find(&self, node: &NodeName, object: impl Display) -> Result<MemberView, Failure> {
        let known = self.membership().view(node, Instant::now());
        known.ok_or_else(|| {
            let names: Vec<String> = self.views().iter().map(|v| v.member.name.to_string()).collect();
            Failure::new(Code::NotFound, object, format!("there is no node `{node}`"))
                .with_next_step(format!("this cluster has: {}", names.join(", ")))
        })
    }

    fn channel_to(&self, node: &NodeName, object: impl Display) -> Result<Channel, Failure> {
        let view = self.find(node, &object)?;
        if view.state == MemberState::Unreachable {
            let silent_s = view.silence.as_secs();
            let cause = format!("node `{node}` has been silent for {silent_s} s");
            let step = format!("check the node, and the network to {}", view.member.address);
            return Err(Failure::new(Code::Unavailable, object, cause).with_next_step(step));
        }
        Ok(self.channel(view.member.address))
    }
}
