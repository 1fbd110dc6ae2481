//! Exchanges membership messages: sends heartbeats to all members and to the addresses to join, and handles the
//! replies.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::client::{peer_client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::{HEARTBEAT_TIMEOUT, LEAVE_TIMEOUT};
use farfork_api::v1;
use farfork_cluster::membership::{HEARTBEAT_INTERVAL, JoinError, Member, MembershipEvent};
use farfork_trust::Credentials;
use farfork_wire::NodeName;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout_at};
use tonic::Code;

use crate::auth::Caller;
use crate::clock::unix_ms_now;
use crate::member_file::{self, MemberFile};
use crate::peers::Peers;
use crate::trust;

/// Interval between checks for due heartbeats: a fraction of [`HEARTBEAT_INTERVAL`], so that no heartbeat is late by much.
const TICK: Duration = Duration::from_millis(250);

/// Interval between calls of addresses that only a file or the catalog has. A node that starts there calls this one at once.
const RECALL_INTERVAL: Duration = Duration::from_secs(10);

/// Longest wait for replies to the first heartbeats at a daemon's start: running nodes reply in milliseconds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The changing part of what a node reports about itself.
pub(crate) struct LocalState {
    /// Number of live children on the node.
    pub(crate) children: u32,
    /// Why the node accepts no children; `None` if it does.
    pub(crate) not_ready: Option<String>,
}

/// The addresses at which nodes of the cluster may be.
pub(crate) struct JoinAddresses {
    /// Addresses of the option `--join`.
    pub(crate) configured: Vec<SocketAddr>,
    /// Addresses that an earlier daemon has written.
    pub(crate) remembered: Vec<SocketAddr>,
    /// Addresses in the catalog.
    pub(crate) recorded: watch::Receiver<Vec<SocketAddr>>,
}

impl JoinAddresses {
    /// Returns each address once.
    pub(crate) fn all(&self) -> BTreeSet<SocketAddr> {
        let recorded = self.recorded.borrow();
        self.configured.iter().chain(&self.remembered).chain(recorded.iter()).copied().collect()
    }
}

/// Sends heartbeats until the daemon stops. Calls `own_state` before each round, and `handle_revoked` for each node that the
/// roster has revoked.
pub(crate) async fn run(
    peers: Arc<Peers>,
    join: JoinAddresses,
    member_file: Arc<Mutex<MemberFile>>,
    own_state: impl Fn() -> LocalState,
    handle_revoked: impl Fn(&NodeName),
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut join_due, mut recall_due) = (Instant::now(), Instant::now() + RECALL_INTERVAL);
    loop {
        let now = Instant::now();
        let due = {
            let mut membership = peers.membership();
            let LocalState { children, not_ready } = own_state();
            membership.set_children(children);
            membership.set_not_ready(not_ready);
            let events = membership.handle_time(now);
            events.iter().for_each(log_event);
            membership.poll_heartbeats(now)
        };
        let mut addresses: Vec<SocketAddr> = due.iter().map(|member| member.address).collect();
        if now >= join_due {
            join_due = now + HEARTBEAT_INTERVAL;
            let is_recall = now >= recall_due;
            if is_recall {
                recall_due = now + RECALL_INTERVAL;
            }
            let possible = if is_recall { join.all() } else { join.configured.iter().copied().collect() };
            addresses.extend(unknown_addresses(&peers, &possible));
            peers.apply_roster().iter().for_each(&handle_revoked);
            peers.drop_stale_channels();
            member_file::save_in_background(&member_file, &peers.others());
        }
        for address in addresses {
            let peers = peers.clone();
            tokio::spawn(async move {
                if let Err(failure) = send_heartbeat(peers, address).await {
                    tracing::debug!(%failure, "a heartbeat got no reply");
                }
            });
        }
        ticks.tick().await;
    }
}

/// Sends heartbeats to the addresses at which nodes may be. Done before this node accepts requests, so that it knows
/// its cluster. [`run`] retries nodes that do not reply.
///
/// # Errors
/// A node at one of the addresses refused this node as a member.
pub(crate) async fn join_members(peers: &Arc<Peers>, addresses: &BTreeSet<SocketAddr>) -> Result<(), Failure> {
    let mut heartbeats: JoinSet<_> = addresses.iter().map(|address| send_heartbeat(peers.clone(), *address)).collect();
    let deadline = tokio::time::Instant::now() + JOIN_TIMEOUT;
    while let Ok(Some(sent)) = timeout_at(deadline, heartbeats.join_next()).await {
        match sent {
            Ok(Err(failure)) if failure.code() == Code::AlreadyExists => return Err(failure),
            Ok(Err(failure)) => tracing::info!("not joined yet: {failure}"),
            _ => {}
        }
    }
    Ok(())
}

/// Notifies all members that this node stops, and which of its seeds the next daemon may serve again. A member that gets no
/// notification detects the end by missing heartbeats.
pub(crate) async fn leave(peers: &Peers, kept_seeds: Vec<String>) {
    let own_member: v1::Member = peers.membership().own_member().clone().into();
    let own_member = v1::Member { kept_seeds: Some(v1::KeptSeeds { ids: kept_seeds }), ..own_member };
    let others = peers.others_alive().into_iter();
    let leave_tasks = others.map(|member| {
        let mut client = peer_client(peers.channel(member.address));
        let request = request_with_timeout(LEAVE_TIMEOUT, own_member.clone());
        tokio::spawn(async move { client.leave(request).await.map(drop) })
    });
    for task in leave_tasks.collect::<Vec<_>>() {
        let _ = task.await;
    }
}

/// Checks that the name that a member reports is the name in its certificate.
///
/// # Errors
/// The member reports another name.
pub(crate) fn check_sender(caller: Option<&Caller>, from: &v1::Member) -> Result<(), Failure> {
    match caller {
        Some(Caller::Member(peer)) if peer.identity.name.as_str() != from.name => {
            let cause = format!("{peer} claims the name of this node");
            Err(Failure::new(Code::PermissionDenied, format!("node `{}`", from.name), cause))
        }
        _ => Ok(()),
    }
}

/// Handles a heartbeat and creates the reply.
///
/// # Errors
/// The sender cannot be a member.
pub(crate) fn handle_heartbeat(
    peers: &Peers,
    caller: Option<&Caller>,
    from: v1::Member,
) -> Result<v1::Members, Failure> {
    check_sender(caller, &from)?;
    let sender_clock_ms = from.clock_unix_ms;
    let from = Member::try_from(from)?;
    let name = from.name.clone();
    let now = Instant::now();
    let mut membership = peers.membership();
    let event = membership.handle_heartbeat(from, now).map_err(|error| {
        let step = match error {
            JoinError::NameTaken { .. } => "give each node a name of its own (`farfork node --name`)",
            JoinError::Full => "split the cluster into two",
        };
        Failure::new(Code::AlreadyExists, format!("node `{name}`"), error).with_next_step(step)
    })?;
    event.iter().for_each(log_event);
    peers.reserved_names().release(&name);
    peers.record_clock(name, sender_clock_ms);
    let members = membership.known_members(now).into_iter().map(v1::Member::from).collect();
    drop(membership);
    let credentials = peers.security().credentials();
    let roster = credentials.map_or(0, Credentials::roster_counter);
    let holds_authority = credentials.is_some_and(|credentials| credentials.directory().holds_authority());
    Ok(v1::Members { members, roster, holds_authority })
}

/// Returns the addresses at which no member is known.
fn unknown_addresses(peers: &Peers, possible: &BTreeSet<SocketAddr>) -> BTreeSet<SocketAddr> {
    let known: BTreeSet<SocketAddr> = peers.views().into_iter().map(|view| view.member.address).collect();
    possible - &known
}

/// Sends one heartbeat, and handles the reply.
async fn send_heartbeat(peers: Arc<Peers>, address: SocketAddr) -> Result<(), Failure> {
    let object = format!("node at {address}");
    let own_member: v1::Member = peers.membership().own_member().clone().into();
    let heartbeat = v1::Member { clock_unix_ms: unix_ms_now(), ..own_member };
    let roster_counter = peers.applied_roster_counter();
    let mut client = peer_client(peers.channel(address));
    let answer = client.heartbeat(request_with_timeout(HEARTBEAT_TIMEOUT, heartbeat)).await;
    let answer = answer.map_err(|status| Failure::from_status(&object, &status))?.into_inner();
    let v1::Members { members, roster, holds_authority } = answer;
    let members: Vec<Member> = members.into_iter().map(Member::try_from).collect::<Result<_, _>>()?;
    let event = peers.handle_heartbeat_answer(members, roster_counter);
    let event = event.map_err(|error| Failure::new(Code::FailedPrecondition, object, error))?;
    event.iter().for_each(log_event);
    peers.record_authority(address, holds_authority);
    trust::fetch_roster(&peers, address, roster).await
}

pub(crate) fn log_event(event: &MembershipEvent) {
    match event {
        MembershipEvent::Joined(node) => tracing::info!(%node, "joined"),
        MembershipEvent::Restarted(node) => tracing::info!(%node, "was restarted"),
        MembershipEvent::Returned(node) => tracing::info!(%node, "answers again"),
        MembershipEvent::Unreachable(node) => tracing::warn!(%node, "is silent"),
        MembershipEvent::Forgotten(node) => {
            tracing::warn!(%node, "sent no heartbeat for so long that it is no longer a member")
        }
    }
}
