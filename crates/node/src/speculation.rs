//! What is foreseen of a seed that nobody has forked yet: that it will be forked as its process's seed before it was, on the same nodes. This
//! is the memory for that alone; `service::foretell` acts on it.
//!
//! ```text
//!  a child is asked for ─▶ asked for ── the process has a next seed ─▶ foretold ─┬─ a child is asked for ─▶ asked for
//!                                                                               └─ a next seed, or room ─▶ nothing is foreseen
//! ```
//!
//! A *line* is the seeds of one process, one after the other. Which process that is, its owner knows alone; all others hear which seed
//! follows which.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_wire::{NodeName, SeedId};

use crate::engine::StartOptions;

/// Most lines that are known, the oldest go first: as many as an owner knows processes by what their children touch.
const SEQUENCES_MAX: usize = 64;
/// Most other nodes of a line that are told of its next seed: each is asked by itself.
const NODES_MAX: usize = 64;
/// Most seeds of a line that nodes may still keep something of.
const PREVIOUS_SEEDS_MAX: usize = 8;

/// How children of a seed were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForkPattern {
    pub(crate) options: StartOptions,
    pub(crate) has_payload: bool,
    /// More than start at once.
    pub(crate) is_fan_out: bool,
}

/// What is foreseen of a line's new seed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeculationPlan {
    /// How children of it will be asked for here.
    pub(crate) local_pattern: Option<ForkPattern>,
    /// Other nodes, which have their own opinions.
    pub(crate) remote_nodes: Vec<NodeName>,
    /// Seeds of the line before it, the latest last.
    pub(crate) previous_seeds: Vec<SeedId>,
}

/// The lines that a node knows.
#[derive(Debug, Default)]
pub(crate) struct ForkHistory(Mutex<VecDeque<SeedSequence>>);

/// The seeds of a process.
#[derive(Debug)]
struct SeedSequence {
    /// The latest.
    seed: SeedId,
    /// How children of it, or of the one before, were last asked for here; `None` where nothing is foreseen.
    pattern: Option<ForkPattern>,
    /// How many children of the latest were asked for here, and how many of the last one of which any were.
    forks: usize,
    previous_forks: Option<usize>,
    /// Other nodes that had children of it, or of those before.
    nodes: BTreeSet<NodeName>,
    /// Of these, those that had children of the latest.
    forked_on: BTreeSet<NodeName>,
    /// The latest last.
    previous_seeds: VecDeque<SeedId>,
}

impl SeedSequence {
    fn new(seed: &SeedId) -> Self {
        let (nodes, asked_nodes, former) = Default::default();
        Self {
            seed: seed.clone(),
            pattern: None,
            forks: 0,
            previous_forks: None,
            nodes,
            forked_on: asked_nodes,
            previous_seeds: former,
        }
    }
}

impl ForkHistory {
    /// So many children of a seed were asked for here, in this manner.
    pub(crate) fn record_local_fork(&self, seed: &SeedId, fork_pattern: ForkPattern, count: usize) {
        let mut lines = self.lines();
        let line = lines.get_or_insert(seed);
        line.forks += count;
        if line.pattern.as_ref() != Some(&fork_pattern) {
            line.pattern = Some(fork_pattern);
        }
    }

    /// Children of this node's seed were asked for on other nodes.
    pub(crate) fn record_remote_fork(&self, seed: &SeedId, nodes: impl IntoIterator<Item = NodeName>) {
        let mut nodes = nodes.into_iter().peekable();
        if nodes.peek().is_none() {
            return;
        }
        let mut lines = self.lines();
        let line = lines.get_or_insert(seed);
        for node in nodes {
            if line.nodes.len() < NODES_MAX || line.nodes.contains(&node) {
                line.nodes.insert(node.clone());
                line.forked_on.insert(node);
            }
        }
    }

    /// A process has a new seed; what is foreseen of that, and, where nobody asked for the one before though it was foretold, nothing.
    pub(crate) fn advance_sequence(&self, before: &SeedId, next: &SeedId) -> SpeculationPlan {
        let mut lines = self.lines();
        let Some(mut line) = lines.take(before) else { return SpeculationPlan::default() };
        if lines.0.iter().any(|other| other.seed == *next) {
            // Who forks it was faster than who tells of it.
            return SpeculationPlan::default();
        }
        match std::mem::take(&mut line.forks) {
            0 => line.pattern = None,
            asked => line.previous_forks = Some(asked),
        }
        if line.pattern.is_none() && line.nodes.is_empty() {
            // The next child begins a line anew.
            return SpeculationPlan::default();
        }
        if line.previous_seeds.len() == PREVIOUS_SEEDS_MAX {
            line.previous_seeds.pop_front();
        }
        line.previous_seeds.push_back(std::mem::replace(&mut line.seed, next.clone()));
        line.forked_on.clear();
        let foreseen = SpeculationPlan {
            local_pattern: line.pattern.clone(),
            remote_nodes: line.nodes.iter().cloned().collect(),
            previous_seeds: line.previous_seeds.iter().cloned().collect(),
        };
        lines.put(line);
        foreseen
    }

    /// Whether a child of a seed was asked for here.
    pub(crate) fn has_local_fork(&self, seed: &SeedId) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed && line.forks > 0)
    }

    /// Whether a child of a seed was asked for anywhere, or is foreseen.
    pub(crate) fn has_sequence(&self, seed: &SeedId) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed)
    }

    /// How many more children of a seed will be asked for here, as of the seed before it; `None` where nobody can tell, and where there were
    /// more already.
    pub(crate) fn remaining_forks(&self, seed: &SeedId) -> Option<usize> {
        let lines = self.lines();
        let line = lines.0.iter().find(|line| line.seed == *seed)?;
        line.previous_forks?.checked_sub(line.forks)
    }

    /// Whether children of a seed were asked for, and none here, where none is foreseen either.
    pub(crate) fn has_only_remote_forks(&self, seed: &SeedId) -> bool {
        let is = |line: &SeedSequence| line.forks == 0 && line.pattern.is_none() && !line.forked_on.is_empty();
        self.lines().0.iter().any(|line| line.seed == *seed && is(line))
    }

    /// Whether a child of a seed was asked for on another node.
    pub(crate) fn has_fork_on(&self, seed: &SeedId, node: &NodeName) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed && line.forked_on.contains(node))
    }

    /// A node does not foresee children of a line, or cannot be told.
    pub(crate) fn remove_node(&self, seed: &SeedId, node: &NodeName) {
        let mut lines = self.lines();
        if let Some(line) = lines.0.iter_mut().find(|line| line.seed == *seed && !line.forked_on.contains(node)) {
            line.nodes.remove(node);
        }
    }

    /// Nodes keep nothing of a line's former seeds any more.
    pub(crate) fn remove_previous_seeds(&self, seed: &SeedId, gone: &[SeedId]) {
        let mut lines = self.lines();
        if let Some(line) = lines.0.iter_mut().find(|line| line.seed == *seed) {
            line.previous_seeds.retain(|former| !gone.contains(former));
        }
    }

    /// Every change is complete under its lock.
    fn lines(&self) -> SequenceGuard<'_> {
        SequenceGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The lines, the latest used last.
struct SequenceGuard<'a>(MutexGuard<'a, VecDeque<SeedSequence>>);

impl SequenceGuard<'_> {
    fn take(&mut self, seed: &SeedId) -> Option<SeedSequence> {
        let place = self.0.iter().position(|line| line.seed == *seed)?;
        self.0.remove(place)
    }

    fn put(&mut self, line: SeedSequence) {
        if self.0.len() == SEQUENCES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// The line whose latest seed that is.
    fn get_or_insert(&mut self, seed: &SeedId) -> &mut SeedSequence {
        let line = self.take(seed).unwrap_or_else(|| SeedSequence::new(seed));
        self.put(line);
        self.0.back_mut().expect("it was just put there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1::ChildOptions;

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
    fn a_seed_is_expected_to_be_forked_as_the_one_before_it() {
        let fork_history = ForkHistory::default();
        assert_eq!(
            fork_history.advance_sequence(&seed(1), &seed(2)),
            SpeculationPlan::default(),
            "nobody asked for a child"
        );
        fork_history.record_local_fork(&seed(2), manner(false), 1);
        fork_history.record_local_fork(&seed(2), manner(true), 2);
        assert!(fork_history.has_local_fork(&seed(2)) && !fork_history.has_local_fork(&seed(3)));
        assert!(fork_history.has_sequence(&seed(2)) && !fork_history.has_sequence(&seed(3)));
        assert_eq!(fork_history.remaining_forks(&seed(2)), None, "nobody can tell");
        assert_eq!(fork_history.advance_sequence(&seed(2), &seed(3)).local_pattern, Some(manner(true)), "as last");
        assert!(!fork_history.has_local_fork(&seed(3)));
        for expected in [Some(3), Some(2), Some(1), Some(0), None] {
            assert_eq!(fork_history.remaining_forks(&seed(3)), expected);
            fork_history.record_local_fork(&seed(3), manner(true), 1);
        }
        let foreseen = fork_history.advance_sequence(&seed(3), &seed(4));
        assert_eq!((foreseen.local_pattern, foreseen.previous_seeds), (Some(manner(true)), vec![seed(2), seed(3)]));
    }

    #[test]
    fn once_in_vain_and_no_more_until_a_child_is_asked_for() {
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
            "who forks it was faster"
        );
        assert!(fork_history.has_local_fork(&seed(6)));
    }

    #[test]
    fn nodes_hear_of_the_next_seed_as_long_as_they_expect_its_children() {
        let fork_history = ForkHistory::default();
        let asked = |number: usize, names: &[&str]| {
            fork_history.record_remote_fork(&seed(number), names.iter().map(|name| node(name)));
        };
        asked(1, &[]);
        assert_eq!(fork_history.advance_sequence(&seed(1), &seed(2)), SpeculationPlan::default());
        asked(2, &["n2", "n3"]);
        let foreseen = fork_history.advance_sequence(&seed(2), &seed(3));
        assert_eq!((foreseen.local_pattern, foreseen.remote_nodes), (None, vec![node("n2"), node("n3")]));
        asked(3, &["n2"]);
        assert!(fork_history.has_fork_on(&seed(3), &node("n2")) && !fork_history.has_fork_on(&seed(3), &node("n3")));
        assert!(fork_history.has_only_remote_forks(&seed(3)) && !fork_history.has_only_remote_forks(&seed(2)));
        for name in ["n2", "n3"] {
            fork_history.remove_node(&seed(3), &node(name));
        }
        fork_history.remove_previous_seeds(&seed(3), &[seed(2)]);
        let foreseen = fork_history.advance_sequence(&seed(3), &seed(4));
        assert_eq!(
            (foreseen.remote_nodes, foreseen.previous_seeds),
            (vec![node("n2")], vec![seed(3)]),
            "it had a child since"
        );
        fork_history.remove_node(&seed(4), &node("n2"));
        assert_eq!(fork_history.advance_sequence(&seed(4), &seed(5)), SpeculationPlan::default());
    }

    #[test]
    fn no_more_is_kept_than_is_good() {
        let fork_history = ForkHistory::default();
        for number in 0..1000 {
            fork_history.record_local_fork(&seed(number), manner(true), 1);
            fork_history.record_remote_fork(&seed(999), [node(&format!("n{number}"))]);
        }
        assert_eq!(fork_history.lines().0.len(), SEQUENCES_MAX);
        assert_eq!(fork_history.advance_sequence(&seed(1), &seed(2000)), SpeculationPlan::default(), "long ago");
        for number in 2000..2100 {
            let before = if number == 2000 { 999 } else { number - 1 };
            let foreseen = fork_history.advance_sequence(&seed(before), &seed(number));
            assert!(foreseen.remote_nodes.len() == NODES_MAX && foreseen.previous_seeds.len() <= PREVIOUS_SEEDS_MAX);
        }
    }
}
