//! History of forks. It predicts that the next seed of a process will be forked like the previous one: with the same
//! options and on the same nodes. `service::speculative_prewarm` acts on the predictions.
//!
//! Only a seed's owner knows the process of a seed. Other nodes know only sequences of seeds.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_wire::{NodeName, SeedId};

use crate::engine::StartOptions;

/// Maximum number of sequences; the least recently used are dropped. The owner of the seeds keeps the working sets of as
/// many processes (`PROCESSES_TRACKED_MAX`).
const SEQUENCES_MAX: usize = 64;
/// Maximum number of other nodes to which a new seed of a sequence is announced: each costs one request.
const NODES_MAX: usize = 64;
/// Maximum number of earlier seeds that a sequence keeps. Nodes may still have zygotes or prestarted children of them.
const PREVIOUS_SEEDS_MAX: usize = 8;

/// The options with which children of a seed were requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForkPattern {
    pub(crate) options: StartOptions,
    pub(crate) has_payload: bool,
    /// Whether one fork requested more than `CONCURRENT_STARTS_MAX` children on this node.
    pub(crate) is_fan_out: bool,
}

/// The prediction for a sequence's new seed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeculationPlan {
    /// The pattern with which children are expected to be requested on this node; `None` predicts no fork here.
    pub(crate) local_pattern: Option<ForkPattern>,
    /// Other nodes to which the seed is announced. They make their own predictions.
    pub(crate) remote_nodes: Vec<NodeName>,
    /// Earlier seeds of the sequence, the latest last.
    pub(crate) previous_seeds: Vec<SeedId>,
}

/// The sequences of seeds that a node knows.
#[derive(Debug, Default)]
pub(crate) struct ForkHistory(Mutex<VecDeque<SeedSequence>>);

/// The seeds of one process.
///
/// ```text
///  a child is requested ─▶ requested ── a next seed ─▶ predicted ─┬─ a child is requested ─▶ requested
///                                                                 └─ a next seed, or room is needed ─▶ nothing predicted
/// ```
#[derive(Debug)]
struct SeedSequence {
    /// The latest seed.
    seed: SeedId,
    /// The pattern of the last fork request on this node, if that was for the latest seed or for the seed before it. `None`
    /// predicts no fork.
    pattern: Option<ForkPattern>,
    /// Number of children of the latest seed that were requested on this node.
    forks: usize,
    /// Number of children that were requested on this node for an earlier seed. If there were requests for several earlier
    /// seeds, the last of these seeds counts. `None` if there were none.
    previous_forks: Option<usize>,
    /// Other nodes that had children of the latest seed or earlier ones. The next seed is announced to them. A node that
    /// expects no children is removed.
    nodes: BTreeSet<NodeName>,
    /// The nodes among `nodes` that had children of the latest seed.
    forked_on: BTreeSet<NodeName>,
    /// Earlier seeds of the sequence, the latest last.
    previous_seeds: VecDeque<SeedId>,
}

impl SeedSequence {
    fn new(seed: &SeedId) -> Self {
        let (nodes, forked_on, previous_seeds) = Default::default();
        Self { seed: seed.clone(), pattern: None, forks: 0, previous_forks: None, nodes, forked_on, previous_seeds }
    }
}

impl ForkHistory {
    /// Records that `count` children of a seed were requested on this node, with this pattern.
    pub(crate) fn record_local_fork(&self, seed: &SeedId, fork_pattern: ForkPattern, count: usize) {
        let mut sequences = self.sequences();
        let sequence = sequences.get_or_insert(seed);
        sequence.forks += count;
        if sequence.pattern.as_ref() != Some(&fork_pattern) {
            sequence.pattern = Some(fork_pattern);
        }
    }

    /// Records that children of this node's seed were requested on other nodes.
    pub(crate) fn record_remote_fork(&self, seed: &SeedId, nodes: impl IntoIterator<Item = NodeName>) {
        let mut nodes = nodes.into_iter().peekable();
        if nodes.peek().is_none() {
            return;
        }
        let mut sequences = self.sequences();
        let sequence = sequences.get_or_insert(seed);
        for node in nodes {
            if sequence.nodes.len() < NODES_MAX || sequence.nodes.contains(&node) {
                sequence.nodes.insert(node.clone());
                sequence.forked_on.insert(node);
            }
        }
    }

    /// Continues a sequence with a new seed of its process, and returns the prediction. Predicts no fork on this node
    /// if the previous seed was not forked here.
    pub(crate) fn advance_sequence(&self, before: &SeedId, next: &SeedId) -> SpeculationPlan {
        let mut sequences = self.sequences();
        let Some(mut sequence) = sequences.take(before) else { return SpeculationPlan::default() };
        if sequences.0.iter().any(|other| other.seed == *next) {
            // The fork request for the new seed arrived before this announcement.
            return SpeculationPlan::default();
        }
        match std::mem::take(&mut sequence.forks) {
            0 => sequence.pattern = None,
            forks => sequence.previous_forks = Some(forks),
        }
        if sequence.pattern.is_none() && sequence.nodes.is_empty() {
            // The sequence ends; the next fork begins a new one.
            return SpeculationPlan::default();
        }
        if sequence.previous_seeds.len() == PREVIOUS_SEEDS_MAX {
            sequence.previous_seeds.pop_front();
        }
        sequence.previous_seeds.push_back(std::mem::replace(&mut sequence.seed, next.clone()));
        sequence.forked_on.clear();
        let plan = SpeculationPlan {
            local_pattern: sequence.pattern.clone(),
            remote_nodes: sequence.nodes.iter().cloned().collect(),
            previous_seeds: sequence.previous_seeds.iter().cloned().collect(),
        };
        sequences.put(sequence);
        plan
    }

    /// Whether a child of a seed was requested on this node.
    pub(crate) fn has_local_fork(&self, seed: &SeedId) -> bool {
        self.sequences().0.iter().any(|sequence| sequence.seed == *seed && sequence.forks > 0)
    }

    /// Whether a child of a seed was requested on any node, or is predicted.
    pub(crate) fn has_sequence(&self, seed: &SeedId) -> bool {
        self.sequences().0.iter().any(|sequence| sequence.seed == *seed)
    }

    /// Returns how many more children of a seed are expected on this node. In total, `previous_forks` are expected.
    /// `None` if this number is unknown or already exceeded.
    pub(crate) fn remaining_forks(&self, seed: &SeedId) -> Option<usize> {
        let sequences = self.sequences();
        let sequence = sequences.0.iter().find(|sequence| sequence.seed == *seed)?;
        sequence.previous_forks?.checked_sub(sequence.forks)
    }

    /// Whether children of a seed were requested on other nodes only, and none is predicted on this node.
    pub(crate) fn has_only_remote_forks(&self, seed: &SeedId) -> bool {
        let is = |sequence: &SeedSequence| {
            sequence.forks == 0 && sequence.pattern.is_none() && !sequence.forked_on.is_empty()
        };
        self.sequences().0.iter().any(|sequence| sequence.seed == *seed && is(sequence))
    }

    /// Whether a child of a seed was requested on `node`, which is another node.
    pub(crate) fn has_fork_on(&self, seed: &SeedId, node: &NodeName) -> bool {
        self.sequences().0.iter().any(|sequence| sequence.seed == *seed && sequence.forked_on.contains(node))
    }

    /// Removes a node that does not expect children of a seed, or could not be reached. A node on which children of the
    /// seed were requested stays.
    pub(crate) fn remove_node(&self, seed: &SeedId, node: &NodeName) {
        let mut sequences = self.sequences();
        if let Some(sequence) =
            sequences.0.iter_mut().find(|sequence| sequence.seed == *seed && !sequence.forked_on.contains(node))
        {
            sequence.nodes.remove(node);
        }
    }

    /// Removes earlier seeds that were dropped. The caller sends their ids to other nodes with the announcement of `seed`.
    pub(crate) fn remove_previous_seeds(&self, seed: &SeedId, gone: &[SeedId]) {
        let mut sequences = self.sequences();
        if let Some(sequence) = sequences.0.iter_mut().find(|sequence| sequence.seed == *seed) {
            sequence.previous_seeds.retain(|previous| !gone.contains(previous));
        }
    }

    /// Ignores poisoning: every change is complete under its lock.
    fn sequences(&self) -> SequenceGuard<'_> {
        SequenceGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The locked sequences, the most recently used last.
struct SequenceGuard<'a>(MutexGuard<'a, VecDeque<SeedSequence>>);

impl SequenceGuard<'_> {
    fn take(&mut self, seed: &SeedId) -> Option<SeedSequence> {
        let index = self.0.iter().position(|sequence| sequence.seed == *seed)?;
        self.0.remove(index)
    }

    fn put(&mut self, sequence: SeedSequence) {
        if self.0.len() == SEQUENCES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sequence);
    }

    /// Returns the sequence whose latest seed is `seed`, or a new sequence.
    fn get_or_insert(&mut self, seed: &SeedId) -> &mut SeedSequence {
        let sequence = self.take(seed).unwrap_or_else(|| SeedSequence::new(seed));
        self.put(sequence);
        self.0.back_mut().expect("it was added above")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_api::v1::ChildOptions;

    fn manner(has_payload: bool) -> ForkPattern {
        let options = StartOptions::try_from(ChildOptions::default()).unwrap();
        ForkPattern { options, has_payload, is_fan_out: false }
    }

    fn seed(number: usize) -> SeedId {
        format!("n1.s{number:016x}").parse().unwrap()
    }

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn a_seed_is_prewarmed_as_its_predecessor_was_forked() {
        let fork_history = ForkHistory::default();
        assert_eq!(
            fork_history.advance_sequence(&seed(1), &seed(2)),
            SpeculationPlan::default(),
            "no child was requested"
        );
        fork_history.record_local_fork(&seed(2), manner(false), 1);
        fork_history.record_local_fork(&seed(2), manner(true), 2);
        assert!(fork_history.has_local_fork(&seed(2)) && !fork_history.has_local_fork(&seed(3)));
        assert!(fork_history.has_sequence(&seed(2)) && !fork_history.has_sequence(&seed(3)));
        assert_eq!(fork_history.remaining_forks(&seed(2)), None, "there is no previous seed");
        assert_eq!(fork_history.advance_sequence(&seed(2), &seed(3)).local_pattern, Some(manner(true)), "as last");
        assert!(!fork_history.has_local_fork(&seed(3)));
        for expected in [Some(3), Some(2), Some(1), Some(0), None] {
            assert_eq!(fork_history.remaining_forks(&seed(3)), expected);
            fork_history.record_local_fork(&seed(3), manner(true), 1);
        }
        let plan = fork_history.advance_sequence(&seed(3), &seed(4));
        assert_eq!((plan.local_pattern, plan.previous_seeds), (Some(manner(true)), vec![seed(2), seed(3)]));
    }

    #[test]
    fn an_unused_prewarm_is_not_repeated_before_a_fork() {
        let fork_history = ForkHistory::default();
        fork_history.record_local_fork(&seed(1), manner(true), 1);
        assert!(fork_history.advance_sequence(&seed(1), &seed(2)).local_pattern.is_some());
        assert_eq!(fork_history.advance_sequence(&seed(2), &seed(3)), SpeculationPlan::default());
        assert_eq!(fork_history.advance_sequence(&seed(3), &seed(4)), SpeculationPlan::default());
        fork_history.record_local_fork(&seed(4), manner(true), 1);
        assert!(fork_history.advance_sequence(&seed(4), &seed(5)).local_pattern.is_some());
        fork_history.record_local_fork(&seed(6), manner(true), 1);
        assert_eq!(
            fork_history.advance_sequence(&seed(5), &seed(6)),
            SpeculationPlan::default(),
            "the seed was forked before the announcement"
        );
        assert!(fork_history.has_local_fork(&seed(6)));
    }

    #[test]
    fn nodes_are_notified_of_the_next_seed_while_they_expect_children() {
        let fork_history = ForkHistory::default();
        let record = |number: usize, names: &[&str]| {
            fork_history.record_remote_fork(&seed(number), names.iter().map(|name| node(name)));
        };
        record(1, &[]);
        assert_eq!(fork_history.advance_sequence(&seed(1), &seed(2)), SpeculationPlan::default());
        record(2, &["n2", "n3"]);
        let plan = fork_history.advance_sequence(&seed(2), &seed(3));
        assert_eq!((plan.local_pattern, plan.remote_nodes), (None, vec![node("n2"), node("n3")]));
        record(3, &["n2"]);
        assert!(fork_history.has_fork_on(&seed(3), &node("n2")) && !fork_history.has_fork_on(&seed(3), &node("n3")));
        assert!(fork_history.has_only_remote_forks(&seed(3)) && !fork_history.has_only_remote_forks(&seed(2)));
        for name in ["n2", "n3"] {
            fork_history.remove_node(&seed(3), &node(name));
        }
        fork_history.remove_previous_seeds(&seed(3), &[seed(2)]);
        let plan = fork_history.advance_sequence(&seed(3), &seed(4));
        assert_eq!(
            (plan.remote_nodes, plan.previous_seeds),
            (vec![node("n2")], vec![seed(3)]),
            "n2 had a child of the latest seed, n3 had not"
        );
        fork_history.remove_node(&seed(4), &node("n2"));
        assert_eq!(fork_history.advance_sequence(&seed(4), &seed(5)), SpeculationPlan::default());
    }

    #[test]
    fn the_fork_history_is_bounded() {
        let fork_history = ForkHistory::default();
        for number in 0..1000 {
            fork_history.record_local_fork(&seed(number), manner(true), 1);
            fork_history.record_remote_fork(&seed(999), [node(&format!("n{number}"))]);
        }
        assert_eq!(fork_history.sequences().0.len(), SEQUENCES_MAX);
        assert_eq!(fork_history.advance_sequence(&seed(1), &seed(2000)), SpeculationPlan::default(), "long ago");
        for number in 2000..2100 {
            let before = if number == 2000 { 999 } else { number - 1 };
            let plan = fork_history.advance_sequence(&seed(before), &seed(number));
            assert!(plan.remote_nodes.len() == NODES_MAX && plan.previous_seeds.len() <= PREVIOUS_SEEDS_MAX);
        }
    }
}
