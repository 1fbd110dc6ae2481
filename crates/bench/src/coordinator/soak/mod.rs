//! The course of `farfork stress paging`: rounds of families on nodes that are harmed, until the time is over, between two
//! counts of what the nodes have of the machine.
//!
//! ```text
//! script ──▶ round ──▶ verdict ──▶ tally        script, verdict: pure
//!              │  ground: the nodes, and harm    census: before the first round and after the last
//! ```

mod census;
mod ground;
mod round;
mod script;
mod tally;
mod verdict;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

pub use self::census::Count;
pub use self::script::Kind;
pub use self::tally::Tally;

use self::census::Census;
use self::ground::Ground;
use self::round::Round;
use self::script::Script;
use crate::error::BenchError;
use crate::workload::wander::WANDER;

/// For a node to let go of what it keeps for a while: connections for half a minute, statistics, threads.
const LET_GO_LIMIT: Duration = Duration::from_secs(60);

/// Between two counts.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

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
    let program = WANDER.install(ground.scratch())?;
    let (mut tally, mut rng) = (Tally::default(), Rng::with_seed(plan.seed));
    let calm = Script::calm(&mut rng);
    Round::new(&mut ground, &mut tally, &program).run(&calm).await?;
    let before = steady(&ground).await;
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
    let counts = let_go(&ground, &before).await;
    for leak in counts.iter().filter(|count| count.is_leak()) {
        let Count { node, of, before, after, .. } = leak;
        tally.fault(format!("{node} has {after} {of}, and had {before} at the start"));
    }
    tally.faults.extend(ground.end()?);
    Ok(SoakOutcome { tally, elapsed_s, counts })
}

/// What the nodes have once no process or file of theirs comes or goes: containers are made in the background.
async fn steady(ground: &Ground) -> Census {
    let give_up = Instant::now() + LET_GO_LIMIT;
    let mut last = Census::take(ground.nodes());
    loop {
        tokio::time::sleep(COUNT_INTERVAL).await;
        let now = Census::take(ground.nodes());
        let is_steady = last.compare(&now).iter().all(|count| count.slack > 0 || count.before == count.after);
        if is_steady || Instant::now() >= give_up {
            return now;
        }
        last = now;
    }
}

/// Both counts, when nothing is left that was not there, or at the latest after the limit.
async fn let_go(ground: &Ground, before: &Census) -> Vec<Count> {
    let give_up = Instant::now() + LET_GO_LIMIT;
    loop {
        let counts = before.compare(&Census::take(ground.nodes()));
        if !counts.iter().any(Count::is_leak) || Instant::now() >= give_up {
            return counts;
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}
