//! The course of `farfork stress paging`: rounds of families on nodes that are harmed, until the time is over, between two
//! counts of what the nodes have of the machine, and two measurements of how fast they fork.
//!
//! ```text
//! script ──▶ round ──▶ verdict ──▶ tally        script, verdict: pure
//!              │  ground: the nodes, and harm    `census`, `rate`: before the first round and after the last
//!              │  fan: many children at once
//! ```

mod fan;
mod ground;
mod rate;
mod round;
mod script;
mod tally;
mod verdict;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

pub use self::rate::Rate;
pub use self::script::Kind;
pub use self::tally::Tally;

use self::ground::Ground;
use self::rate::Programs;
use self::round::Round;
use self::script::Script;
use crate::coordinator::census::{Census, Count};
use crate::error::BenchError;
use crate::workload::wander::WANDER;

/// How long a run has to be, in seconds, for its rates to be judged, and not only told. A minute among other tests begins and ends beside
/// whatever they do just then: what differs is what they do.
const RATES_JUDGED_FROM_S: f64 = 300.0;

/// What is to be run.
#[derive(Debug, Clone, Serialize)]
pub struct SoakPlan {
    /// A round begins as long as this has not passed since the first, in seconds.
    pub seconds: f64,
    /// What all choices come from.
    pub seed: u64,
    /// Whether memory is encrypted between the nodes.
    pub encrypted: bool,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct SoakOutcome {
    /// What happened.
    #[serde(flatten)]
    pub tally: Tally,
    /// How long, in seconds, the counts aside.
    pub elapsed_s: f64,
    /// What the nodes had, and have.
    pub counts: Vec<Count>,
    /// How fast children came before the first round.
    pub rate_before: Rate,
    /// After the last one.
    pub rate_after: Rate,
}

impl SoakOutcome {
    /// The verdict.
    pub fn passed(&self) -> bool {
        self.tally.faults.is_empty()
    }
}

/// Runs rounds. `show` is told of each that has passed, and may end the run, which is judged by what was until then. `farfork` is
/// the program whose `node` command the daemons are.
///
/// # Errors
/// It could not be run.
pub async fn soak_paging(
    plan: &SoakPlan,
    farfork: &Path,
    show: &mut dyn FnMut(&Tally, Duration) -> ControlFlow<()>,
) -> Result<SoakOutcome, BenchError> {
    let mut ground = Ground::start(farfork, plan.encrypted).await?;
    let (program, rates) = (WANDER.install(ground.scratch())?, Programs::install(ground.scratch())?);
    let (mut tally, mut rng) = (Tally::default(), Rng::with_seed(plan.seed));
    let calm = Script::calm(&mut rng);
    Round::new(&mut ground, &mut tally, &program).run(&calm).await?;
    let rate_before = rates.measure_first(&ground).await?;
    ground.wait_for_no_zygotes().await?;
    let before = Census::steady(ground.nodes()).await;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < plan.seconds && tally.faults.is_empty() {
        let script = Script::any(&mut rng);
        Round::new(&mut ground, &mut tally, &program).run(&script).await?;
        tally.rounds += 1;
        if show(&tally, began.elapsed()).is_break() {
            break;
        }
    }
    let elapsed_s = began.elapsed().as_secs_f64();
    let rate_after = rates.measure_last(&ground, &rate_before).await?;
    if elapsed_s >= RATES_JUDGED_FROM_S && !rate_after.is_kept(&rate_before) {
        tally.fault(format!("{rate_after:?} at the end, {rate_before:?} at the start"));
    }
    ground.wait_for_no_zygotes().await?;
    let counts = before.let_go(ground.nodes()).await;
    counts.iter().filter_map(Count::leak).for_each(|leak| tally.fault(leak));
    tally.faults.extend(ground.end()?);
    Ok(SoakOutcome { tally, elapsed_s, counts, rate_before, rate_after })
}
