//! Speculative prewarming of a seed that was not forked yet, if the process's previous seed was forked. Makes a zygote,
//! and one prestarted child if children were forked one by one. For a process's first seed, only the owner makes a
//! zygote. `speculation` predicts forks; `engine` makes zygotes and children.

use std::sync::Arc;
use std::time::Duration;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_wire::{NodeName, SeedId};
use tokio::time::sleep;
use tonic::Code;

use super::zygote::{self, run_in_thread};
use crate::auth::Caller;
use crate::engine::{SeedAccess, StartOptions, ZygoteTrigger};
use crate::node::Node;
use crate::speculation::{ForkPattern, SpeculationPlan};

/// Delay before a speculative zygote is made. If the seed is forked within this time, its children need the CPUs, and
/// the zygote would be too late and slow them down.
const SPECULATION_DELAY: Duration = Duration::from_millis(2);
/// Number of children to prestart for a new seed. Programs that fork children one by one usually fork one of each seed.
/// Further children are prestarted after a request.
const SPECULATIVE_PRESTARTS: usize = 1;

/// Prewarms for a process's new, complete seed, as predicted from the forks of its previous seed (`before`).
///
/// ```text
///  seed complete ── SPECULATION_DELAY, unless it is forked at once ─┬─▶ zygote, prestarted child
///  (its owner)                                                      └─ Foretell ─▶ each node that had such children
///                                                                                    ─▶ zygote, prestarted child
/// ```
pub(crate) fn prewarm_next_seed(node: &Arc<Node>, before: &SeedId, next: &SeedId) {
    let plan = node.fork_history.advance_sequence(before, next);
    if plan != SpeculationPlan::default() {
        node.runtime.spawn(prewarm_and_notify(node.clone(), before.clone(), next.clone(), plan));
    }
}

/// Prewarms for the first known seed of a process: makes a zygote on this node, for default options. If the seed is not
/// forked, nothing is made for the process's next seed.
pub(crate) fn prewarm_first_seed(node: &Arc<Node>, seed: &SeedId) {
    node.runtime.spawn(create_first_zygote(node.clone(), seed.clone()));
}

async fn create_first_zygote(node: Arc<Node>, seed: SeedId) {
    sleep(SPECULATION_DELAY).await;
    let Ok(access) = node.seeds.access(&seed).and_then(SeedAccess::try_from) else { return };
    if !node.fork_history.has_sequence(&seed) {
        create_speculative_zygote(&node, access, StartOptions::default()).await;
    }
}

async fn prewarm_and_notify(node: Arc<Node>, before: SeedId, seed: SeedId, plan: SpeculationPlan) {
    let SpeculationPlan { local_pattern, remote_nodes, previous_seeds } = plan;
    if !local_pattern.as_ref().is_some_and(|fork_pattern| fork_pattern.is_fan_out) {
        sleep(SPECULATION_DELAY).await;
    }
    let Ok(access) = node.seeds.access(&seed) else { return };
    let gone: Vec<SeedId> = previous_seeds.into_iter().filter(|seed| !node.seeds.is_listed(seed)).collect();
    node.fork_history.remove_previous_seeds(&seed, &gone);
    for name in remote_nodes {
        let gone = gone.iter().map(SeedId::to_string).collect();
        let request = v1::ForetellRequest { before: before.to_string(), seed: Some(access.clone()), gone };
        tokio::spawn(notify_node(node.clone(), name, seed.clone(), request));
    }
    if let (Some(fork_pattern), Ok(access)) = (local_pattern, SeedAccess::try_from(access)) {
        prewarm_local(node, access, fork_pattern).await;
    }
}

/// Announces the seed to another node. If the node does not expect children of the seed, or has an earlier release, it
/// gets no further announcements for this process.
async fn notify_node(node: Arc<Node>, name: NodeName, seed: SeedId, request: v1::ForetellRequest) {
    if node.fork_history.has_fork_on(&seed, &name) {
        return;
    }
    let Ok(mut peer) = node.peers.peer(&name, format!("node `{name}`")) else { return };
    let answer = peer.foretell(request_with_timeout(QUERY_TIMEOUT, request)).await;
    if !answer.is_ok_and(|answer| answer.into_inner().is_expected) {
        node.fork_history.remove_node(&seed, &name);
    }
}

/// Handles the announcement that a process of another node has a new seed. The reply says whether children of the seed
/// are expected on this node.
///
/// # Errors
/// The seed does not belong to the caller.
pub(super) fn prewarm_for_next_seed(
    node: &Arc<Node>,
    caller: Option<&Caller>,
    request: v1::ForetellRequest,
) -> Result<v1::ForetellResponse, Failure> {
    let v1::ForetellRequest { before, seed, gone } = request;
    let refuse = |cause: &str| Failure::new(Code::InvalidArgument, format!("seed {before}"), cause);
    let access = SeedAccess::try_from(seed.ok_or_else(|| refuse("the request names no next seed"))?)?;
    let owner = access.key.seed.node().clone();
    if let Some(Caller::Member(peer)) = caller
        && peer.identity.name != owner
    {
        let cause = format!("{peer} announces its next seed, but does not own it");
        return Err(Failure::new(Code::PermissionDenied, format!("seed {before}"), cause));
    }
    let is_its = |seed: &SeedId| *seed.node() == owner && owner != node.name;
    let known: SeedId = before.parse().map_err(|_| refuse("it is not a seed id"))?;
    if !is_its(&known) {
        return Err(refuse("its owner is not the owner of the next seed"));
    }
    let gone: Vec<SeedId> = gone.iter().filter_map(|seed| seed.parse().ok()).filter(is_its).collect();
    let plan = node.fork_history.advance_sequence(&known, &access.key.seed);
    let is_expected = plan.local_pattern.is_some();
    tokio::spawn(evict_and_prewarm(node.clone(), gone, access, plan.local_pattern));
    Ok(v1::ForetellResponse { is_expected })
}

async fn evict_and_prewarm(node: Arc<Node>, gone: Vec<SeedId>, access: SeedAccess, fork_pattern: Option<ForkPattern>) {
    if !gone.is_empty() {
        let task_node = node.clone();
        run_in_thread(move || gone.iter().for_each(|seed| task_node.engine.evict_seed(seed))).await;
    }
    if let Some(fork_pattern) = fork_pattern {
        prewarm_local(node, access, fork_pattern).await;
    }
}

/// Prewarms this node for children of a seed. If a child was already requested, makes nothing more, because it would be
/// too late.
async fn prewarm_local(node: Arc<Node>, access: SeedAccess, fork_pattern: ForkPattern) {
    let ForkPattern { options, has_payload, is_fan_out } = fork_pattern;
    create_speculative_zygote(&node, access.clone(), options.clone()).await;
    if !is_fan_out && !node.fork_history.has_local_fork(&access.key.seed) {
        run_in_thread(move || node.engine.prestart_children(&access, &options, has_payload, SPECULATIVE_PRESTARTS))
            .await;
    }
}

async fn create_speculative_zygote(node: &Arc<Node>, access: SeedAccess, options: StartOptions) {
    let seed = &access.key.seed;
    let object = format!("the zygote of seed {seed} on node {}", node.name);
    if !node.fork_history.has_local_fork(seed) && node.child_budget.reserve(&object, None, || 0).is_ok() {
        zygote::wait_zygote_filled(node.clone(), access, options, ZygoteTrigger::Speculative).await;
    }
}
