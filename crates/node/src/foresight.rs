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
const LINES_MAX: usize = 64;
/// Most other nodes of a line that are told of its next seed: each is asked by itself.
const NODES_MAX: usize = 64;
/// Most seeds of a line that nodes may still keep something of.
const FORMER_MAX: usize = 8;

/// How children of a seed were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) options: StartOptions,
    pub(crate) has_payload: bool,
    /// More than start at once.
    pub(crate) is_fan_out: bool,
}

/// What is foreseen of a line's new seed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Foreseen {
    /// How children of it will be asked for here.
    pub(crate) here: Option<Manner>,
    /// Other nodes, which have their own opinions.
    pub(crate) elsewhere: Vec<NodeName>,
    /// Seeds of the line before it, the latest last.
    pub(crate) former: Vec<SeedId>,
}

/// The lines that a node knows.
#[derive(Debug, Default)]
pub(crate) struct Foresight(Mutex<VecDeque<Line>>);

/// The seeds of a process.
#[derive(Debug)]
struct Line {
    /// The latest.
    seed: SeedId,
    /// How children of it, or of the one before, were last asked for here; `None` where nothing is foreseen.
    manner: Option<Manner>,
    /// How many children of the latest were asked for here, and how many of the last one of which any were.
    asked: usize,
    asked_before: Option<usize>,
    /// Other nodes that had children of it, or of those before.
    nodes: BTreeSet<NodeName>,
    /// Of these, those that had children of the latest.
    asked_nodes: BTreeSet<NodeName>,
    /// The latest last.
    former: VecDeque<SeedId>,
}

impl Line {
    fn new(seed: &SeedId) -> Self {
        let (nodes, asked_nodes, former) = Default::default();
        Self { seed: seed.clone(), manner: None, asked: 0, asked_before: None, nodes, asked_nodes, former }
    }
}

impl Foresight {
    /// So many children of a seed were asked for here, in this manner.
    pub(crate) fn asked(&self, seed: &SeedId, manner: Manner, count: usize) {
        let mut lines = self.lines();
        let line = lines.of(seed);
        line.asked += count;
        if line.manner.as_ref() != Some(&manner) {
            line.manner = Some(manner);
        }
    }

    /// Children of this node's seed were asked for on other nodes.
    pub(crate) fn asked_elsewhere(&self, seed: &SeedId, nodes: impl IntoIterator<Item = NodeName>) {
        let mut nodes = nodes.into_iter().peekable();
        if nodes.peek().is_none() {
            return;
        }
        let mut lines = self.lines();
        let line = lines.of(seed);
        for node in nodes {
            if line.nodes.len() < NODES_MAX || line.nodes.contains(&node) {
                line.nodes.insert(node.clone());
                line.asked_nodes.insert(node);
            }
        }
    }

    /// A process has a new seed; what is foreseen of that, and, where nobody asked for the one before though it was foretold, nothing.
    pub(crate) fn follows(&self, before: &SeedId, next: &SeedId) -> Foreseen {
        let mut lines = self.lines();
        let Some(mut line) = lines.take(before) else { return Foreseen::default() };
        if lines.0.iter().any(|other| other.seed == *next) {
            // Who forks it was faster than who tells of it.
            return Foreseen::default();
        }
        match std::mem::take(&mut line.asked) {
            0 => line.manner = None,
            asked => line.asked_before = Some(asked),
        }
        if line.manner.is_none() && line.nodes.is_empty() {
            // The next child begins a line anew.
            return Foreseen::default();
        }
        if line.former.len() == FORMER_MAX {
            line.former.pop_front();
        }
        line.former.push_back(std::mem::replace(&mut line.seed, next.clone()));
        line.asked_nodes.clear();
        let foreseen = Foreseen {
            here: line.manner.clone(),
            elsewhere: line.nodes.iter().cloned().collect(),
            former: line.former.iter().cloned().collect(),
        };
        lines.put(line);
        foreseen
    }

    /// Whether a child of a seed was asked for here.
    pub(crate) fn is_asked(&self, seed: &SeedId) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed && line.asked > 0)
    }

    /// Whether a child of a seed was asked for anywhere, or is foreseen.
    pub(crate) fn is_known(&self, seed: &SeedId) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed)
    }

    /// How many more children of a seed will be asked for here, as of the seed before it; `None` where nobody can tell, and where there were
    /// more already.
    pub(crate) fn still_expected(&self, seed: &SeedId) -> Option<usize> {
        let lines = self.lines();
        let line = lines.0.iter().find(|line| line.seed == *seed)?;
        line.asked_before?.checked_sub(line.asked)
    }

    /// Whether children of a seed were asked for, and none here, where none is foreseen either.
    pub(crate) fn is_only_elsewhere(&self, seed: &SeedId) -> bool {
        let is = |line: &Line| line.asked == 0 && line.manner.is_none() && !line.asked_nodes.is_empty();
        self.lines().0.iter().any(|line| line.seed == *seed && is(line))
    }

    /// Whether a child of a seed was asked for on another node.
    pub(crate) fn is_asked_on(&self, seed: &SeedId, node: &NodeName) -> bool {
        self.lines().0.iter().any(|line| line.seed == *seed && line.asked_nodes.contains(node))
    }

    /// A node does not foresee children of a line, or cannot be told.
    pub(crate) fn forget_node(&self, seed: &SeedId, node: &NodeName) {
        let mut lines = self.lines();
        if let Some(line) = lines.0.iter_mut().find(|line| line.seed == *seed && !line.asked_nodes.contains(node)) {
            line.nodes.remove(node);
        }
    }

    /// Nodes keep nothing of a line's former seeds any more.
    pub(crate) fn forget_former(&self, seed: &SeedId, gone: &[SeedId]) {
        let mut lines = self.lines();
        if let Some(line) = lines.0.iter_mut().find(|line| line.seed == *seed) {
            line.former.retain(|former| !gone.contains(former));
        }
    }

    /// Every change is complete under its lock.
    fn lines(&self) -> Lines<'_> {
        Lines(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The lines, the latest used last.
struct Lines<'a>(MutexGuard<'a, VecDeque<Line>>);

impl Lines<'_> {
    fn take(&mut self, seed: &SeedId) -> Option<Line> {
        let place = self.0.iter().position(|line| line.seed == *seed)?;
        self.0.remove(place)
    }

    fn put(&mut self, line: Line) {
        if self.0.len() == LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// The line whose latest seed that is.
    fn of(&mut self, seed: &SeedId) -> &mut Line {
        let line = self.take(seed).unwrap_or_else(|| Line::new(seed));
        self.put(line);
        self.0.back_mut().expect("it was just put there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1::ChildOptions;

    fn manner(has_payload: bool) -> Manner {
        let options = StartOptions::try_from(ChildOptions::default()).unwrap();
        Manner { options, has_payload, is_fan_out: false }
    }

    fn seed(number: usize) -> SeedId {
        format!("n1.s{number:016x}").parse().unwrap()
    }

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn a_seed_is_expected_to_be_forked_as_the_one_before_it() {
        let foresight = Foresight::default();
        assert_eq!(foresight.follows(&seed(1), &seed(2)), Foreseen::default(), "nobody asked for a child");
        foresight.asked(&seed(2), manner(false), 1);
        foresight.asked(&seed(2), manner(true), 2);
        assert!(foresight.is_asked(&seed(2)) && !foresight.is_asked(&seed(3)));
        assert!(foresight.is_known(&seed(2)) && !foresight.is_known(&seed(3)));
        assert_eq!(foresight.still_expected(&seed(2)), None, "nobody can tell");
        assert_eq!(foresight.follows(&seed(2), &seed(3)).here, Some(manner(true)), "as last");
        assert!(!foresight.is_asked(&seed(3)));
        for expected in [Some(3), Some(2), Some(1), Some(0), None] {
            assert_eq!(foresight.still_expected(&seed(3)), expected);
            foresight.asked(&seed(3), manner(true), 1);
        }
        let foreseen = foresight.follows(&seed(3), &seed(4));
        assert_eq!((foreseen.here, foreseen.former), (Some(manner(true)), vec![seed(2), seed(3)]));
    }

    #[test]
    fn once_in_vain_and_no_more_until_a_child_is_asked_for() {
        let foresight = Foresight::default();
        foresight.asked(&seed(1), manner(true), 1);
        assert!(foresight.follows(&seed(1), &seed(2)).here.is_some());
        assert_eq!(foresight.follows(&seed(2), &seed(3)), Foreseen::default());
        assert_eq!(foresight.follows(&seed(3), &seed(4)), Foreseen::default());
        foresight.asked(&seed(4), manner(true), 1);
        assert!(foresight.follows(&seed(4), &seed(5)).here.is_some());
        foresight.asked(&seed(6), manner(true), 1);
        assert_eq!(foresight.follows(&seed(5), &seed(6)), Foreseen::default(), "who forks it was faster");
        assert!(foresight.is_asked(&seed(6)));
    }

    #[test]
    fn nodes_hear_of_the_next_seed_as_long_as_they_expect_its_children() {
        let foresight = Foresight::default();
        let asked = |number: usize, names: &[&str]| {
            foresight.asked_elsewhere(&seed(number), names.iter().map(|name| node(name)));
        };
        asked(1, &[]);
        assert_eq!(foresight.follows(&seed(1), &seed(2)), Foreseen::default());
        asked(2, &["n2", "n3"]);
        let foreseen = foresight.follows(&seed(2), &seed(3));
        assert_eq!((foreseen.here, foreseen.elsewhere), (None, vec![node("n2"), node("n3")]));
        asked(3, &["n2"]);
        assert!(foresight.is_asked_on(&seed(3), &node("n2")) && !foresight.is_asked_on(&seed(3), &node("n3")));
        assert!(foresight.is_only_elsewhere(&seed(3)) && !foresight.is_only_elsewhere(&seed(2)));
        for name in ["n2", "n3"] {
            foresight.forget_node(&seed(3), &node(name));
        }
        foresight.forget_former(&seed(3), &[seed(2)]);
        let foreseen = foresight.follows(&seed(3), &seed(4));
        assert_eq!((foreseen.elsewhere, foreseen.former), (vec![node("n2")], vec![seed(3)]), "it had a child since");
        foresight.forget_node(&seed(4), &node("n2"));
        assert_eq!(foresight.follows(&seed(4), &seed(5)), Foreseen::default());
    }

    #[test]
    fn no_more_is_kept_than_is_good() {
        let foresight = Foresight::default();
        for number in 0..1000 {
            foresight.asked(&seed(number), manner(true), 1);
            foresight.asked_elsewhere(&seed(999), [node(&format!("n{number}"))]);
        }
        assert_eq!(foresight.lines().0.len(), LINES_MAX);
        assert_eq!(foresight.follows(&seed(1), &seed(2000)), Foreseen::default(), "long ago");
        for number in 2000..2100 {
            let before = if number == 2000 { 999 } else { number - 1 };
            let foreseen = foresight.follows(&seed(before), &seed(number));
            assert!(foreseen.elsewhere.len() == NODES_MAX && foreseen.former.len() <= FORMER_MAX);
        }
    }
}
