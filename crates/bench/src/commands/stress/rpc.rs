//! `farfork stress rpc`: many clients call one server for a while.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{RpcCase, RpcParameters, RpcRunOutcome};
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::{output, privilege};
use serde_json::json;

use crate::commands::load::{LoadArgs, parse_seconds, require_interval};
use crate::{GlobalArgs, program_path};

/// The default case: few enough nodes and threads for a small machine.
const DEFAULT_CASE: RpcCase = RpcCase { clients: 4, threads: 4, ..RpcCase::SINGLE_CONNECTION };

/// Call one server from many clients, and judge the outcome.
///
/// The server and each client node are in their own network namespaces. The test prints the throughput of each interval.
///
/// The test passes if no request failed and the checksum of each answer matched the answer's bytes. The whole run, and each
/// interval after the first, must also reach the floor.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress rpc                             a minute of empty calls by 4 nodes with 4 threads each
  farfork stress rpc --checksum --seconds 600    ten minutes of 2,048 random bytes, each answer verified

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressRpc {
    /// Number of client nodes. Each is a process in its own network namespace [default: 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10))]
    clients: Option<u64>,
    #[command(flatten)]
    load: LoadArgs,
    /// Time for which the clients send requests, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Time between two counts of answers, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    report_interval: f64,
    /// Minimum number of answers per second in each interval.
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = parse_floor)]
    floor: f64,
}

impl StressRpc {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it makes network namespaces")?;
        let farfork = program_path::farfork()?;
        let clients = self.clients.map_or(DEFAULT_CASE.clients, |clients| clients as usize);
        let case = self.load.to_case(&RpcCase { clients, ..DEFAULT_CASE });
        let plan = RpcParameters {
            cases: vec![case],
            runs: 1,
            client_seconds: self.seconds,
            server_seconds: self.seconds + 20.0,
            interval_seconds: require_interval(self.report_interval, self.seconds),
            floors: false,
            samples_file: None,
        };
        let interruption = InterruptFlag::watch()?;
        let mut show = |interval: usize, run: &RpcRunOutcome| {
            if !global.json {
                output::print_line(&interval_text(interval, run));
            }
            if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = farfork_bench::stress_rpc(&plan, &case, self.floor, &farfork, &mut show)?;
        if global.json {
            let section = outcome.to_section_json(&plan, &case);
            let passed = outcome.has_passed();
            output::print_json(&json!({ "case": case, "passed": passed, "outcome": outcome, "section": section }));
        } else {
            outcome.faults.iter().for_each(|fault| output::print_line(&format!("FAULT: {fault}")));
            let verdict = if outcome.has_passed() { "passed" } else { "failed" };
            output::print_line(&format!(
                "{verdict}: {:.0} answers a second over {} s",
                outcome.run.per_s, self.seconds
            ));
        }
        Ok(if outcome.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Parses a number of answers per second. NaN would be reached by every rate.
fn parse_floor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("write a number of answers per second, such as 1000".to_owned()),
    }
}

fn interval_text(interval: usize, run: &RpcRunOutcome) -> String {
    let per_s = run.intervals_per_s.last().copied().unwrap_or_default();
    format!("{:4}: {per_s:.0} answers/s, {} errors, {} damaged", interval + 1, run.errors, run.damaged)
}

#[cfg(test)]
mod tests {
    use super::parse_floor;

    #[test]
    fn a_floor_is_a_number_that_rates_can_miss() {
        assert!(["0", "1000", "0.5", "1e6"].iter().all(|text| parse_floor(text).is_ok()));
        assert!(["-1", "nan", "inf", "many", ""].iter().all(|text| parse_floor(text).is_err()));
    }
}
