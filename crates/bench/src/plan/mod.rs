//! `farfork bench run PLAN.toml`: commands and experiments on the hosts of an inventory, in the order of a plan.

// document: the form of the file ──▶ validation: `BenchPlan` ──▶ run: rounds and their order
//                                                             └─▶ step: one step on its machines
//                                                                   └─▶ machine: a host, or this machine
// results: the directory with all output; `follow` shows a part of it. template: words with variables.

mod command;
mod document;
mod error;
mod machine;
mod results;
mod run;
mod step;
mod template;
#[cfg(test)]
mod tests;
mod validation;

use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_remote::inventory::Inventory;
use farfork_wire::NodeName;

pub(crate) use self::command::{CleanPlan, RunPlan};
use self::template::WordTemplate;

/// The variable with the directory of the plan.
const VARIABLE_PLAN: &str = "plan";
/// The variable with the name of the host on which a step runs.
const VARIABLE_HOST: &str = "host";
/// The variable with the address of the host on which a step runs. `address.NAME` has the address of another host.
const VARIABLE_ADDRESS: &str = "address";

/// A valid plan, made of a file such as this:
///
/// ```toml
/// inventory = "HOSTS.toml"
/// results = "results"              # default; relative to the plan
///
/// [defaults]                       # for steps without a value of their own
/// timeout_s = 600
///
/// [sweep]                          # one round for each combination of values
/// threads = [1, 4, 12]
///
/// [[sync]]                         # before the first step; only what differs is copied
/// from = "build/server"
/// to = "/opt/bench/server"
/// hosts = ["all"]
///
/// [[steps]]
/// name = "server"
/// hosts = ["n1"]
/// command = ["/opt/bench/server", "--threads", "{threads}"]
/// ready = { port = 8000 }          # or { line = "text" }, { file = "/path" }: it runs until the end of the round
///
/// [[steps]]
/// name = "clients"                 # after the step before it, unless `after` names others
/// hosts = ["clients"]
/// command = ["/opt/bench/client", "{address.n1}"]
///
/// [[steps]]
/// name = "table"
/// hosts = ["n1", "clients"]        # of the experiment, which runs on this machine
/// experiment = ["connect", "--threads", "{threads}"]
///
/// [[cleanup]]                      # always, also after a failure
/// name = "files"
/// hosts = ["all"]
/// command = ["rm", "-rf", "/tmp/scratch"]
/// ```
#[derive(Debug)]
struct BenchPlan {
    file: PathBuf,
    /// The value of [`VARIABLE_PLAN`].
    directory: String,
    /// Present if any step or synchronised path names hosts.
    inventory: Option<Inventory>,
    /// The directory of the results.
    results: PathBuf,
    sweep: Vec<SweepParameter>,
    sync: Vec<SyncedPath>,
    steps: Vec<PlanStep>,
    cleanup: Vec<PlanStep>,
}

/// A parameter with a value in each round.
#[derive(Debug)]
struct SweepParameter {
    name: String,
    values: Vec<String>,
}

/// A file or directory that hosts get.
#[derive(Debug)]
struct SyncedPath {
    from: PathBuf,
    to: String,
    hosts: Vec<NodeName>,
}

/// A command on one or several machines.
#[derive(Debug)]
struct PlanStep {
    name: String,
    program: StepProgram,
    words: Vec<WordTemplate>,
    machines: StepMachines,
    /// The hosts of an experiment that names some. Its words have them, too.
    experiment_hosts: Option<Vec<NodeName>>,
    directory: Option<WordTemplate>,
    environment: Vec<(String, WordTemplate)>,
    /// The indices of the steps that are complete before this one starts.
    after: Vec<usize>,
    /// Whether it runs before the rounds, once.
    once: bool,
    /// Whether its hosts run it one after the other.
    one_by_one: bool,
    /// When the next steps may start. The command then runs until the end of the round.
    ready: Option<ReadyCondition>,
    /// Limit on the time of one attempt, or on the time until it is ready.
    timeout: Duration,
    /// Further attempts after a failure.
    retries: u32,
}

/// The meaning of the words of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepProgram {
    /// A program and its arguments.
    Command,
    /// The arguments of `farfork bench`, without `bench`. The result is kept for a report.
    Experiment,
}

/// Where a step runs.
#[derive(Debug)]
enum StepMachines {
    /// On the machine of this program.
    Coordinator,
    /// On hosts of the inventory.
    Hosts(Vec<NodeName>),
}

/// When a command is ready, so that the steps after it may start.
#[derive(Debug)]
enum ReadyCondition {
    /// A line of its output contains this text.
    Line(String),
    /// Its machine listens at this TCP port.
    Port(u16),
    /// Its machine has this file.
    File(String),
}

impl PlanStep {
    /// Whether `--exclude` omits all of its hosts.
    fn is_skipped(&self) -> bool {
        self.hosts().is_some_and(<[NodeName]>::is_empty)
    }

    /// The hosts on which the step or its experiment runs; `None` if it names none.
    fn hosts(&self) -> Option<&[NodeName]> {
        match &self.machines {
            StepMachines::Hosts(hosts) => Some(hosts),
            StepMachines::Coordinator => self.experiment_hosts.as_deref(),
        }
    }
}

impl BenchPlan {
    /// Reads and validates a plan.
    fn read(file: &Path, overrides: &validation::PlanOverrides) -> Result<Self, error::PlanError> {
        let text =
            std::fs::read_to_string(file).map_err(|cause| error::PlanError::File { path: file.to_owned(), cause })?;
        validation::validate(file, &text, overrides)
    }

    /// All hosts that the plan uses, in the order of the inventory.
    fn hosts(&self) -> Vec<NodeName> {
        let of_step = |step: &PlanStep| step.hosts().unwrap_or_default().to_vec();
        let mut used: Vec<NodeName> = self.steps.iter().chain(&self.cleanup).flat_map(of_step).collect();
        used.extend(self.sync.iter().flat_map(|sync| sync.hosts.clone()));
        let hosts = self.inventory.iter().flat_map(|inventory| inventory.hosts());
        hosts.map(|host| host.name.clone()).filter(|name| used.contains(name)).collect()
    }

    /// The values of the parameters in each round: all combinations, in the order of the file's parameters.
    fn rounds(&self) -> Vec<template::Values> {
        let mut rounds = vec![template::Values::new()];
        for SweepParameter { name, values } in &self.sweep {
            let extend = |round: &template::Values| {
                values
                    .iter()
                    .map(|value| {
                        let mut round = round.clone();
                        round.insert(name.clone(), value.clone());
                        round
                    })
                    .collect::<Vec<_>>()
            };
            rounds = rounds.iter().flat_map(extend).collect();
        }
        rounds
    }
}
