//! `farfork stress rpc`: many clients call one server for a while.

use std::env;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use farfork_bench::{RpcCase, RpcPlan, RunOutcome};
use serde_json::json;

use crate::commands::load::{LoadArgs, seconds};
use crate::interruption::Interruption;
use crate::{Global, output, privilege};

/// Client nodes, and threads of each, unless told otherwise: few enough for a small machine.
const USUAL: RpcCase = RpcCase { clients: 4, threads: 4, ..RpcCase::ONE };

/// Have many clients call one server, and judge.
///
/// A server and client nodes, each in a network namespace of its own. Says each interval's throughput as it passes. It
/// passes when no request failed, no answer had another checksum than its bytes, and no interval after the first, nor the
/// whole run, stayed below the floor.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress rpc                             a minute of empty calls by 4 nodes with 4 threads each
  farfork stress rpc --checksum --seconds 600    ten minutes of 2,048 random bytes, each answer verified

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct Rpc {
    #[command(flatten)]
    load: LoadArgs,
    /// Seconds that clients ask.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds between two counts of answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    report_interval: f64,
    /// Answers a second that no interval may stay below.
    #[arg(long, value_name = "N", default_value_t = 1000.0)]
    floor: f64,
}

impl Rpc {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        privilege::require_root("it makes network namespaces")?;
        let farfork = env::current_exe().context("the path of this program")?;
        let case = self.load.case(&USUAL);
        let plan = RpcPlan {
            cases: vec![case],
            runs: 1,
            client_seconds: self.seconds,
            server_seconds: self.seconds + 20.0,
            interval_seconds: self.report_interval.min(self.seconds),
            floors: false,
            samples_file: None,
        };
        let interruption = Interruption::watch()?;
        let mut show = |interval: usize, run: &RunOutcome| {
            if !global.json {
                output::line(&line(interval, run));
            }
            if interruption.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = farfork_bench::stress_rpc(&plan, &case, self.floor, &farfork, &mut show)?;
        if global.json {
            output::json(&json!({ "case": case, "passed": outcome.passed(), "outcome": outcome }));
        } else {
            outcome.faults.iter().for_each(|fault| output::line(&format!("FAULT: {fault}")));
            let verdict = if outcome.passed() { "passed" } else { "failed" };
            output::line(&format!("{verdict}: {:.0} answers a second over {} s", outcome.run.per_s, self.seconds));
        }
        Ok(if outcome.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn line(interval: usize, run: &RunOutcome) -> String {
    let per_s = run.intervals_per_s.last().copied().unwrap_or_default();
    format!("{:4}: {per_s:.0} answers/s, {} errors, {} damaged", interval + 1, run.errors, run.damaged)
}
