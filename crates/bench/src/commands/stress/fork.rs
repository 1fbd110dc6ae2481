//! `farfork stress fork`: client processes on several nodes fork children of one parent for a while. `stress functions`
//! shares the arguments and the sequence of steps.

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{ForkWorkload, FunctionFailures, FunctionOptions, StressForkOutcome, StressForkParameters};
use farfork_terminal::interrupt::InterruptFlag;
use farfork_terminal::{output, privilege};
use serde_json::{Value, json};

use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// The sizes of MITOSIS's published stress tests: ten machines with twelve clients each, and the machine of the parent.
const DOCUMENT_NODES: usize = 11;
const DOCUMENT_CLIENTS: usize = 12;

/// Fork children of one parent from client processes on several nodes, and judge the outcome.
///
/// Each client requests a child from its own node, waits for the child's result, checks the result, and requests the next
/// child. The test prints the throughput of each second.
///
/// The test passes if no request failed, no result was wrong, no client fell below the floor, and neither a daemon nor the
/// kernel logged an error. The nodes must also have no more processes, namespaces, mounts, control groups and files
/// afterwards than before, and hardly more descriptors, threads and memory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork                                   a minute, two clients on each of three nodes
  farfork stress fork --nodes 2 --clients 1 --seconds 5 --json
  farfork stress fork --like-the-document               ten nodes of twelve clients, and the parent's node

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct StressFork {
    #[command(flatten)]
    load: ForkLoadArgs,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
}

impl StressFork {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let plan = self.load.plan(ForkWorkload::Sparse { mib: self.mib }, FunctionOptions::default());
        run_stress(global, &[plan])
    }
}

/// The clients and nodes of a fork load.
#[derive(Args)]
pub(super) struct ForkLoadArgs {
    /// Number of nodes. The parent is on the first node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=11))]
    nodes: u64,
    /// Number of client processes on each node.
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// The sizes of MITOSIS's stress tests: 11 nodes, and 12 clients on each node except the parent's.
    #[arg(long, conflicts_with_all = ["nodes", "clients"])]
    like_the_document: bool,
    /// Time for which the clients fork, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Minimum rate of each client, in children per second. No client may wait longer for a child than the rate allows.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = parse_rate)]
    floor: f64,
    /// Paging strategy of children, as `farfork fork --strategy` [default: as `farfork fork`].
    #[arg(long, value_name = "STRATEGY", default_value = "", hide_default_value = true)]
    strategy: String,
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

impl ForkLoadArgs {
    /// The parameters of a run with this workload.
    pub(super) fn plan(&self, workload: ForkWorkload, function_options: FunctionOptions) -> StressForkParameters {
        let (nodes, clients, parent_nodes) = match self.like_the_document {
            true => (DOCUMENT_NODES, DOCUMENT_CLIENTS, 1),
            false => (self.nodes as usize, self.clients as usize, 0),
        };
        StressForkParameters {
            nodes,
            clients,
            parent_nodes,
            workload,
            function_options,
            strategy: self.strategy.clone(),
            seconds: self.seconds,
            floor_per_s: self.floor,
            pool: self.pool,
            zygotes: self.zygotes,
            encrypted: self.encryption == "on",
        }
    }
}

/// Runs the plans one after the other. Succeeds if all passed. If a function fails before its run, the others still run.
///
/// # Errors
/// A run cannot be started for a reason other than its function, or no run was started: the error of the first.
pub(super) fn run_stress(global: &GlobalArgs, plans: &[StressForkParameters]) -> anyhow::Result<ExitCode> {
    privilege::require_root("it traces a process, and makes namespaces and control groups")?;
    let farfork = program_path::farfork()?;
    let interruption = InterruptFlag::watch()?;
    let mut show = |outcome: &StressForkOutcome| {
        if !global.json {
            let per_s = outcome.intervals_per_s.last().copied().unwrap_or_default();
            output::print_line(&format!("{:4}: {per_s:.0} children/s", outcome.intervals_per_s.len()));
        }
        if interruption.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut outcomes, mut failures) = (Vec::new(), FunctionFailures::default());
    for plan in plans {
        if !global.json && plans.len() > 1 {
            output::print_line(&format!("== {}", plan.workload.name()));
        }
        let outcome = runtime.block_on(farfork_bench::stress_fork(plan, &farfork, &mut show));
        let Some(outcome) = failures.record(plan.workload.name(), outcome)? else { continue };
        if !global.json {
            output::print_line(&outcome_text(plan, &outcome));
        }
        outcomes.push((plan, outcome));
    }
    let failures = failures.require_other(plans.len())?;
    if global.json {
        output::print_json(&stress_document(&outcomes, &failures));
    } else {
        failures.sentences().for_each(|sentence| output::print_line(&sentence));
    }
    let has_passed = failures.is_empty() && outcomes.iter().all(|(_, outcome)| outcome.has_passed());
    Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the document for scripts. The keys of a single run are at the top level, and several runs are in the list
/// `runs`, next to the list `failures`. Both forms have the key `section`: the section of a report about these runs.
fn stress_document(outcomes: &[(&StressForkParameters, StressForkOutcome)], failures: &FunctionFailures) -> Value {
    let run = |(plan, outcome): &(&StressForkParameters, StressForkOutcome)| json!({ "plan": plan, "passed": outcome.has_passed(), "outcome": outcome });
    let mut document = match outcomes {
        [only] if failures.is_empty() => run(only),
        all => json!({ "runs": all.iter().map(run).collect::<Vec<_>>(), "failures": failures.to_json() }),
    };
    document["section"] = StressForkOutcome::section_json(outcomes);
    document
}

/// Parses a number of children per second above 0.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("write a number of children per second, above 0".to_owned()),
    }
}

fn outcome_text(plan: &StressForkParameters, outcome: &StressForkOutcome) -> String {
    let StressForkOutcome { children, per_s, p50_ms, p99_ms, longest_gap_ms, .. } = outcome;
    let mut lines: Vec<String> = outcome.faults.iter().map(|fault| format!("FAULT: {fault}")).collect();
    let verdict = if outcome.has_passed() { "passed" } else { "failed" };
    lines.push(format!(
        "{verdict}: {children} children, {per_s:.1} a second; from call to answer: median {p50_ms:.1} ms, \
         p99 of the slowest client {p99_ms:.1} ms; at most {longest_gap_ms:.0} ms without an answer"
    ));
    lines.extend(
        StressForkOutcome::published_per_s(&plan.workload).map(|per_s| {
            format!("a published reference: {per_s:.0} a second for each client process, on other machines")
        }),
    );
    lines.join("\n")
}
