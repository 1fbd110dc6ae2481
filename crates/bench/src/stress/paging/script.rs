//! The script of a round, chosen from a random seed before the round begins. The same seed gives the same rounds,
//! although not the same timing. Pure.

use fastrand::Rng;
use serde::Serialize;

use crate::experiment::observer::NodeProcess;

/// Number of nodes.
pub(super) const NODES: usize = 3;

/// Maximum number of initial families of a round, of children of each family, and of actions of a round.
const SEEDS_MAX: usize = 3;
const CHILDREN_MAX: usize = 4;
const ACTIONS_MAX: usize = 6;

/// Maximum size of a parent in MiB, as the exponent of a power of two. Every byte is verified, which takes time.
const MIB_BITS_MAX: u32 = 5;

/// How long a child walks through its memory, in ms.
const WALK_MS: std::ops::Range<u64> = 300..2500;

/// Pause before an action, in ms.
const PAUSE_MS: std::ops::Range<u64> = 0..400;

/// How long a link is cut, a daemon is down, or a node's process is stopped, in ms. This is shorter than the minute after
/// which a pager gives up the pages of an unreachable owner.
const OUTAGE_MS: std::ops::Range<u64> = 100..2000;

/// Lengths of leases, in ms: shorter than most rounds.
const TTL_MS: std::ops::Range<u64> = 1000..4000;

/// Number of children of a fan-out, and the time that each child walks, in ms. The nodes together have 24 containers
/// ready, so some fan-outs have more children than containers are ready.
const FANOUT_CHILDREN: std::ops::Range<u64> = 4..40;
const FANOUT_WALK_MS: std::ops::Range<u64> = 10..600;

/// Paging strategies of children.
const STRATEGIES: [&str; 8] =
    ["cow", "prefetch", "eager", "cow,cache", "prefetch,cache", "cow,first", "prefetch,first", "eager,cache"];

/// A round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoundScript {
    /// The initial families: parents, each with its seed and children.
    pub(super) seeds: Vec<SeedScript>,
    /// The actions, in order, each with the pause before it in ms.
    pub(super) actions: Vec<(u64, SoakAction)>,
}

/// A parent, its seed and its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeedScript {
    pub(super) mib: u64,
    /// The node that owns the seed.
    pub(super) owner: usize,
    /// Whether the seed is sealed.
    pub(super) sealed: bool,
    /// The seed's lease, in ms; 0 for none. It must not expire while the seed is needed.
    pub(super) ttl_ms: u64,
    pub(super) children: Vec<ChildScript>,
}

/// A child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChildScript {
    pub(super) node: usize,
    pub(super) strategy: &'static str,
    /// Random seed of the child's walk through its memory.
    pub(super) seed: u64,
    pub(super) ms: u64,
    /// Whether the child runs until it is stopped, because a seed is made of it.
    pub(super) runs_until_stop: bool,
}

/// Many children of a family at once, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FanoutScript {
    pub(super) seed_index: usize,
    pub(super) count: u64,
    /// Random seed of the walks. Each walk also depends on the number of the child.
    pub(super) seed: u64,
    pub(super) ms: u64,
    /// Number of children that are killed immediately after the fork.
    pub(super) killed_count: usize,
    /// Memory limit of each child, in MiB.
    pub(super) memory_mib: Option<u64>,
}

/// A child, by the index of its family and its index in the family. Families of seeds that were made of children follow
/// the initial families, in the order of the actions that made them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChildRef {
    pub(super) seed: usize,
    pub(super) child: usize,
}

/// An action on a round's nodes, seeds and children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SoakAction {
    KillChild(ChildRef),
    KillParent {
        family: usize,
    },
    DropSeed {
        family: usize,
    },
    Settle(ChildRef),
    /// Makes a seed of a child, and forks children of it.
    ForkFromChild {
        from: ChildRef,
        children: Vec<ChildScript>,
    },
    KillPager {
        node: usize,
    },
    /// Kills keeper and pager. Also kills the daemon if `daemon_ms` is set, and starts it again after that time.
    KillKeeperAndPager {
        node: usize,
        daemon_ms: Option<u64>,
    },
    KillDaemon {
        node: usize,
        ms: u64,
    },
    CutLink {
        node: usize,
        ms: u64,
    },
    Stall {
        node: usize,
        server: NodeProcess,
        ms: u64,
    },
    /// Forks many children of a family with one request.
    FanOut(FanoutScript),
}

/// The kinds of actions, for the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActionKind {
    /// A child was killed.
    KillChild,
    /// A parent was killed.
    KillParent,
    /// A seed was dropped while children needed it.
    DropSeed,
    /// A child was settled.
    Settle,
    /// A seed was made of a child, and forked.
    ForkOn,
    /// A pager was killed.
    KillPager,
    /// A pager and its keeper were killed together, some with their daemon.
    KillTogether,
    /// A daemon was killed, and started again.
    KillDaemon,
    /// A link was cut for a while.
    CutLink,
    /// A daemon or pager was stopped for a while.
    Stall,
    /// Many children were forked at once.
    FanOut,
}

impl ActionKind {
    /// The kind, for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::KillChild => "children killed",
            Self::KillParent => "parents killed",
            Self::DropSeed => "seeds dropped",
            Self::Settle => "children settled",
            Self::ForkOn => "seeds made of children",
            Self::KillPager => "pagers killed",
            Self::KillTogether => "keepers and pagers killed together",
            Self::KillDaemon => "daemons killed",
            Self::CutLink => "links cut",
            Self::Stall => "daemons and pagers halted",
            Self::FanOut => "fan-outs",
        }
    }
}

impl SoakAction {
    pub(super) fn kind(&self) -> ActionKind {
        match self {
            Self::KillChild(_) => ActionKind::KillChild,
            Self::KillParent { .. } => ActionKind::KillParent,
            Self::DropSeed { .. } => ActionKind::DropSeed,
            Self::Settle(_) => ActionKind::Settle,
            Self::ForkFromChild { .. } => ActionKind::ForkOn,
            Self::KillPager { .. } => ActionKind::KillPager,
            Self::KillKeeperAndPager { .. } => ActionKind::KillTogether,
            Self::KillDaemon { .. } => ActionKind::KillDaemon,
            Self::CutLink { .. } => ActionKind::CutLink,
            Self::Stall { .. } => ActionKind::Stall,
            Self::FanOut(_) => ActionKind::FanOut,
        }
    }
}

impl RoundScript {
    /// A first round without faults. It makes all nodes connect to each other and seal a seed each. The resources are
    /// first counted after it.
    pub(super) fn without_faults(rng: &mut Rng) -> Self {
        let family = |owner| SeedScript {
            mib: 4,
            owner,
            sealed: true,
            ttl_ms: 0,
            children: (0..NODES).map(|node| ChildScript { node, ..random_child(rng) }).collect(),
        };
        Self { seeds: (0..NODES).map(family).collect(), actions: Vec::new() }
    }

    /// A random round.
    pub(super) fn random(rng: &mut Rng) -> Self {
        let families = (0..rng.usize(1..=SEEDS_MAX)).map(|_| random_seed(rng)).collect();
        let mut round_script = Self { seeds: families, actions: Vec::new() };
        let mut sizes: Vec<usize> = round_script.seeds.iter().map(|family| family.children.len()).collect();
        for _ in 0..rng.usize(0..=ACTIONS_MAX) {
            let soak_action = match rng.u8(0..4) {
                0 => SoakAction::FanOut(random_fanout(rng, &round_script.seeds)),
                _ => random_action(rng, &sizes),
            };
            if let SoakAction::ForkFromChild { from, children } = &soak_action {
                sizes.push(children.len());
                round_script.keep_running(*from);
            }
            round_script.actions.push((rng.u64(PAUSE_MS), soak_action));
        }
        round_script
    }

    /// Makes a child run until it is stopped, because a seed is made of it. Children of that seed have copies of this
    /// child's memory, so they also run until they are stopped.
    fn keep_running(&mut self, child_ref: ChildRef) {
        if let Some(family) = self.seeds.get_mut(child_ref.seed) {
            family.children[child_ref.child].runs_until_stop = true;
        }
    }
}

fn random_seed(rng: &mut Rng) -> SeedScript {
    SeedScript {
        mib: 1 << rng.u32(0..=MIB_BITS_MAX),
        owner: rng.usize(0..NODES),
        sealed: rng.u8(0..6) == 0,
        ttl_ms: if rng.u8(0..3) == 0 { rng.u64(TTL_MS) } else { 0 },
        children: random_children(rng),
    }
}

fn random_children(rng: &mut Rng) -> Vec<ChildScript> {
    (0..rng.usize(1..=CHILDREN_MAX)).map(|_| random_child(rng)).collect()
}

fn random_child(rng: &mut Rng) -> ChildScript {
    ChildScript {
        node: rng.usize(0..NODES),
        strategy: STRATEGIES[rng.usize(0..STRATEGIES.len())],
        seed: rng.u64(..),
        ms: rng.u64(WALK_MS),
        runs_until_stop: false,
    }
}

/// A fan-out of an initial family. Other families are not used, because their seeds are made of children.
fn random_fanout(rng: &mut Rng, families: &[SeedScript]) -> FanoutScript {
    let family = rng.usize(0..families.len());
    let count = rng.u64(FANOUT_CHILDREN);
    let limits = [None, None, Some(families[family].mib / 2 + 2), Some(families[family].mib * 4 + 64)];
    FanoutScript {
        seed_index: family,
        count,
        seed: rng.u64(..),
        ms: rng.u64(FANOUT_WALK_MS),
        killed_count: if rng.bool() { rng.usize(0..=count as usize / 2) } else { 0 },
        memory_mib: limits[rng.usize(0..limits.len())],
    }
}

/// A random action on a node, or on families with these numbers of children.
fn random_action(rng: &mut Rng, sizes: &[usize]) -> SoakAction {
    let family = rng.usize(0..sizes.len());
    let child_ref = ChildRef { seed: family, child: rng.usize(0..sizes[family]) };
    let (node, ms) = (rng.usize(0..NODES), rng.u64(OUTAGE_MS));
    match rng.u8(0..16) {
        0 | 1 => SoakAction::KillChild(child_ref),
        2 => SoakAction::KillParent { family },
        3 => SoakAction::DropSeed { family },
        4 | 5 => SoakAction::Settle(child_ref),
        6..=9 => SoakAction::ForkFromChild { from: child_ref, children: random_children(rng) },
        10 => SoakAction::KillPager { node },
        11 => SoakAction::KillKeeperAndPager { node, daemon_ms: (ms % 2 == 0).then_some(ms) },
        12 => SoakAction::KillDaemon { node, ms },
        13 => SoakAction::CutLink { node, ms },
        14 => SoakAction::Stall { node, server: NodeProcess::Daemon, ms },
        _ => SoakAction::Stall { node, server: NodeProcess::Pager, ms },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Rng, RoundScript, SoakAction};

    #[test]
    fn equal_seeds_give_equal_rounds() {
        let rounds = |seed| {
            let mut rng = Rng::with_seed(seed);
            (0..20).map(|_| RoundScript::random(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
    }

    #[test]
    fn every_kind_of_action_occurs_and_names_existing_children() {
        let mut rng = Rng::with_seed(1);
        let mut kinds = BTreeSet::new();
        for _ in 0..500 {
            let round_script = RoundScript::random(&mut rng);
            let mut sizes: Vec<usize> = round_script.seeds.iter().map(|family| family.children.len()).collect();
            for (_, soak_action) in &round_script.actions {
                kinds.insert(soak_action.kind());
                match soak_action {
                    SoakAction::KillChild(child_ref) | SoakAction::Settle(child_ref) => {
                        assert!(child_ref.child < sizes[child_ref.seed])
                    }
                    SoakAction::ForkFromChild { from, children } => {
                        assert!(from.child < sizes[from.seed]);
                        assert!(
                            round_script.seeds.get(from.seed).is_none_or(|f| f.children[from.child].runs_until_stop)
                        );
                        sizes.push(children.len());
                    }
                    SoakAction::FanOut(fan) => {
                        assert!(fan.seed_index < round_script.seeds.len() && fan.killed_count as u64 <= fan.count);
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(kinds.len(), 11);
    }
}
