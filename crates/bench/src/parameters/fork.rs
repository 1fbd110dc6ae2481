//! The parameters of `farfork bench fork`, its steps, and the time and number of samples of each. Pure. A step ends
//! when it has its number of samples, or has used its share of the time and has a minimum of samples.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::baseline::criu::CriuMode;
use crate::figure::{ChildPlace, IDLE, Pace};
use crate::reference;
use crate::workload::micro::{MicroOptions, PageSize, TouchAccess, TouchOrder};

/// Default number of samples of each figure.
pub(crate) const RUNS: usize = 20;

/// Minimum number of samples of a figure after its share of the time is used. Fewer samples do not show the spread.
const RUNS_MIN: usize = 3;

/// Minimum number of samples of a figure after all of the time is used.
const RUNS_MIN_LATE: usize = 1;

/// Default time for all steps. Including the start of nodes and filling memory, a run takes less than five minutes, and
/// sizes that are quick to measure get all samples.
const TIME_MAX: Duration = Duration::from_secs(230);

/// Default time for all steps with a peer. It is shorter, because the peer's slowest clone may exceed it.
const TIME_MAX_WITH_PEER: Duration = Duration::from_secs(200);

/// Approximate time of CRIU's commands themselves.
const CRIU_COMMANDS_ESTIMATE: Duration = Duration::from_millis(400);

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct ForkParameters {
    /// Private memory of the parents, in MiB.
    pub sizes_mib: Vec<u64>,
    /// Number of samples of each figure.
    pub runs: usize,
    /// Time for all samples. A size that is too slow for this time gets fewer samples.
    pub time_max: Duration,
    /// The order in which a child touches its pages.
    pub order: TouchOrder,
    /// Whether a child reads or writes its pages.
    pub access: TouchAccess,
    /// The page size of the parents' memory.
    pub page_size: PageSize,
    /// Threads of each parent, including the first.
    pub threads: u64,
    /// Number of mappings that each parent has in addition to its memory and to the mappings of every program.
    pub mappings: u64,
    /// The measured operations; empty for all.
    pub only: Vec<ForkOperation>,
    /// Which child of a seed on a node is measured.
    pub resume_case: ResumeCase,
    /// Strategies to compare, as in `farfork fork --strategy`.
    pub strategies: Vec<String>,
    /// Whether memory transfers between the nodes are encrypted. Nodes encrypt unless both have this switched off.
    pub encrypted: bool,
    /// A peer system to measure too.
    pub peer: Option<PeerSystem>,
    /// The file to which samples are written, as lines of JSON.
    pub samples_file: Option<PathBuf>,
}

/// An operation of a fork that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkOperation {
    /// Making a seed of a process, by a request or by the process itself.
    Prepare,
    /// Starting a child.
    Resume,
    /// Touching all pages in a child, with the floors of the touches and the clones of a peer.
    Execution,
}

/// Which child of a seed on a node is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeCase {
    /// A later child of a seed that the node knows.
    Later,
    /// The first child. It is restored, because nodes keep no zygotes.
    First,
    /// The first child, on nodes with zygotes, after the previous seed was forked. So the node may have predicted the
    /// fork.
    Speculative,
    /// The first child of a new process's first seed, on nodes with zygotes.
    Fresh,
}

impl ResumeCase {
    /// Whether each child has a seed of its own, which the node does not know yet.
    pub(crate) fn is_first(self) -> bool {
        self != Self::Later
    }

    /// Whether nodes keep zygotes, as by default.
    pub(crate) fn has_zygotes(self) -> bool {
        matches!(self, Self::Speculative | Self::Fresh)
    }
}

/// Another system that clones processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSystem {
    /// CRIU: dump and restore.
    Criu,
}

impl Default for ForkParameters {
    fn default() -> Self {
        Self {
            sizes_mib: reference::SIZES_MIB.to_vec(),
            runs: RUNS,
            time_max: TIME_MAX,
            order: TouchOrder::Random,
            access: TouchAccess::Read,
            page_size: PageSize::Small,
            threads: 1,
            mappings: 0,
            only: Vec::new(),
            resume_case: ResumeCase::Later,
            strategies: Vec::new(),
            encrypted: true,
            peer: None,
            samples_file: None,
        }
    }
}

impl ForkParameters {
    /// The defaults with a peer, or without.
    pub fn with_peer(peer: Option<PeerSystem>) -> Self {
        let time_max = if peer.is_some() { TIME_MAX_WITH_PEER } else { TIME_MAX };
        Self { peer, time_max, ..Self::default() }
    }

    /// Whether an operation is measured.
    pub(crate) fn measures(&self, operation: ForkOperation) -> bool {
        self.only.is_empty() || self.only.contains(&operation)
    }

    /// The options of each measured program.
    pub(crate) fn micro_options(&self) -> MicroOptions {
        let Self { order, access, page_size, threads, mappings, .. } = *self;
        MicroOptions { order, access, page_size, threads, mappings }
    }
}

/// The samples of one kind of figure, for one parent size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForkStep {
    pub(crate) mib: u64,
    pub(crate) kind: ForkStepKind,
}

/// The kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkStepKind {
    /// The parent requests a checkpoint of itself.
    Checkpoint(Pace),
    /// Another process requests a seed of the parent. With [`Pace::BackToBack`], the parent also calls `fork()`.
    Prepare(Pace),
    /// A child starts and exits.
    Resume(ChildPlace, Pace),
    /// A child touches each page.
    Execution(ChildPlace),
    /// The floors: the touches of `Execution` without farfork, and the transfer of the same bytes over the link.
    Floors,
    /// CRIU clones the process, and the clone touches each page.
    Criu(CriuMode),
}

impl ForkStepKind {
    /// All steps of a size, in order.
    pub(crate) const ALL: [Self; 11] = [
        Self::Checkpoint(Pace::BackToBack),
        Self::Checkpoint(Pace::Idle),
        Self::Prepare(Pace::BackToBack),
        Self::Prepare(Pace::Idle),
        Self::Resume(ChildPlace::Own, Pace::BackToBack),
        Self::Resume(ChildPlace::Own, Pace::Idle),
        Self::Resume(ChildPlace::Other, Pace::BackToBack),
        Self::Resume(ChildPlace::Other, Pace::Idle),
        Self::Execution(ChildPlace::Own),
        Self::Execution(ChildPlace::Other),
        Self::Floors,
    ];

    fn operation(self) -> ForkOperation {
        match self {
            Self::Checkpoint(_) | Self::Prepare(_) => ForkOperation::Prepare,
            Self::Resume(..) => ForkOperation::Resume,
            Self::Execution(_) | Self::Floors | Self::Criu(_) => ForkOperation::Execution,
        }
    }
}

impl ForkStep {
    /// All steps of a run, size by size, including CRIU in these modes.
    pub(crate) fn all_steps(plan: &ForkParameters, peers: &[CriuMode]) -> Vec<Self> {
        let fork_step_kind = || {
            let peers = peers.iter().map(|mode| ForkStepKind::Criu(*mode));
            ForkStepKind::ALL.into_iter().chain(peers).filter(|kind| plan.measures(kind.operation()))
        };
        plan.sizes_mib
            .iter()
            .flat_map(|&mib| fork_step_kind().map(move |fork_step_kind| Self { mib, kind: fork_step_kind }))
            .collect()
    }

    /// Minimum number of samples of the step, even if they take too long. `left` is the remaining time for all steps.
    pub(crate) fn runs_min(self, left: Duration) -> usize {
        // A lazy clone of 1 GiB takes a minute.
        let is_peer = matches!(self.kind, ForkStepKind::Criu(_));
        if left.is_zero() || is_peer { RUNS_MIN_LATE } else { RUNS_MIN }
    }

    /// Estimated time of one sample. It only divides the time among the steps. A wrong estimate gives too few or too
    /// many samples, but no wrong samples.
    fn estimate_duration(self) -> Duration {
        let us_per_mib = match self.kind {
            ForkStepKind::Checkpoint(_) => 500,
            ForkStepKind::Prepare(_) => 1_500,
            ForkStepKind::Resume(..) => 0,
            ForkStepKind::Execution(_) => 1_500,
            ForkStepKind::Floors => 3_000,
            ForkStepKind::Criu(CriuMode::Eager) => 3_000,
            ForkStepKind::Criu(CriuMode::Lazy) => 30_000,
        };
        let idle = match self.kind {
            ForkStepKind::Checkpoint(Pace::Idle)
            | ForkStepKind::Prepare(Pace::Idle)
            | ForkStepKind::Resume(_, Pace::Idle) => IDLE,
            _ => Duration::ZERO,
        };
        let fixed = match self.kind {
            ForkStepKind::Criu(_) => CRIU_COMMANDS_ESTIMATE,
            _ => Duration::from_millis(8),
        };
        fixed + idle + Duration::from_micros(us_per_mib * self.mib)
    }
}

/// Returns the part of the remaining time that the first of `steps` may use. All steps have the same limit, which grows
/// by the time that quick steps do not need.
pub(crate) fn time_share(steps: &[ForkStep], runs: usize, left: Duration) -> Duration {
    let mut needs: Vec<Duration> = steps.iter().map(|step| step.estimate_duration() * runs as u32).collect();
    needs.sort();
    let mut left = left;
    for (done, need) in needs.iter().enumerate() {
        let limit = left / (needs.len() - done) as u32;
        if *need > limit {
            return limit;
        }
        left -= *need;
    }
    // The time suffices for all steps. The step may also use the rest, in case the estimates are too low.
    needs.last().copied().unwrap_or_default() + left
}

/// The number of samples that a step still takes.
#[derive(Debug)]
pub(crate) struct SampleQuota {
    taken: usize,
    runs_min: usize,
    runs: usize,
    deadline: Instant,
}

impl SampleQuota {
    /// A quota of `runs` samples. After the deadline, only `runs_min` samples.
    pub(crate) fn new(runs_min: usize, runs: usize, deadline: Instant) -> Self {
        Self { taken: 0, runs_min, runs, deadline }
    }

    /// Returns whether to take another sample, and counts that sample.
    pub(crate) fn take_another(&mut self, now: Instant) -> bool {
        let goes_on = self.taken < self.runs && (self.taken < self.runs_min || now < self.deadline);
        self.taken += usize::from(goes_on);
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{
        CriuMode, ForkOperation, ForkParameters, ForkStep, ForkStepKind, RUNS, SampleQuota, TIME_MAX, time_share,
    };
    use crate::figure::{ChildPlace, Pace};

    const PAUSE_FOR_THOUGHT: ForkStepKind = ForkStepKind::Resume(ChildPlace::Own, Pace::Idle);

    fn steps_of_sizes(sizes_mib: &[u64], peers: &[CriuMode]) -> Vec<ForkStep> {
        let plan = ForkParameters { sizes_mib: sizes_mib.to_vec(), ..ForkParameters::default() };
        ForkStep::all_steps(&plan, peers)
    }

    #[test]
    fn a_run_can_have_the_steps_of_one_operation() {
        let plan =
            ForkParameters { sizes_mib: vec![4], only: vec![ForkOperation::Resume], ..ForkParameters::default() };
        let steps = ForkStep::all_steps(&plan, &[CriuMode::Eager]);
        assert!(
            steps.len() == 4 && steps.iter().all(|step| matches!(step.kind, ForkStepKind::Resume(..))),
            "{steps:?}"
        );
    }

    #[test]
    fn each_size_has_every_step() {
        let steps = steps_of_sizes(&[1, 4], &[]);
        assert_eq!(steps.len(), 2 * ForkStepKind::ALL.len());
        assert_eq!((steps[0].mib, steps[steps.len() - 1].mib), (1, 4));
        assert_eq!(steps[ForkStepKind::ALL.len() - 1].kind, ForkStepKind::Floors);
    }

    #[test]
    fn enough_time_shortens_no_step() {
        let steps = steps_of_sizes(&[1, 1024], &[]);
        let needed: Duration = steps.iter().map(|step| step.estimate_duration() * 20).sum();
        let slowest = steps.iter().map(|step| step.estimate_duration() * 20).max().unwrap();
        assert!(time_share(&steps, 20, needed) >= slowest);
    }

    #[test]
    fn small_sizes_have_all_their_samples() {
        let steps = steps_of_sizes(&crate::reference::SIZES_MIB, &[]);
        let limit = time_share(&steps, RUNS, TIME_MAX);
        let small =
            steps.iter().filter(|step| step.mib <= 16 && !matches!(step.kind, ForkStepKind::Prepare(Pace::Idle)));
        small.for_each(|step| assert!(step.estimate_duration() * RUNS as u32 <= limit, "{step:?} within {limit:?}"));
    }

    #[test]
    fn slow_steps_are_shortened_to_use_exactly_the_time() {
        let steps = [
            ForkStep { mib: 1, kind: PAUSE_FOR_THOUGHT },
            ForkStep { mib: 1024, kind: ForkStepKind::Floors },
            ForkStep { mib: 1024, kind: ForkStepKind::Execution(ChildPlace::Other) },
        ];
        let quick = steps[0].estimate_duration() * 20;
        let limit = time_share(&steps, 20, Duration::from_secs(20));
        assert!(limit > quick, "the quick step is not cut");
        assert_eq!(quick + 2 * limit, Duration::from_secs(20));
    }

    #[test]
    fn a_late_step_takes_one_sample() {
        let step = ForkStep { mib: 1024, kind: ForkStepKind::Execution(ChildPlace::Other) };
        assert_eq!(step.runs_min(Duration::from_secs(1)), 3);
        assert_eq!(step.runs_min(Duration::ZERO), 1);
        assert_eq!(ForkStep { mib: 1, kind: ForkStepKind::Criu(CriuMode::Lazy) }.runs_min(Duration::from_secs(1)), 1);
    }

    #[test]
    fn no_time_gives_each_step_no_time() {
        assert_eq!(time_share(&steps_of_sizes(&[64], &[CriuMode::Eager]), 20, Duration::ZERO), Duration::ZERO);
        assert_eq!(time_share(&[], 20, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_step_takes_three_samples_before_its_deadline_ends_it() {
        let now = Instant::now();
        let count = |runs, deadline| {
            let mut quota = SampleQuota::new(3, runs, deadline);
            std::iter::repeat_with(|| quota.take_another(now)).take_while(|another| *another).count()
        };
        assert_eq!(count(20, now + Duration::from_secs(1)), 20);
        assert_eq!(count(20, now), 3);
        assert_eq!(count(2, now), 2);
    }
}
