//! Finds the dependents of a seed: children on any node that lack pages of the seed, and seeds that inherit from it. No
//! counts are kept: all nodes are queried each time, so nothing needs correction when a node disappears.

use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_wire::SeedId;
use tonic::Code;

use super::route::query_other_nodes;
use crate::clock;
use crate::node::Node;
use crate::seeds::EXPIRY_INTERVAL;

/// Maximum number of dependents that are listed by name. The reported count includes all.
const DEPENDENTS_NAMED_MAX: usize = 8;

/// The dependents of all seeds in the cluster, at one time.
#[derive(Debug, Default)]
pub(super) struct SeedDependents {
    /// Each dependent with the seeds that it needs.
    needs: Vec<(String, Vec<String>)>,
    /// Failures of the nodes that did not reply. Their children may need any seed.
    pub(super) unanswered: Vec<Failure>,
}

impl SeedDependents {
    /// Queries all nodes.
    pub(super) async fn collect(node: &Node) -> Self {
        let children = query_other_nodes(node, |mut client, mut question| async move {
            question.get_mut().living_only = true;
            client.list_children(question).await
        });
        let seeds = query_other_nodes(node, |mut client, question| async move { client.list_seeds(question).await });
        let ((children, unanswered), (seeds, _)): (
            (Vec<v1::ListChildrenResponse>, _),
            (Vec<v1::ListSeedsResponse>, _),
        ) = tokio::join!(children, seeds);
        // Read the pending starts before the children: a child that is listed in between is then in both lists, not in
        // neither.
        let own_starting = node.pending_starts.seeds();
        let own: Vec<v1::Child> = node.children.all_alive().iter().map(|child| child.as_ref().into()).collect();
        let (listed, starting): (Vec<_>, Vec<_>) =
            children.into_iter().map(|answer| (answer.children, answer.starting)).unzip();
        let children = listed.into_iter().flatten().chain(own);
        let starting = starting.into_iter().flatten().chain(own_starting);
        let seeds = seeds.into_iter().flat_map(|answer| answer.seeds).chain(node.seeds.all());
        let of_child = |child: v1::Child| {
            let needs_memory = child.exit.is_none() && !child.is_settled && child.memory_lost.is_empty();
            needs_memory.then(|| (child.id, [vec![child.seed], child.inherits].concat()))
        };
        let of_seed = |seed: v1::Seed| (!seed.inherits.is_empty()).then_some((seed.id, seed.inherits));
        let of_start = |seed: String| ("a child that is being started".to_owned(), vec![seed]);
        let silent = node.unreachable_nodes().into_iter().map(Failure::from);
        Self {
            needs: children
                .filter_map(of_child)
                .chain(seeds.filter_map(of_seed))
                .chain(starting.map(of_start))
                .collect(),
            unanswered: silent.chain(unanswered).collect(),
        }
    }

    /// Returns the dependents of a seed.
    fn dependents_of(&self, seed: &str) -> Vec<&str> {
        let needing = self.needs.iter().filter(|(_, seeds)| seeds.iter().any(|needed| needed == seed));
        needing.map(|(who, _)| who.as_str()).collect()
    }

    /// Adds a seed's dependents to its view.
    pub(super) fn add_to_view(&self, seed: &mut v1::Seed) {
        let needing = self.dependents_of(&seed.id);
        seed.needed_by_count = u32::try_from(needing.len()).unwrap_or(u32::MAX);
        seed.needed_by = needing.into_iter().take(DEPENDENTS_NAMED_MAX).map(str::to_owned).collect();
    }
}

/// The next step if a node does not answer.
const START_NODE_STEP: &str =
    "start its daemon again (`farfork nodes` shows its state; on one machine, use `farfork up --restart`)";

/// Checks that no dependent needs a seed before it is dropped.
///
/// # Errors
/// The seed is needed, or may be needed because a node did not reply.
pub(super) async fn check_no_dependents(node: &Node, id: &SeedId) -> Result<(), Failure> {
    let (text, seed_dependents) = (id.to_string(), SeedDependents::collect(node).await);
    let refuse = |cause: String| Failure::new(Code::FailedPrecondition, format!("seed {id}"), cause);
    let force = format!("`farfork drop --force {id}` drops it anyway; missing pages then raise SIGBUS");
    let needing = seed_dependents.dependents_of(&text);
    if !needing.is_empty() {
        let named = &needing[..needing.len().min(DEPENDENTS_NAMED_MAX)];
        let more = match needing.len() - named.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let step = format!("{}; {force}", release_step(named));
        return Err(refuse(format!("it is needed by {}{more}", named.join(", "))).with_next_step(step));
    }
    match seed_dependents.unanswered.first() {
        Some(failure) => {
            let cause = format!("children on another node may need it ({}: {})", failure.object(), failure.cause());
            Err(refuse(cause).with_next_step(format!("{START_NODE_STEP}; {force}")))
        }
        None => Ok(()),
    }
}

/// Returns how a user can end the need of these dependents. A child can be settled, a seed can only be dropped.
fn release_step(dependents: &[&str]) -> String {
    let seeds: Vec<&str> = dependents.iter().copied().filter(|id| id.parse::<SeedId>().is_ok()).collect();
    let has_children = seeds.len() < dependents.len();
    let drop_seeds = format!("drop the seeds first with `farfork drop {}`", seeds.join(" "));
    let release_children = "wait until the children end, or settle them with `farfork settle`";
    match (seeds.is_empty(), has_children) {
        (true, _) => release_children.to_owned(),
        (false, false) => drop_seeds,
        (false, true) => format!("{release_children}, and {drop_seeds}"),
    }
}

/// Drops seeds whose leases have expired, and renews the leases of seeds that are needed. Runs as long as the daemon.
///
/// Nodes reply at different times. A child may be listed after its own node has replied, and its pending start may end
/// before the node that forked it replies: then no reply mentions it. So all nodes are queried again before a seed is
/// dropped. A seed that was forked since the first check stays.
pub(crate) async fn run_lease_expiry(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let checked_unix_ms = clock::unix_ms_now();
        let due = node.seeds.leases_due(checked_unix_ms);
        if due.is_empty() {
            continue;
        }
        let mut expired = without_dependents(&node, due).await;
        expired.retain(|id| node.seeds.is_lease_expired(id, checked_unix_ms));
        if expired.is_empty() {
            continue;
        }
        for id in without_dependents(&node, expired).await {
            let task_node = node.clone();
            let _ = tokio::task::spawn_blocking(move || task_node.seeds.drop_expired(&id, checked_unix_ms)).await;
        }
    }
}

/// Returns the seeds without dependents; none if a node has not replied. Renews the leases of the seeds with
/// dependents.
async fn without_dependents(node: &Node, seeds: Vec<SeedId>) -> Vec<SeedId> {
    let seed_dependents = SeedDependents::collect(node).await;
    let (needed, others): (Vec<_>, Vec<_>) =
        seeds.into_iter().partition(|id| !seed_dependents.dependents_of(&id.to_string()).is_empty());
    needed.iter().for_each(|id| node.seeds.renew_lease(id));
    if seed_dependents.unanswered.is_empty() { others } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::release_step;

    #[test]
    fn seeds_are_dropped_and_children_settled() {
        let (child, seed) = ("n2.c00f3a96c5d217e84", "n2.s00f3a96c5d217e84");
        assert!(!release_step(&[child]).contains("drop"));
        assert_eq!(release_step(&[seed]), format!("drop the seeds first with `farfork drop {seed}`"));
        let both = release_step(&[seed, child]);
        assert!(both.contains("settle") && both.contains(&format!("farfork drop {seed}`")), "{both}");
    }
}
