//! Makes ready for children of a seed that nobody has asked for yet, where its process's seed before it had such: its zygote, and, where they
//! were forked one by one, one child that stands by. Of a process's first seed, on its own node: its zygote.
//!
//! ```text
//!  seed complete ── a moment, unless it is forked at once ─┬─▶ zygote, standby
//!  (its owner)                                             └─ Foretell ─▶ each node that had such children ─▶ zygote, standby
//! ```

use std::sync::Arc;
use std::time::Duration;

use farfork_wire::{NodeName, SeedId};
use tokio::time::sleep;
use tonic::Code;

use super::zygote::{self, in_a_thread};
use crate::api::v1;
use crate::auth::Caller;
use crate::client::within;
use crate::engine::{Hatching, SeedAccess, StartOptions};
use crate::failure::Failure;
use crate::foresight::{Foreseen, Manner};
use crate::limits::QUERY_TIMEOUT;
use crate::node::Node;

/// Who forks a seed at once has the processors: what is made for the next would come too late, and in the way.
const FORETELLING_DELAY: Duration = Duration::from_millis(2);
/// Of those who fork children one by one, most fork one of each seed; further ones stand by when that was asked for.
const STANDBYS_FORETOLD: usize = 1;

/// A process of this node has a new seed behind another, which is complete.
pub(crate) fn foretell(node: &Arc<Node>, before: &SeedId, next: &SeedId) {
    let foreseen = node.foresight.follows(before, next);
    if foreseen != Foreseen::default() {
        node.runtime.spawn(prepare_for(node.clone(), before.clone(), next.clone(), foreseen));
    }
}

/// A process of this node has a seed, and none before it that is known. Who makes one is expected to fork it, where they are, and as most do: its
/// zygote is made. Where nobody forks it, nothing is made for the process's next.
pub(crate) fn expect(node: &Arc<Node>, seed: &SeedId) {
    node.runtime.spawn(prepare_for_anybody(node.clone(), seed.clone()));
}

async fn prepare_for_anybody(node: Arc<Node>, seed: SeedId) {
    sleep(FORETELLING_DELAY).await;
    let Ok(access) = node.seeds.access(&seed).and_then(SeedAccess::try_from) else { return };
    if !node.foresight.is_known(&seed) {
        prepare_zygote(&node, access, StartOptions::default()).await;
    }
}

async fn prepare_for(node: Arc<Node>, before: SeedId, seed: SeedId, foreseen: Foreseen) {
    let Foreseen { here, elsewhere, former } = foreseen;
    if !here.as_ref().is_some_and(|manner| manner.is_fan_out) {
        sleep(FORETELLING_DELAY).await;
    }
    let Ok(access) = node.seeds.access(&seed) else { return };
    let gone: Vec<SeedId> = former.into_iter().filter(|seed| !node.seeds.is_listed(seed)).collect();
    node.foresight.forget_former(&seed, &gone);
    for name in elsewhere {
        let gone = gone.iter().map(SeedId::to_string).collect();
        let request = v1::ForetellRequest { before: before.to_string(), seed: Some(access.clone()), gone };
        tokio::spawn(tell(node.clone(), name, seed.clone(), request));
    }
    if let (Some(manner), Ok(access)) = (here, SeedAccess::try_from(access)) {
        prepare_here(node, access, manner).await;
    }
}

/// Tells another node. One that does not expect its children is not told of the next seed, nor is one of an earlier release.
async fn tell(node: Arc<Node>, name: NodeName, seed: SeedId, request: v1::ForetellRequest) {
    if node.foresight.is_asked_on(&seed, &name) {
        return;
    }
    let Ok(mut peer) = node.peers.peer(&name, format!("node `{name}`")) else { return };
    let answer = peer.foretell(within(QUERY_TIMEOUT, request)).await;
    if !answer.is_ok_and(|answer| answer.into_inner().is_expected) {
        node.foresight.forget_node(&seed, &name);
    }
}

/// A process of another node has a new seed. Says whether children of it are expected here.
///
/// # Errors
/// It is not of the node that says so.
pub(super) fn foretold(
    node: &Arc<Node>,
    caller: Option<&Caller>,
    request: v1::ForetellRequest,
) -> Result<v1::ForetellResponse, Failure> {
    let v1::ForetellRequest { before, seed, gone } = request;
    let refuse = |cause: &str| Failure::new(Code::InvalidArgument, format!("seed {before}"), cause);
    let access = SeedAccess::try_from(seed.ok_or_else(|| refuse("no seed is named that follows"))?)?;
    let owner = access.key.seed.node().clone();
    if let Some(Caller::Member(peer)) = caller
        && peer.identity.name != owner
    {
        let cause = format!("{peer} says what follows it, whose it is not");
        return Err(Failure::new(Code::PermissionDenied, format!("seed {before}"), cause));
    }
    let is_its = |seed: &SeedId| *seed.node() == owner && owner != node.name;
    let known: SeedId = before.parse().map_err(|_| refuse("it is no seed's id"))?;
    if !is_its(&known) {
        return Err(refuse("it is another node's than that which follows it"));
    }
    let gone: Vec<SeedId> = gone.iter().filter_map(|seed| seed.parse().ok()).filter(is_its).collect();
    let foreseen = node.foresight.follows(&known, &access.key.seed);
    let is_expected = foreseen.here.is_some();
    tokio::spawn(make_room_and_prepare(node.clone(), gone, access, foreseen.here));
    Ok(v1::ForetellResponse { is_expected })
}

async fn make_room_and_prepare(node: Arc<Node>, gone: Vec<SeedId>, access: SeedAccess, manner: Option<Manner>) {
    if !gone.is_empty() {
        let here = node.clone();
        in_a_thread(move || gone.iter().for_each(|seed| here.engine.forget_seed(seed))).await;
    }
    if let Some(manner) = manner {
        prepare_here(node, access, manner).await;
    }
}

/// Makes this node ready for children of a seed, unless somebody was faster than that.
async fn prepare_here(node: Arc<Node>, access: SeedAccess, manner: Manner) {
    let Manner { options, has_payload, is_fan_out } = manner;
    prepare_zygote(&node, access.clone(), options.clone()).await;
    if !is_fan_out && !node.foresight.is_asked(&access.key.seed) {
        in_a_thread(move || node.engine.stand_by(&access, &options, has_payload, STANDBYS_FORETOLD)).await;
    }
}

async fn prepare_zygote(node: &Arc<Node>, access: SeedAccess, options: StartOptions) {
    let seed = &access.key.seed;
    let object = format!("the zygote of seed {seed} on node {}", node.name);
    if !node.foresight.is_asked(seed) && node.child_budget.admit(&object, None, || 0).is_ok() {
        zygote::stands(node.clone(), access, options, Hatching::Foretold).await;
    }
}
