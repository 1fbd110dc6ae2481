//! `farfork bench run` and `farfork bench clean`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::output;
use serde_json::json;
use tonic::Code;

use super::error::PlanError;
use super::machine::{COORDINATOR, ConnectedMachines};
use super::results::{RunResults, follow};
use super::run::PlanRun;
use super::validation::PlanOverrides;
use super::{BenchPlan, PlanStep};
use crate::GlobalArgs;
use crate::machine;

/// The plan, and options that replace its values.
#[derive(Args)]
struct PlanArgs {
    /// File with the plan.
    plan: PathBuf,
    #[command(flatten)]
    overrides: PlanOverrides,
}

impl PlanArgs {
    fn read(&self) -> anyhow::Result<BenchPlan> {
        Ok(BenchPlan::read(&self.plan, &self.overrides).map_err(failure)?)
    }
}

/// Run commands and experiments on hosts, in the order of a plan.
///
/// The plan is checked before anything runs. The output of all hosts is printed with their names, and kept in one directory
/// for each run. The first failure ends the round. Then, and after Ctrl-C, all commands are ended and the plan's cleanup runs.
/// If this program is killed, each host ends its commands within a minute.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench run plan.toml
  farfork bench run plan.toml --exclude n4,n5
  farfork bench run plan.toml --set threads=1 --set threads=4
  farfork bench run plan.toml --check
  farfork bench run plan.toml --follow n1
  farfork bench report results/latest/experiments

The guide `coordinator.md` describes plans.

Exit status: 0 all steps succeeded, 1 failure, 2 wrong usage.")]
pub(crate) struct RunPlan {
    #[command(flatten)]
    plan: PlanArgs,
    /// Only check the plan, and show its rounds and steps.
    #[arg(long)]
    check: bool,
    /// After a failure, continue with the next round.
    #[arg(long, conflicts_with = "check")]
    keep_going: bool,
    /// Print the output of this host in the last run, until that run ends. Runs nothing. HERE is this machine.
    #[arg(long, value_name = "HOST", conflicts_with_all = ["check", "keep_going"])]
    follow: Option<String>,
}

impl RunPlan {
    pub(crate) fn run(&self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let plan = self.plan.read()?;
        if let Some(host) = &self.follow {
            if host != COORDINATOR && !plan.hosts().iter().any(|name| name.as_str() == host) {
                let known: Vec<String> = plan.hosts().iter().map(ToString::to_string).collect();
                let cause = format!("no host `{host}` in the plan; it has {COORDINATOR}, {}", known.join(", "));
                return Err(Failure::new(Code::NotFound, "the plan", cause).into());
            }
            follow(&plan.results, host).map_err(failure)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.check {
            output::print_report(global.json, || check_document(&plan), || check_text(&plan));
            return Ok(ExitCode::SUCCESS);
        }
        let results = RunResults::create(&plan.results, !global.json).map_err(failure)?;
        results.link_latest().map_err(failure)?;
        let text = format!("results: {}", results.directory().display());
        execute(&plan, &results, global, "bench run", &text, async |mut machines| {
            machines.take_failures()?;
            let run = PlanRun { plan: &plan, machines: &machines, results: &results, keeps_going: self.keep_going };
            let results = [run.run(wait_for_interrupt()).await, run.clean_up(wait_for_interrupt()).await];
            machines.close().await;
            PlanError::collect(results)
        })
    }
}

/// Run the cleanup of a plan, and remove the files that it has copied to hosts.
///
/// Needed only if `farfork bench run` was killed, or to remove the copied files.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench clean plan.toml

Exit status: 0 everything is removed, 1 failure, 2 wrong usage.")]
pub(crate) struct CleanPlan {
    #[command(flatten)]
    plan: PlanArgs,
}

impl CleanPlan {
    pub(crate) fn run(&self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let plan = self.plan.read()?;
        let results = RunResults::create(&plan.results, !global.json).map_err(failure)?;
        execute(&plan, &results, global, "bench clean", "cleaned", async |mut machines| {
            // The other hosts are cleaned, too.
            let connected = machines.take_failures();
            let run = PlanRun { plan: &plan, machines: &machines, results: &results, keeps_going: false };
            let cleaned = run.clean_up(wait_for_interrupt()).await;
            PlanError::collect([connected, cleaned, machines.remove_copies(&plan.sync).await])
        })
    }
}

/// Connects to the hosts of a plan for `command`, does the work there, and prints the outcome. `text` is for people, after a
/// success.
fn execute(
    plan: &BenchPlan,
    results: &RunResults,
    global: &GlobalArgs,
    command: &'static str,
    text: &str,
    work: impl AsyncFnOnce(ConnectedMachines) -> Result<(), PlanError>,
) -> anyhow::Result<ExitCode> {
    let (farfork, hosts) = (machine::find_farfork()?, plan.hosts());
    // Heartbeats are sent by another thread than the one that prints: a terminal may block it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let done = runtime.block_on(async {
        let machines = tokio::select! {
            () = wait_for_interrupt() => return Err(PlanError::Interrupted),
            machines = ConnectedMachines::connect(plan, &hosts, &farfork, command) => machines?,
        };
        work(machines).await
    });
    let mut document = results.finish(&plan.file, done.as_ref().err()).map_err(failure)?;
    let Err(error) = done else {
        output::print_report(global.json, || document, || text.to_owned());
        return Ok(ExitCode::SUCCESS);
    };
    let (error, directory) = (failure(error), results.directory().display());
    // The one document has the error, as the documents of other commands do.
    document["error"] = json!(error.to_string());
    output::print_report(global.json, || document, || format!("results: {directory}"));
    output::print_failure(&error);
    Ok(ExitCode::FAILURE)
}

fn check_document(plan: &BenchPlan) -> serde_json::Value {
    let hosts: Vec<String> = plan.hosts().iter().map(ToString::to_string).collect();
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    let skipped: Vec<&str> =
        plan.steps.iter().filter(|step| step.is_skipped()).map(|step| step.name.as_str()).collect();
    json!({ "plan": plan.file, "hosts": hosts, "rounds": plan.rounds(), "steps": steps, "skipped": skipped })
}

fn check_text(plan: &BenchPlan) -> String {
    let hosts: Vec<String> = plan.hosts().iter().map(ToString::to_string).collect();
    let hosts = if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") };
    let note = |step: &PlanStep| if step.is_skipped() { " (skipped)" } else { "" };
    let steps: Vec<String> = plan.steps.iter().map(|step| format!("{}{}", step.name, note(step))).collect();
    format!("hosts: {hosts}\nrounds: {}\nsteps: {}", plan.rounds().len(), steps.join(", "))
}

/// The failure of a plan, as the commands print it.
fn failure(error: PlanError) -> Failure {
    let code = if error.is_interruption() { Code::Cancelled } else { Code::FailedPrecondition };
    Failure::new(code, "the plan", error.to_string())
}
