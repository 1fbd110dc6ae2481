//! The parameters of `farfork bench fork`, its steps, and the time and number of samples of each. Pure. A step ends
//! when it has its number of samples or has used its share of the time, but never before it has a few.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::baseline::criu::CriuMode;
use crate::figure::{ChildPlace, IDLE, Pace};
use crate::reference;
use crate::workload::micro::{MicroOptions, PageSize, TouchAccess, TouchOrder};

/// Samples of each figure, unless the plan says otherwise or the time is over.
pub(crate) const RUNS: usize = 20;

/// Samples that each figure gets even if its share of the time is used: a median of fewer says nothing of spread.
const RUNS_MIN: usize = 3;

/// Samples that each figure gets even if all of the time is.
const RUNS_MIN_LATE: usize = 1;

/// Time for all steps, unless the plan says otherwise: with nodes to start and memory to fill, a run stays below five
/// minutes, and has all samples of sizes that take no time themselves.
const TIME_MAX: Duration = Duration::from_secs(230);

/// The same beside a peer, whose slowest clone is waited for although its time is over.
const TIME_MAX_WITH_PEER: Duration = Duration::from_secs(200);

/// What CRIU's commands take by themselves, roughly.
const CRIU_COMMANDS_ESTIMATE: Duration = Duration::from_millis(400);

/// What `farfork bench fork` measures.
#[derive(Debug, Clone)]
pub struct ForkParameters {
    /// Private memory of the parents, in MiB.
    pub sizes_mib: Vec<u64>,
    /// Samples of each figure.
    pub runs: usize,
    /// Time for all samples; a size that is too slow for it gets fewer.
    pub time_max: Duration,
    /// In which order a child touches its pages.
    pub order: TouchOrder,
    /// What it does with them.
    pub access: TouchAccess,
    /// In what pages the parents have their memory.
    pub page_size: PageSize,
    /// Threads of each parent, the first among them.
    pub threads: u64,
    /// Mappings of each parent beside its memory, and what every program has.
    pub mappings: u64,
    /// Which child of its seed on the node is resumed.
    pub resume_case: ResumeCase,
    /// Strategies that are measured beside each other, as `farfork fork --strategy` takes them.
    pub strategies: Vec<String>,
    /// Whether memory is encrypted between the nodes, as it is unless both are told not to.
    pub encrypted: bool,
    /// Whom to measure beside farfork.
    pub peer: Option<PeerSystem>,
    /// Where each sample is written, as a line of JSON.
    pub samples_file: Option<PathBuf>,
}

/// Which child of its seed on a node is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeCase {
    /// One of many of the same seed, which the node knows.
    Later,
    /// The first, which is restored: nodes keep no zygotes.
    First,
    /// The first, asked for as users do, where the seed before it had one: it may be foretold.
    Speculative,
    /// The first, asked for as users do, of a new process's first seed.
    Fresh,
}

impl ResumeCase {
    /// Whether each child has a seed of its own, which the node does not know yet.
    pub(crate) fn is_first(self) -> bool {
        self != Self::Later
    }

    /// Whether nodes keep zygotes, as they do for users.
    pub(crate) fn has_zygotes(self) -> bool {
        matches!(self, Self::Speculative | Self::Fresh)
    }
}

/// Somebody else who clones processes.
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
            resume_case: ResumeCase::Later,
            strategies: Vec::new(),
            encrypted: true,
            peer: None,
            samples_file: None,
        }
    }
}

impl ForkParameters {
    /// With somebody else to measure, or nobody.
    pub fn with_peer(peer: Option<PeerSystem>) -> Self {
        let time_max = if peer.is_some() { TIME_MAX_WITH_PEER } else { TIME_MAX };
        Self { peer, time_max, ..Self::default() }
    }

    /// What each program is told.
    pub(crate) fn micro_options(&self) -> MicroOptions {
        let Self { order, access, page_size, threads, mappings, .. } = *self;
        MicroOptions { order, access, page_size, threads, mappings }
    }
}

/// One thing that is measured several times, of one size of parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForkStep {
    pub(crate) mib: u64,
    pub(crate) kind: ForkStepKind,
}

/// What a step measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkStepKind {
    /// The parent makes a seed of itself.
    Checkpoint(Pace),
    /// Another process asks for a seed of it; back to back also `fork()` of the same process.
    Prepare(Pace),
    /// A child starts, and ends.
    Resume(ChildPlace, Pace),
    /// A child touches every page.
    Execution(ChildPlace),
    /// The same touches without farfork, and the same bytes over the link.
    Floors,
    /// CRIU clones the process, and the clone touches every page.
    Criu(CriuMode),
}

impl ForkStepKind {
    /// All that is measured of a size, in order.
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
}

impl ForkStep {
    /// All steps for some sizes, a size after the other; each also with CRIU in these modes.
    pub(crate) fn all_steps(sizes_mib: &[u64], peers: &[CriuMode]) -> Vec<Self> {
        let fork_step_kind = || ForkStepKind::ALL.into_iter().chain(peers.iter().map(|mode| ForkStepKind::Criu(*mode)));
        sizes_mib
            .iter()
            .flat_map(|&mib| fork_step_kind().map(move |fork_step_kind| Self { mib, kind: fork_step_kind }))
            .collect()
    }

    /// Samples that the step takes however long it takes, when so much time is left for all of them.
    pub(crate) fn runs_min(self, left: Duration) -> usize {
        // A lazy clone of 1 GiB takes a minute.
        let is_peer = matches!(self.kind, ForkStepKind::Criu(_));
        if left.is_zero() || is_peer { RUNS_MIN_LATE } else { RUNS_MIN }
    }

    /// What one sample takes, roughly. It only serves to share the time out: who guesses wrong has samples too few or
    /// too many, not wrong ones.
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

/// How long the first of some steps may take, when so much time is left for all of them: the same limit for each, but
/// what the quick ones do not need is the slow ones'.
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
    // There is enough for all; estimates may be wrong by this much.
    needs.last().copied().unwrap_or_default() + left
}

/// How many samples a step still takes.
#[derive(Debug)]
pub(crate) struct SampleQuota {
    taken: usize,
    runs_min: usize,
    runs: usize,
    deadline: Instant,
}

impl SampleQuota {
    /// For so many samples, or fewer if time is over before, but no fewer than that.
    pub(crate) fn new(runs_min: usize, runs: usize, deadline: Instant) -> Self {
        Self { taken: 0, runs_min, runs, deadline }
    }

    /// Whether to take another sample, which then counts.
    pub(crate) fn take_another(&mut self, now: Instant) -> bool {
        let goes_on = self.taken < self.runs && (self.taken < self.runs_min || now < self.deadline);
        self.taken += usize::from(goes_on);
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{CriuMode, ForkStep, ForkStepKind, RUNS, SampleQuota, TIME_MAX, time_share};
    use crate::figure::{ChildPlace, Pace};

    const PAUSE_FOR_THOUGHT: ForkStepKind = ForkStepKind::Resume(ChildPlace::Own, Pace::Idle);

    #[test]
    fn each_size_has_every_step() {
        let steps = ForkStep::all_steps(&[1, 4], &[]);
        assert_eq!(steps.len(), 2 * ForkStepKind::ALL.len());
        assert_eq!((steps[0].mib, steps[steps.len() - 1].mib), (1, 4));
        assert_eq!(steps[ForkStepKind::ALL.len() - 1].kind, ForkStepKind::Floors);
    }

    #[test]
    fn with_time_enough_no_step_is_cut_short() {
        let steps = ForkStep::all_steps(&[1, 1024], &[]);
        let needed: Duration = steps.iter().map(|step| step.estimate_duration() * 20).sum();
        let slowest = steps.iter().map(|step| step.estimate_duration() * 20).max().unwrap();
        assert!(time_share(&steps, 20, needed) >= slowest);
    }

    #[test]
    fn small_sizes_have_all_their_samples() {
        let steps = ForkStep::all_steps(&crate::reference::SIZES_MIB, &[]);
        let limit = time_share(&steps, RUNS, TIME_MAX);
        let small =
            steps.iter().filter(|step| step.mib <= 16 && !matches!(step.kind, ForkStepKind::Prepare(Pace::Idle)));
        small.for_each(|step| assert!(step.estimate_duration() * RUNS as u32 <= limit, "{step:?} within {limit:?}"));
    }

    #[test]
    fn the_slow_steps_give_way_and_all_of_the_time_is_used() {
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
    fn who_is_late_takes_one_sample() {
        let step = ForkStep { mib: 1024, kind: ForkStepKind::Execution(ChildPlace::Other) };
        assert_eq!(step.runs_min(Duration::from_secs(1)), 3);
        assert_eq!(step.runs_min(Duration::ZERO), 1);
        assert_eq!(ForkStep { mib: 1, kind: ForkStepKind::Criu(CriuMode::Lazy) }.runs_min(Duration::from_secs(1)), 1);
    }

    #[test]
    fn no_time_is_no_time() {
        assert_eq!(time_share(&ForkStep::all_steps(&[64], &[CriuMode::Eager]), 20, Duration::ZERO), Duration::ZERO);
        assert_eq!(time_share(&[], 20, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_step_ends_with_its_runs_or_its_time_but_not_before_three() {
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
