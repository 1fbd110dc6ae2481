//! The steps of `farfork bench fork`, and the time and number of samples of each. Pure. A step ends when it has its number
//! of samples, or has used its share of the time and has a minimum of samples.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::BenchFork;
use crate::baseline::criu::CriuMode;
use crate::figure::{ChildPlace, IDLE, Pace};

/// Default number of samples of each figure.
pub(crate) const RUNS: usize = 20;

/// Minimum number of samples of a figure after its share of the time is used. Fewer samples do not show the spread.
const RUNS_MIN: usize = 3;

/// Minimum number of samples of a figure after all of the time is used.
const RUNS_MIN_LATE: usize = 1;

/// Default time for all steps. Including the start of nodes and filling memory, a run takes less than five minutes, and
/// sizes that are quick to measure get all samples.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(240);

/// Default time for all steps with a peer. It is shorter, because the peer's slowest clone may exceed it.
pub(crate) const TIME_MAX_WITH_PEER: Duration = Duration::from_secs(200);

/// Approximate time of CRIU's commands themselves.
const CRIU_COMMANDS_ESTIMATE: Duration = Duration::from_millis(400);

/// An operation of a fork that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForkOperation {
    /// Making a seed of a process, by a request or by the process itself.
    Prepare,
    /// Starting a child.
    Resume,
    /// Touching all pages in a child, with the floors of the touches and the clones of a peer.
    Execution,
}

/// Which child of a seed on a node is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResumeCase {
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
    /// The first child of a new seed on the other node starts and exits, as in the published run.
    FirstResume,
    /// A child touches each page.
    Execution(ChildPlace),
    /// The floors: the touches of `Execution` without farfork, and the transfer of the same bytes over the link.
    Floors,
    /// CRIU clones the process, and the clone touches each page.
    Criu(CriuMode),
}

impl ForkStepKind {
    /// All steps of a size, in order.
    pub(crate) const ALL: [Self; 12] = [
        Self::Checkpoint(Pace::BackToBack),
        Self::Checkpoint(Pace::Idle),
        Self::Prepare(Pace::BackToBack),
        Self::Prepare(Pace::Idle),
        Self::Resume(ChildPlace::Own, Pace::BackToBack),
        Self::Resume(ChildPlace::Own, Pace::Idle),
        Self::Resume(ChildPlace::Other, Pace::BackToBack),
        Self::Resume(ChildPlace::Other, Pace::Idle),
        Self::FirstResume,
        Self::Execution(ChildPlace::Own),
        Self::Execution(ChildPlace::Other),
        Self::Floors,
    ];

    fn operation(self) -> ForkOperation {
        match self {
            Self::Checkpoint(_) | Self::Prepare(_) => ForkOperation::Prepare,
            Self::Resume(..) | Self::FirstResume => ForkOperation::Resume,
            Self::Execution(_) | Self::Floors | Self::Criu(_) => ForkOperation::Execution,
        }
    }
}

impl ForkStep {
    /// All steps of a run, size by size, including CRIU in these modes.
    pub(crate) fn all_steps(plan: &BenchFork, peers: &[CriuMode]) -> Vec<Self> {
        let fork_step_kind = || {
            let peers = peers.iter().map(|mode| ForkStepKind::Criu(*mode));
            let all = ForkStepKind::ALL.into_iter().chain(peers);
            // If all resumes are those of first children, there are no later ones.
            let is_first = plan.resume_case().is_first();
            let kinds = all.filter(move |kind| !is_first || !matches!(kind, ForkStepKind::FirstResume));
            kinds.filter(|kind| plan.measures(kind.operation()))
        };
        plan.sizes_mib().into_iter().flat_map(|mib| fork_step_kind().map(move |kind| Self { mib, kind })).collect()
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
            ForkStepKind::FirstResume => 500,
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
        BenchFork, ChildPlace, CriuMode, ForkStep, ForkStepKind, Pace, RUNS, SampleQuota, TIME_MAX, time_share,
    };
    use crate::options::parse_arguments;

    const PAUSE_FOR_THOUGHT: ForkStepKind = ForkStepKind::Resume(ChildPlace::Own, Pace::Idle);

    fn steps_of_sizes(sizes_mib: &[u64], peers: &[CriuMode]) -> Vec<ForkStep> {
        let sizes = sizes_mib.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        ForkStep::all_steps(&parse_arguments(&["--mib", &sizes]), peers)
    }

    #[test]
    fn a_run_can_have_the_steps_of_one_operation() {
        let plan: BenchFork = parse_arguments(&["--mib", "4", "--only", "resume"]);
        let steps = ForkStep::all_steps(&plan, &[CriuMode::Eager]);
        let is_resume = |step: &ForkStep| matches!(step.kind, ForkStepKind::Resume(..) | ForkStepKind::FirstResume);
        assert!(steps.len() == 5 && steps.iter().all(is_resume), "{steps:?}");
        let first = ForkStep::all_steps(&parse_arguments(&["--mib", "4", "--only", "resume", "--first"]), &[]);
        assert!(first.iter().all(|step| matches!(step.kind, ForkStepKind::Resume(..))), "{first:?}");
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
