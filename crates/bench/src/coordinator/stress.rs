//! The course of `farfork stress rpc`: one long run, and a verdict on it.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::rpc::run_once;
use super::stage::Stage;
use crate::end::specification::System;
use crate::error::BenchError;
use crate::plan::rpc::{RpcCase, RpcPlan, RunOutcome};

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct StressOutcome {
    /// Of all clients.
    #[serde(flatten)]
    pub run: RunOutcome,
    /// The floor that no interval may fall below, in answers a second.
    pub floor_per_s: f64,
    /// What is wrong; nothing if it passed.
    pub faults: Vec<String>,
}

impl StressOutcome {
    /// The verdict.
    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Runs clients against a server for as long as the plan says, and judges. The first interval, in which connections are
/// made, may be slow. `show` is told of each interval
/// as it passes, and may end it.
///
/// # Errors
/// It could not be run.
pub fn stress_rpc(
    plan: &RpcPlan,
    case: &RpcCase,
    floor_per_s: f64,
    farfork: &Path,
    show: &mut dyn FnMut(usize, &RunOutcome) -> ControlFlow<()>,
) -> Result<StressOutcome, BenchError> {
    let stage = Stage::new("rpc", farfork, case.clients)?;
    let run = run_once(&stage, plan, case, System::Farfork, show)?;
    let faults = judge(&run, floor_per_s);
    Ok(StressOutcome { run, floor_per_s, faults })
}

fn judge(run: &RunOutcome, floor_per_s: f64) -> Vec<String> {
    let mut faults = Vec::new();
    if run.errors > 0 {
        faults.push(format!("{} requests failed", run.errors));
    }
    if run.damaged > 0 {
        faults.push(format!("{} answers had another checksum than their bytes", run.damaged));
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
    use super::{RunOutcome, judge};

    #[test]
    fn each_kind_of_fault_fails_the_run() {
        let good = RunOutcome { per_s: 900.0, intervals_per_s: vec![10.0, 1000.0, 800.0], ..RunOutcome::default() };
        assert!(judge(&good, 500.0).is_empty(), "the first interval may be slow");
        for bad in [
            RunOutcome { errors: 1, ..good.clone() },
            RunOutcome { damaged: 1, ..good.clone() },
            RunOutcome { intervals_per_s: vec![1000.0, 1000.0, 499.0], ..good.clone() },
            RunOutcome { per_s: 400.0, ..good.clone() },
        ] {
            assert_eq!(judge(&bad, 500.0).len(), 1, "{bad:?}");
        }
    }
}
