//! `farfork bench`: one module per benchmark. Each has the arguments, the steps and the figures of its benchmark.
//! `run_benchmark` runs any of them, and prints its results.

mod all;
mod churn;
mod connect;
mod fanout;
mod fault;
mod fork;
mod function;
mod internal;
mod peak;
mod pool;
mod report;
pub(crate) mod rpc;
mod tree;
pub(crate) mod volume;
mod warm_start;

use std::cell::RefCell;
use std::future::Future;
use std::io::{IsTerminal as _, stderr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser as _, Subcommand};
use farfork_api::failure::Failure;
use farfork_terminal::interrupt::{InterruptFlag, wait_for_interrupt};
use farfork_terminal::output;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tonic::Code;

use crate::error::BenchError;
use crate::experiment::host_report::{HostReport, with_hosts};
use crate::machine::description::MachineState;
use crate::machine::source::{MachineNeeds, MachineSource, OnHosts};
use crate::plan::{CleanPlan, RunPlan};
use crate::report::section::ReportSection;
use crate::report::text;
use crate::{Cli, Command, GlobalArgs};

/// The variable that a plan sets for its experiments: they print their progress and their tables as lines on standard error.
pub(crate) const PROGRESS_VARIABLE: &str = "FARFORK_BENCH_PROGRESS";

/// Least time between two lines about the current step.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Measure what farfork costs on this machine, next to a floor for each figure.
///
/// A floor is the least that the same work costs without farfork. Each benchmark starts its own nodes, as `farfork up`
/// does. At its end it removes everything that it created, even if it is killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fork --mib 1,64 --runs 5
  farfork bench fork --json > figures.json
  farfork bench function json image
  farfork bench rpc --runs 1
  farfork bench connect
  farfork bench fault
  farfork bench churn
  farfork bench fanout
  farfork bench tree
  farfork bench peak helloworld --nodes 2
  farfork bench pool
  farfork bench warm-start
  farfork bench volume latency
  farfork bench all --quick
  farfork bench report farfork-bench
  farfork bench run plan.toml

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    benchmark: BenchmarkCommand,
}

#[derive(Subcommand)]
enum BenchmarkCommand {
    Fork(OnHosts<fork::BenchFork>),
    Function(OnHosts<function::BenchFunction>),
    Rpc(OnHosts<rpc::BenchRpc>),
    Connect(OnHosts<connect::BenchConnect>),
    Fault(OnHosts<fault::BenchFault>),
    Churn(OnHosts<churn::BenchChurn>),
    Fanout(OnHosts<fanout::BenchFanout>),
    Tree(OnHosts<tree::BenchTree>),
    Peak(OnHosts<peak::BenchPeak>),
    Pool(OnHosts<pool::BenchPool>),
    WarmStart(OnHosts<warm_start::BenchWarmStart>),
    Volume(OnHosts<volume::BenchVolume>),
    All(OnHosts<all::BenchAll>),
    Report(report::BenchReport),
    Run(RunPlan),
    Clean(CleanPlan),
    #[command(hide = true)]
    Process(internal::BenchProcess),
    #[command(hide = true)]
    Remover(internal::BenchRemover),
}

impl BenchCommand {
    /// Whether it measures something, once.
    fn is_experiment(&self) -> bool {
        use BenchmarkCommand::{Clean, Process, Remover, Report, Run};
        !matches!(self.benchmark, Report(_) | Run(_) | Clean(_) | Process(_) | Remover(_))
    }

    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.benchmark {
            BenchmarkCommand::Fork(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Function(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Rpc(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Connect(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Fault(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Churn(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Fanout(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Tree(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Peak(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Pool(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::WarmStart(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::Volume(benchmark) => run_benchmark(&benchmark, global),
            BenchmarkCommand::All(suite) => suite.experiment.run(&suite.hosts, global),
            BenchmarkCommand::Report(report) => report.run(global),
            BenchmarkCommand::Run(plan) => plan.run(global),
            BenchmarkCommand::Clean(plan) => plan.run(global),
            BenchmarkCommand::Process(process) => process.run(),
            BenchmarkCommand::Remover(remover) => remover.run(),
        }
    }
}

/// Checks the arguments of `farfork bench` for an experiment of a plan. Returns the first paragraph of clap's error.
pub(crate) fn check_experiment(words: &[String]) -> Result<(), String> {
    let line = ["farfork", "bench"].into_iter().chain(words.iter().map(String::as_str)).chain(["--json"]);
    let parsed = Cli::try_parse_from(line).map_err(|error| {
        let text = error.to_string();
        let words = text.split("\n\n").next().unwrap_or_default().split_whitespace();
        words.skip_while(|word| *word == "error:").collect::<Vec<_>>().join(" ")
    })?;
    match parsed.command {
        Command::Bench(command) if command.is_experiment() => Ok(()),
        _ => Err(format!("'{}' measures nothing", words.first().map_or("", String::as_str))),
    }
}

/// A benchmark. The value has its arguments.
pub(crate) trait Benchmark {
    /// The command, such as `bench rpc`.
    const COMMAND: &'static str;

    /// Why it needs root: completes "it needs root:".
    const ROOT_REASON: &'static str = "it traces a process, and makes namespaces and control groups";

    /// Why it cannot run on hosts; `None` if it can. A clause.
    const HOSTS_REFUSAL: Option<&'static str>;

    /// Measures everything once.
    ///
    /// # Errors
    /// A step failed, so there are no results.
    fn measure(&self, run: &mut BenchRun) -> impl Future<Output = Result<BenchResults, BenchError>>;

    /// Exits with a message if the arguments contradict each other.
    fn check(&self) {}
}

/// The results of a benchmark.
#[derive(Debug)]
pub(crate) struct BenchResults {
    /// The tables and plots, which `--json`, the text and reports show.
    pub(crate) section: ReportSection,
    /// Further keys of the document for scripts.
    pub(crate) document: Value,
    /// Whether everything was measured, without a wrong result.
    pub(crate) is_complete: bool,
}

impl BenchResults {
    pub(crate) fn new(section: ReportSection, document: Value) -> Self {
        Self { section, document, is_complete: true }
    }

    /// Adds the hosts of the run; none on this machine.
    fn with_hosts(mut self, reports: &[HostReport]) -> Self {
        if !reports.is_empty() {
            self.section = with_hosts(self.section, reports);
            self.document["hosts"] = json!(reports);
        }
        self
    }

    /// The document for scripts.
    pub(crate) fn to_json(&self) -> Value {
        let MachineState { machine, load_average } = MachineState::detect();
        let mut document = json!({ "benchmark": self.section.id, "machine": machine, "load_average": load_average });
        document["section"] = json!(self.section);
        if let (Value::Object(document), Value::Object(keys)) = (&mut document, &self.document) {
            document.extend(keys.clone());
        }
        document
    }

    /// The text for people.
    pub(crate) fn to_text(&self) -> String {
        text::render(&self.section)
    }
}

/// A run of a benchmark: its machines, and its progress, which is shown on a terminal, or as lines for a plan.
#[derive(Debug)]
pub(crate) struct BenchRun {
    pub(crate) machines: MachineSource,
    bar: ProgressBar,
    interruption: InterruptFlag,
    /// Whether standard output is for one JSON document.
    json: bool,
    /// Present with [`PROGRESS_VARIABLE`].
    lines: Option<ProgressLines>,
}

/// Progress as lines on standard error.
#[derive(Debug, Default)]
struct ProgressLines {
    /// The last step that was printed, and the time.
    last: RefCell<Option<(Instant, String)>>,
}

impl ProgressLines {
    /// Prints a new step, unless the last one was printed just now.
    fn show(&self, step: &str) {
        let mut last = self.last.borrow_mut();
        let is_due = |(at, text): &(Instant, String)| text != step && at.elapsed() >= PROGRESS_INTERVAL;
        if last.as_ref().is_none_or(is_due) {
            eprintln!("{step}");
            *last = Some((Instant::now(), step.to_owned()));
        }
    }
}

impl BenchRun {
    fn new(machines: MachineSource, json: bool) -> anyhow::Result<Self> {
        let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:28} {bar:40} {elapsed} of about {duration}");
        bar.set_style(style.expect("the template is valid"));
        let lines = std::env::var_os(PROGRESS_VARIABLE).map(|_| ProgressLines::default());
        Ok(Self { machines, bar, interruption: InterruptFlag::watch()?, json, lines })
    }

    /// Sets the number of steps. No step is complete.
    pub(crate) fn expect_steps(&mut self, steps: usize) {
        self.bar.set_length(steps as u64);
        self.bar.set_position(0);
    }

    /// Shows the current step.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`] after an interrupt.
    pub(crate) fn show(&self, step: impl Into<String>) -> Result<(), BenchError> {
        let step = step.into();
        self.lines.iter().for_each(|lines| lines.show(&step));
        self.bar.set_message(step);
        if self.interruption.is_set() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Prints a line while the run continues. Standard output may be for one document.
    pub(crate) fn print_line(&self, line: &str) {
        if self.lines.is_some() {
            eprintln!("{line}");
        } else if !self.json {
            self.bar.suspend(|| output::print_line(line));
        }
    }

    /// Counts a completed step.
    pub(crate) fn complete_step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for BenchRun {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs a benchmark, and prints its results. An interrupt drops the run, which ends everything that it has started.
pub(crate) fn run_benchmark<B: Benchmark + Args>(
    arguments: &OnHosts<B>,
    global: &GlobalArgs,
) -> anyhow::Result<ExitCode> {
    let OnHosts { hosts, experiment: benchmark } = arguments;
    benchmark.check();
    let needs = MachineNeeds { command: B::COMMAND, root_reason: B::ROOT_REASON, hosts_refusal: B::HOSTS_REFUSAL };
    let mut run = BenchRun::new(MachineSource::open(hosts, needs, global)?, global.json)?;
    // Use a single thread. With several threads, the figures would include hand-overs between them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let results = runtime.block_on(async {
        tokio::select! {
            biased;
            () = wait_for_interrupt() => Err(Failure::new(Code::Cancelled, "the benchmark", "it was interrupted").into()),
            results = benchmark.measure(&mut run) => results.map_err(anyhow::Error::from),
        }
    });
    let results = match results {
        Ok(results) => results.with_hosts(&run.machines.report_hosts()?),
        Err(error) => {
            // The logs of hosts may have the cause. A host that does not answer is named by the error.
            if !run.interruption.is_set() {
                let reports = run.machines.report_hosts().unwrap_or_default();
                reports.iter().flat_map(|report| report.faults(true)).for_each(|fault| eprintln!("farfork: {fault}"));
            }
            return Err(error);
        }
    };
    if run.lines.is_some() {
        eprintln!("{}", results.to_text());
    }
    drop(run);
    output::print_report(global.json, || results.to_json(), || results.to_text());
    Ok(if results.is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
