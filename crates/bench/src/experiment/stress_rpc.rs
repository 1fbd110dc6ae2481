//! Runs `farfork stress rpc`: one long run of calls, and its verdict.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::rpc::run_once;
use super::testbed::Testbed;
use crate::endpoint::specification::RpcSystem;
use crate::error::BenchError;
use crate::parameters::rpc::{RpcCase, RpcParameters, RpcRunOutcome};

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct StressRpcOutcome {
    /// The measurements of all clients.
    #[serde(flatten)]
    pub run: RpcRunOutcome,
    /// The minimum rate of each interval, in answers per second.
    pub floor_per_s: f64,
    /// Reasons why the run has failed; empty if it passed.
    pub faults: Vec<String>,
}

impl StressRpcOutcome {
    /// Whether the run has passed.
    pub fn has_passed(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Runs clients against a server for the time of the plan, and judges the run. The first interval may be slow, since it
/// includes connecting. `show` receives each interval, and may end the run.
///
/// # Errors
/// The run cannot be started.
pub fn stress_rpc(
    plan: &RpcParameters,
    case: &RpcCase,
    floor_per_s: f64,
    farfork: &Path,
    show: &mut dyn FnMut(usize, &RpcRunOutcome) -> ControlFlow<()>,
) -> Result<StressRpcOutcome, BenchError> {
    let stage = Testbed::new(farfork, case.clients)?;
    let run = run_once(&stage, plan, case, RpcSystem::Farfork, show)?;
    let faults = judge_run(&run, floor_per_s);
    Ok(StressRpcOutcome { run, floor_per_s, faults })
}

fn judge_run(run: &RpcRunOutcome, floor_per_s: f64) -> Vec<String> {
    let mut faults = Vec::new();
    if run.errors > 0 {
        faults.push(format!("{} requests failed", run.errors));
    }
    if run.damaged > 0 {
        faults.push(format!("{} answers had a wrong checksum", run.damaged));
    }
    for (interval, per_s) in run.intervals_per_s.iter().enumerate().skip(1) {
        if *per_s < floor_per_s {
            faults.push(format!("interval {}: {per_s:.0} answers a second, {floor_per_s:.0} at least", interval + 1));
        }
    }
    if run.per_s < floor_per_s {
        faults.push(format!("the whole run: {:.0} answers a second, {floor_per_s:.0} at least", run.per_s));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{RpcRunOutcome, judge_run};

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let good =
            RpcRunOutcome { per_s: 900.0, intervals_per_s: vec![10.0, 1000.0, 800.0], ..RpcRunOutcome::default() };
        assert!(judge_run(&good, 500.0).is_empty(), "the first interval may be slow");
        for bad in [
            RpcRunOutcome { errors: 1, ..good.clone() },
            RpcRunOutcome { damaged: 1, ..good.clone() },
            RpcRunOutcome { intervals_per_s: vec![1000.0, 1000.0, 499.0], ..good.clone() },
            RpcRunOutcome { per_s: 400.0, ..good.clone() },
        ] {
            assert_eq!(judge_run(&bad, 500.0).len(), 1, "{bad:?}");
        }
    }
}
