//! `farfork bench run` and `farfork bench clean`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::output;
use serde_json::json;
use tonic::Code;

use super::Plan;
use super::error::PlanError;
use super::machine::Machines;
use super::results::{RunResults, follow};
use super::run::PlanRun;
use super::validation::PlanOverrides;
use crate::GlobalArgs;
use crate::machine;

/// The plan, and options that replace its values.
#[derive(Args)]
struct PlanArgs {
    /// File with the plan.
    plan: PathBuf,
    /// Use this inventory instead of the plan's.
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Do not use these hosts and groups, although steps name them.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    exclude: Vec<String>,
    /// Keep the results in this directory instead of the plan's.
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

impl PlanArgs {
    fn read(&self) -> anyhow::Result<Plan> {
        let Self { inventory, exclude, results, .. } = self;
        let (inventory, exclude, results) = (inventory.clone(), exclude.clone(), results.clone());
        Ok(Plan::read(&self.plan, &PlanOverrides { inventory, exclude, results }).map_err(failure)?)
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
            follow(&plan.results, host).map_err(failure)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.check {
            output::print_report(global.json, || check_document(&plan), || check_text(&plan));
            return Ok(ExitCode::SUCCESS);
        }
        let farfork = machine::find_farfork()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let results = RunResults::create(&plan.results, !global.json).map_err(failure)?;
        let hosts = plan.hosts();
        let ran = runtime.block_on(async {
            let machines = tokio::select! {
                () = wait_for_interrupt() => return Err(PlanError::Interrupted),
                machines = Machines::connect(plan.inventory.as_ref(), &hosts, &farfork) => machines?,
            };
            let farfork = farfork.to_string_lossy();
            let run = PlanRun {
                plan: &plan,
                machines: &machines,
                results: &results,
                farfork: &farfork,
                keeps_going: self.keep_going,
            };
            let ran = run.run(wait_for_interrupt()).await;
            let cleaned = run.clean_up(wait_for_interrupt()).await;
            machines.close().await;
            ran.and(cleaned)
        });
        let document = results.finish(&plan.file, ran.as_ref().err()).map_err(failure)?;
        output::print_report(global.json, || document, || format!("results: {}", results.directory().display()));
        ran.map_err(failure)?;
        Ok(ExitCode::SUCCESS)
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
        let farfork = machine::find_farfork()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let results = RunResults::create(&plan.results, !global.json).map_err(failure)?;
        let cleaned = runtime.block_on(async {
            let machines = Machines::connect(plan.inventory.as_ref(), &plan.hosts(), &farfork).await?;
            let farfork = farfork.to_string_lossy();
            let run =
                PlanRun { plan: &plan, machines: &machines, results: &results, farfork: &farfork, keeps_going: false };
            let cleaned = run.clean_up(wait_for_interrupt()).await;
            cleaned.and(machines.remove_copies(&plan.sync).await)
        });
        let document = results.finish(&plan.file, cleaned.as_ref().err()).map_err(failure)?;
        output::print_report(global.json, || document, || "cleaned".to_owned());
        cleaned.map_err(failure)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn check_document(plan: &Plan) -> serde_json::Value {
    let hosts: Vec<String> = plan.hosts().iter().map(ToString::to_string).collect();
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    json!({ "plan": plan.file, "hosts": hosts, "rounds": plan.rounds(), "steps": steps })
}

fn check_text(plan: &Plan) -> String {
    let hosts: Vec<String> = plan.hosts().iter().map(ToString::to_string).collect();
    let hosts = if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") };
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    format!("hosts: {hosts}\nrounds: {}\nsteps: {}", plan.rounds().len(), steps.join(", "))
}

/// The failure of a plan, as the commands print it.
fn failure(error: PlanError) -> Failure {
    let code = if matches!(error, PlanError::Interrupted) { Code::Cancelled } else { Code::FailedPrecondition };
    Failure::new(code, "the plan", error.to_string())
}
