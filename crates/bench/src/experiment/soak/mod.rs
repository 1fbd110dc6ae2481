//! Runs `farfork stress paging`: rounds of seeds and children on nodes with injected faults, until the time is over or a
//! round has failed.
//!
//! Before the first round and after the last it counts the nodes' resources (`leak_check`) and measures how fast they
//! fork (`fork_rate`).

mod cluster;
mod fanout;
mod fork_rate;
mod round;
mod script;
mod tally;
mod verdict;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

pub use self::fork_rate::ForkRate;
pub use self::script::ActionKind;
pub use self::tally::SoakTally;

use self::cluster::SoakCluster;
use self::fork_rate::RateBenchmark;
use self::round::SoakRound;
use self::script::RoundScript;
use crate::error::BenchError;
use crate::experiment::leak_check::{ResourceCount, ResourceCounts};
use crate::workload::memory_walk::MEMORY_WALK;

// script ──▶ round ──▶ verdict ──▶ tally        `script` and `verdict` are pure
//              │  cluster: the nodes, and the faults injected into them
//              │  fanout: many children at once

/// Minimum length of a run whose rates are judged, in seconds. A shorter run is usually one of many tests. Its two
/// measurements differ mainly by the load of the other tests.
const RATES_JUDGED_FROM_S: f64 = 300.0;

/// Parameters of a run.
#[derive(Debug, Clone, Serialize)]
pub struct SoakParameters {
    /// Time in seconds. When it has passed since the start of the first round, no further round begins.
    pub seconds: f64,
    /// Random seed of all choices.
    pub seed: u64,
    /// Whether memory transfers between the nodes are encrypted.
    pub encrypted: bool,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct SoakOutcome {
    /// Totals of all rounds.
    #[serde(flatten)]
    pub tally: SoakTally,
    /// Duration of the rounds, in seconds, without the resource counts.
    pub elapsed_s: f64,
    /// The nodes' resources before and after.
    pub counts: Vec<ResourceCount>,
    /// The rate of forks before the first round.
    pub rate_before: ForkRate,
    /// The rate of forks after the last round.
    pub rate_after: ForkRate,
}

impl SoakOutcome {
    /// Whether the run has passed.
    pub fn has_passed(&self) -> bool {
        self.tally.faults.is_empty()
    }
}

/// Runs rounds until the time is over or a round has failed. `show` receives the tally after each round, and may end the
/// run early. The rounds until then are judged. `farfork` is the program that runs the daemons.
///
/// # Errors
/// The run cannot be started or continued.
pub async fn soak_paging(
    plan: &SoakParameters,
    farfork: &Path,
    show: &mut dyn FnMut(&SoakTally, Duration) -> ControlFlow<()>,
) -> Result<SoakOutcome, BenchError> {
    let mut soak_cluster = SoakCluster::start(farfork, plan.encrypted).await?;
    let (program, rates) =
        (MEMORY_WALK.install(soak_cluster.scratch())?, RateBenchmark::install(soak_cluster.scratch())?);
    let (mut tally, mut rng) = (SoakTally::default(), Rng::with_seed(plan.seed));
    let calm = RoundScript::without_faults(&mut rng);
    SoakRound::new(&mut soak_cluster, &mut tally, &program).run(&calm).await?;
    let judges_rates = plan.seconds >= RATES_JUDGED_FROM_S;
    let rate_before = rates.measure_first(&soak_cluster, judges_rates).await?;
    soak_cluster.wait_for_no_zygotes().await?;
    let before = ResourceCounts::read_steady(soak_cluster.nodes()).await;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < plan.seconds && tally.faults.is_empty() {
        let round_script = RoundScript::random(&mut rng);
        SoakRound::new(&mut soak_cluster, &mut tally, &program).run(&round_script).await?;
        tally.rounds += 1;
        if show(&tally, began.elapsed()).is_break() {
            break;
        }
    }
    let elapsed_s = began.elapsed().as_secs_f64();
    let rate_after = rates.measure_last(&soak_cluster, &rate_before, judges_rates).await?;
    if judges_rates && elapsed_s >= RATES_JUDGED_FROM_S && !rate_after.is_not_slower_than(&rate_before) {
        tally.record_failure(format!("{rate_after:?} at the end, {rate_before:?} at the start"));
    }
    soak_cluster.wait_for_no_zygotes().await?;
    let counts = before.wait_released(soak_cluster.nodes()).await;
    counts.iter().filter_map(ResourceCount::leak_text).for_each(|leak| tally.record_failure(leak));
    tally.faults.extend(soak_cluster.stop()?);
    Ok(SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after })
}
