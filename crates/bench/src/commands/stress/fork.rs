//! `farfork stress fork`: client processes on several nodes fork one parent's children for a while.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{StressForkOutcome, StressForkParameters};
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::{output, privilege};
use serde_json::json;

use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Fork children of one parent from client processes on several nodes, and judge the outcome.
///
/// Each client requests a child from its own node, waits for the child's result, checks the result, and requests the next
/// child. The test prints the throughput of each second.
///
/// The test passes if no request failed, no result was wrong, and no client fell below the floor. The nodes must also have
/// no more resources afterwards than before: processes, namespaces, mounts, control groups, files, descriptors, threads
/// and memory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork                                   a minute, two clients on each of three nodes
  farfork stress fork --nodes 2 --clients 1 --seconds 5 --json

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFork {
    /// Number of nodes. The parent is on the first node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
    nodes: u64,
    /// Number of client processes on each node.
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Time for which the clients fork, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Minimum rate of each client, in children per second. No client may wait longer for a child than the rate allows.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = parse_rate)]
    floor: f64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Number of containers that each node keeps ready [default: as `farfork node`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: Option<u64>,
    /// Maximum number of zygotes of each node; 0 for none [default: as `farfork node`].
    #[arg(long, value_name = "N")]
    zygotes: Option<u64>,
    /// Encrypt memory transfers between the nodes. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], default_value = "on")]
    encryption: String,
}

impl StressFork {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces a process, and makes namespaces and control groups")?;
        let farfork = program_path::farfork()?;
        let plan = StressForkParameters {
            nodes: self.nodes as usize,
            clients: self.clients as usize,
            seconds: self.seconds,
            floor_per_s: self.floor,
            mib: self.mib,
            pool: self.pool,
            zygotes: self.zygotes,
            encrypted: self.encryption == "on",
        };
        let interruption = InterruptFlag::watch()?;
        let mut show = |outcome: &StressForkOutcome| {
            if !global.json {
                let per_s = outcome.intervals_per_s.last().copied().unwrap_or_default();
                output::print_line(&format!("{:4}: {per_s:.0} children/s", outcome.intervals_per_s.len()));
            }
            if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(farfork_bench::stress_fork(&plan, &farfork, &mut show))?;
        if global.json {
            output::print_json(&json!({ "plan": plan, "passed": outcome.has_passed(), "outcome": outcome }));
        } else {
            output::print_line(&outcome_text(&outcome));
        }
        Ok(if outcome.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// A number of children per second above 0.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("write a number of children per second, above 0".to_owned()),
    }
}

fn outcome_text(outcome: &StressForkOutcome) -> String {
    let StressForkOutcome { children, per_s, p50_ms, p99_ms, longest_gap_ms, .. } = outcome;
    let mut lines: Vec<String> = outcome.faults.iter().map(|fault| format!("FAULT: {fault}")).collect();
    let verdict = if outcome.has_passed() { "passed" } else { "failed" };
    lines.push(format!(
        "{verdict}: {children} children, {per_s:.1} a second; from call to answer {p50_ms:.1} ms (p99 {p99_ms:.1}), {longest_gap_ms:.0} at most"
    ));
    let published_per_s = StressForkOutcome::published_per_s();
    lines.push(format!(
        "a published reference: {published_per_s:.0} a second for each client process, on other machines"
    ));
    lines.join("\n")
}
