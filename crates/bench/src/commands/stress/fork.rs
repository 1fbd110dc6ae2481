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

/// Have client processes on several nodes fork one parent's children, and judge.
///
/// Each client asks its own node for a child, waits for its result, checks that, and asks for the next. Says each second's
/// throughput as it passes. It passes when no request failed and no result was wrong, no client fell below the floor, and
/// the nodes have no more processes, namespaces, mounts, control groups, files, descriptors, threads and memory afterwards than
/// before.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork                                   a minute, two clients on each of three nodes
  farfork stress fork --nodes 2 --clients 1 --seconds 5 --json

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFork {
    /// Nodes; the parent is on the first.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
    nodes: u64,
    /// Client processes of each node.
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Seconds that clients fork.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Children a second that no client may fall below: none may be longer without one than that allows.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = parse_rate)]
    floor: f64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Containers that each node keeps ready [default: as many as a node does by itself].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: Option<u64>,
    /// Zygotes that each node keeps, 0 for none [default: as many as a node does by itself].
    #[arg(long, value_name = "N")]
    zygotes: Option<u64>,
    /// Whether memory is encrypted between the nodes; they prove who they are either way.
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

/// More than none.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("it must be a number of children a second, more than none".to_owned()),
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
