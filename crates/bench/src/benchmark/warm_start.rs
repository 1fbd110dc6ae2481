//! `farfork bench warm-start`: a number of paused children, each of which runs a function when it is unpaused. They run in
//! turn with local forks that are paused by SIGSTOP or by a bare freezer. The number doubles as long as that increases the
//! rate.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{BenchResults, BenchRun, Benchmark};
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::experiment::pause_methods::{PauseMethod, PauseMethods};
use crate::figure::Figure;
use crate::options::{FunctionCallArgs, SamplesOption, count, parse_seconds, size};
use crate::reference::{PUBLISHED_FIGURES, PausedFunctionReference};
use crate::report::number_text::format_value;
use crate::report::plot::{PlotAxis, PlotKind, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::{FigureSamples, Spread};
use crate::workload::functions::failures::FunctionFailures;
use crate::workload::functions::{FunctionOptions, FunctionSource};
use crate::workload::parent_root::ParentRoot;
use crate::workload::warm_function::{FunctionRun, WarmWorkload};

/// Maximum number of children at the same time.
const PARALLEL_MAX: usize = 64;

/// The search continues only if twice as many children raise the rate at least by this factor.
const GAIN_MIN: f64 = 1.03;

/// Measure how many functions per second run in children that are paused before and after each function.
///
/// The benchmark starts a node on this machine, and paused children of one seed, each in its own container. It sends a child
/// a request, resumes the child, and pauses it again when its function has answered. It uses several children at the same
/// time. To find the best number, it doubles the number as long as the rate increases. It checks every answer. If a function
/// fails, the others are still measured, and its error is printed at the end.
///
/// The report has floors next to each figure, measured in turn in the same run: local forks that are stopped by the freezer
/// of a control group alone, and by SIGSTOP.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench warm-start                              search for the best number of children
  farfork bench warm-start --parallel 4,24,30 --steps 100000
  farfork bench warm-start helloworld json --parallel 1,2,4,8,16,24,30,32,64 --runs 3
  farfork bench warm-start helloworld --root /srv/image
  farfork bench warm-start --json --samples samples.jsonl

Exit status: 0 measured, 1 failed, a function failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchWarmStart {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: a C++ function of --steps].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse, conflicts_with_all = ["steps", "mib"])]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Number of children that run functions at the same time. Each of several numbers is a case
    /// [default: the best number, up to 64].
    #[arg(long, value_name = "C,…", value_delimiter = ',', value_parser = count(1..=256))]
    parallel: Vec<usize>,
    /// Number of steps that the function computes, some nanoseconds each. With 0, it answers immediately.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = size(0..=1_000_000_000))]
    steps: u64,
    /// Private memory of the parent, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = size(1..=65_536))]
    mib: u64,
    /// Number of rounds. Each round measures everything once.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = count(1..=10_000))]
    runs: usize,
    /// Time of each measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = parse_seconds)]
    seconds: f64,
    /// Directory that is the root of the parents and their children, such as an unpacked container image. It does not
    /// change: the parents see an overlay of it, without mounts below it.
    ///
    /// The benchmark's files, the files of your functions, and the Python of the nine functions are mounted in it. The
    /// Python of your own functions, and the one of --python, is in the directory, as are the C libraries of all of them.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    samples: SamplesOption,
}

/// Function runs per second of all children.
const RATE: Figure = Figure::higher("runs_per_s", "rate", "1/s");
/// Time from the request to unpause a child to the answer of its function: the median and the 99th percentile of a round.
const ANSWER: Figure = Figure::lower("answer_ms", "answer", "ms");
const ANSWER_P99: Figure = Figure::lower("answer_p99_ms", "answer, p99", "ms");

/// A program, how many of its children run at once, and how they are paused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct WarmStartCase {
    workload: String,
    parallel: usize,
    by: PauseMethod,
}

/// The name of each program, and the numbers of its parallel children that were measured.
type MeasuredWorkloads = Vec<(String, Vec<usize>)>;

impl BenchWarmStart {
    fn workloads(&self) -> Vec<WarmWorkload> {
        if self.functions.is_empty() {
            return vec![WarmWorkload::Steps { steps: self.steps, mib: self.mib }];
        }
        let function = |source| WarmWorkload::Function { source, payload: self.call.payload.clone() };
        FunctionSource::make_distinct(self.functions.clone()).into_iter().map(function).collect()
    }

    fn function_options(&self) -> Result<FunctionOptions, BenchError> {
        match self.root {
            Some(_) => Ok(self.call.options_in_root()),
            None => self.call.options(),
        }
    }
}

impl Benchmark for BenchWarmStart {
    const COMMAND: &'static str = "bench warm-start";
    const HOSTS_REFUSAL: Option<&'static str> =
        Some("it pauses children by their control groups, which only this machine has");

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let (workloads, options) = (self.workloads(), self.function_options()?);
        let mut samples = FigureSamples::create(&self.samples)?;
        let mut cluster = BenchCluster::start_nodes(&run.machines, 1, true, &[]).await?;
        // Dropped before the cluster, whose scratch directory it is in.
        let sources: Vec<_> = workloads.iter().filter_map(WarmWorkload::source).collect();
        let mount = |root: &PathBuf| ParentRoot::mount(root, cluster.machine(), &sources, &options);
        let root = self.root.as_ref().map(mount).transpose()?;
        let (mut measured, mut failures) = (MeasuredWorkloads::new(), FunctionFailures::default());
        for workload in &workloads {
            run.show(format!("starting {}", workload.name()))?;
            let parallel = measure_workload(self, workload, root.as_ref(), &mut cluster, &mut samples, run).await;
            if let Some(parallel) = failures.record(workload.name(), parallel)? {
                measured.push((workload.name().to_owned(), parallel));
            }
        }
        drop(root);
        cluster.stop()?;
        Ok(self.results(&measured, &samples, &failures.require_other(workloads.len())?))
    }
}

/// Measures one program. Returns the numbers of parallel children that were measured.
async fn measure_workload(
    plan: &BenchWarmStart,
    workload: &WarmWorkload,
    root: Option<&ParentRoot>,
    cluster: &mut BenchCluster,
    samples: &mut FigureSamples<WarmStartCase>,
    run: &mut BenchRun,
) -> Result<Vec<usize>, BenchError> {
    let most = plan.parallel.iter().copied().max().unwrap_or(PARALLEL_MAX);
    let pausers = PauseMethods::start(cluster, workload, &plan.function_options()?, root, most).await?;
    let mut warm_run = WarmStartRun { plan, workload: workload.name(), pausers, samples };
    let parallel = warm_run.measure(cluster, run).await;
    // Also if it failed: children that still run would take the processors from the next program.
    warm_run.pausers.stop(cluster).await?;
    parallel
}

/// One program, its children and its floors.
struct WarmStartRun<'a> {
    plan: &'a BenchWarmStart,
    workload: &'a str,
    pausers: PauseMethods,
    samples: &'a mut FigureSamples<WarmStartCase>,
}

impl WarmStartRun<'_> {
    /// Measures each number of parallel children in turn. Returns the numbers.
    async fn measure(&mut self, cluster: &mut BenchCluster, run: &mut BenchRun) -> Result<Vec<usize>, BenchError> {
        let found = match self.plan.parallel.as_slice() {
            [] => self.search_parallelism(cluster, run).await?,
            given => given.to_vec(),
        };
        run.expect_steps(self.plan.runs * found.len());
        for parallel in found.repeat(self.plan.runs) {
            run.show(format!("{}, {parallel} at once", self.workload))?;
            self.pausers.ensure_children(cluster, parallel).await?;
            for by in PauseMethod::ALL {
                self.measure_round(by, parallel).await?;
            }
            run.complete_step();
        }
        Ok(found)
    }

    /// The numbers of parallel children, each twice the previous one, up to the first that does not raise the rate.
    async fn search_parallelism(
        &mut self,
        cluster: &mut BenchCluster,
        run: &mut BenchRun,
    ) -> Result<Vec<usize>, BenchError> {
        let (mut found, mut best) = (vec![1], 0.0);
        loop {
            let parallel = found.last().copied().unwrap_or(1);
            run.show(format!("{}, {parallel} at once", self.workload))?;
            self.pausers.ensure_children(cluster, parallel).await?;
            let (took, turns) = self.run_functions(PauseMethod::FarforkHandle, parallel).await?;
            let per_s = turns.len() as f64 / took.as_secs_f64();
            if per_s < best * GAIN_MIN || parallel == PARALLEL_MAX {
                return Ok(found);
            }
            best = per_s;
            found.push(parallel * 2);
        }
    }

    async fn measure_round(&mut self, by: PauseMethod, parallel: usize) -> Result<(), BenchError> {
        let (took, turns) = self.run_functions(by, parallel).await?;
        // No turns: the machine lacks this floor.
        if turns.is_empty() {
            return Ok(());
        }
        let mut answers: Vec<f64> = turns.iter().map(|turn| turn.answer.as_secs_f64() * 1e3).collect();
        answers.sort_by(f64::total_cmp);
        let p99 = answers[(answers.len() * 99).div_ceil(100) - 1];
        let median = Spread::from_samples(&answers).map_or(0.0, |spread| spread.median);
        let case = WarmStartCase { workload: self.workload.to_owned(), parallel, by };
        self.samples.add(&case, RATE, turns.len() as f64 / took.as_secs_f64())?;
        self.samples.add(&case, ANSWER, median)?;
        self.samples.add(&case, ANSWER_P99, p99)
    }

    async fn run_functions(
        &mut self,
        by: PauseMethod,
        parallel: usize,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        let time = Duration::from_secs_f64(self.plan.seconds);
        self.pausers.run(by, parallel, time, Duration::ZERO).await
    }
}

impl BenchWarmStart {
    fn results(
        &self,
        measured: &MeasuredWorkloads,
        samples: &FigureSamples<WarmStartCase>,
        failures: &FunctionFailures,
    ) -> BenchResults {
        let question = "How many functions per second run in children that are paused before and after each call?";
        let title = if self.functions.is_empty() { "Warm starts" } else { "Warm starts of functions" };
        let section = ReportSection::new("warm_start", title, question)
            .with_table(best_table(measured, samples))
            .with_table(rate_table(measured, samples));
        let plots = measured.iter().map(|(workload, parallel)| rate_plot(workload, parallel, samples));
        let section = plots
            .fold(section, ReportSection::with_plot)
            .with_note(format!("Each child is paused before and after a call. Rounds of {} s.", self.seconds))
            .with_note("A client pauses and unpauses each child by its freezer, or by requests to the child's node.")
            .with_note(
                "Floors: local forks that are paused as many at once, by the freezer of a control group alone. Functions have \
                 only this floor. The ratio next to the rate of SIGSTOP is farfork's rate divided by it.",
            )
            .with_notes(measured.iter().map(|(workload, parallel)| best_text(workload, parallel, samples)))
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.warm_start.source))
            .with_notes(failures.sentences_or("No answer was wrong."));
        let figures =
            samples.to_json_with(None, |case, _, document| (!failures.contains(&case.workload)).then_some(document));
        let best = measured.iter().flat_map(|(workload, parallel)| {
            PauseMethod::ALL.into_iter().filter_map(move |by| {
                let (parallel, per_s) = find_best(workload, parallel, by, samples)?;
                Some(json!({ "workload": workload, "by": by, "parallel": parallel, "runs_per_s": per_s }))
            })
        });
        let reference = PUBLISHED_FIGURES.warm_start.functions.iter().map(
            |PausedFunctionReference { name, parallel, runs_per_s }| json!({ "function": name, "parallel": parallel, "runs_per_s": runs_per_s }),
        );
        let document = json!({
            "plan": {
                "workloads": self.workloads(),
                "parallel": self.parallel,
                "runs": self.runs,
                "seconds": self.seconds,
                "root": self.root,
            },
            "figures": figures,
            "best": best.collect::<Vec<_>>(),
            "failures": failures.to_json(),
            "reference": reference.collect::<Value>(),
        });
        BenchResults { is_complete: failures.is_empty(), ..BenchResults::new(section, document) }
    }
}

/// The number of parallel children with the highest rate, and that rate.
fn find_best(
    workload: &str,
    parallel: &[usize],
    by: PauseMethod,
    samples: &FigureSamples<WarmStartCase>,
) -> Option<(usize, f64)> {
    let rate = |&parallel: &usize| {
        let case = WarmStartCase { workload: workload.to_owned(), parallel, by };
        Some((parallel, samples.median(&case, RATE)?))
    };
    parallel.iter().filter_map(rate).max_by(|(_, one), (_, other)| one.total_cmp(other))
}

fn find_published(workload: &str) -> Option<&'static PausedFunctionReference> {
    PUBLISHED_FIGURES.warm_start.functions.iter().find(|reference| reference.name == workload)
}

/// The best rate of each method, and the published one.
fn best_text(workload: &str, parallel: &[usize], samples: &FigureSamples<WarmStartCase>) -> String {
    let best = PauseMethod::ALL.iter().filter_map(|by| {
        let (parallel, per_s) = find_best(workload, parallel, *by, samples)?;
        Some(format!("{} {} a second with {parallel} at once", by.text(), format_value(per_s)))
    });
    let published = find_published(workload).map(|PausedFunctionReference { parallel, runs_per_s, .. }| {
        format!("reference {} a second with {parallel} at once", format_value(*runs_per_s))
    });
    format!("Best of {workload}: {}.", best.chain(published).collect::<Vec<_>>().join(", "))
}

fn rate_table(measured: &MeasuredWorkloads, samples: &FigureSamples<WarmStartCase>) -> ReportTable {
    let title = "Functions per second, by how many children run at once";
    let columns = ["function", "at once", RATE.name, ANSWER.name, ANSWER_P99.name, "by requests", "rate of SIGSTOP"];
    let mut table = ReportTable::new("rate", title, &columns);
    for (workload, parallel) in measured {
        for parallel in parallel.iter().copied() {
            let case = |by| WarmStartCase { workload: workload.clone(), parallel, by };
            let farfork = case(PauseMethod::FarforkHandle);
            let floor = samples.median(&case(PauseMethod::BareFreezer), RATE);
            let signals = samples.figure(&case(PauseMethod::Signals), RATE);
            let ratio = samples.ratio(&farfork, &case(PauseMethod::Signals), RATE);
            table.add_row([
                ReportCell::text(workload),
                ReportCell::text(parallel),
                samples.figure(&farfork, RATE).map(|rate| rate.with_floor(floor)).into(),
                samples.cell(&farfork, ANSWER),
                samples.cell(&farfork, ANSWER_P99),
                samples.cell(&case(PauseMethod::Farfork), RATE),
                signals.map(|rate| rate.with_farfork_ratio(ratio)).into(),
            ]);
        }
    }
    table
}

/// The number of parallel children with the highest rate, next to the published one of the same function.
fn best_table(measured: &MeasuredWorkloads, samples: &FigureSamples<WarmStartCase>) -> ReportTable {
    let title = "The highest rate, and with how many at once";
    let mut table = ReportTable::new("best", title, &["function", RATE.name, "at once"]);
    for (workload, parallel) in measured {
        let best = find_best(workload, parallel, PauseMethod::FarforkHandle, samples);
        let Some((parallel, _)) = best else { continue };
        let published = find_published(workload);
        let case = |by| WarmStartCase { workload: workload.clone(), parallel, by };
        let floor = samples.median(&case(PauseMethod::BareFreezer), RATE);
        let rate = samples.figure(&case(PauseMethod::FarforkHandle), RATE);
        let rate = rate.map(|rate| rate.with_floor(floor).with_reference(published.map(|of| of.runs_per_s)));
        let at_once = ReportFigure::single(parallel as f64, "", BetterDirection::Neither)
            .with_reference(published.map(|of| of.parallel as f64));
        table.add_row([ReportCell::text(workload), rate.into(), Some(at_once).into()]);
    }
    table
}

fn rate_plot(workload: &str, parallel: &[usize], samples: &FigureSamples<WarmStartCase>) -> ReportPlot {
    let (x, y) = (PlotAxis::new("children at once", ""), PlotAxis::new("calls", RATE.unit));
    let plot = ReportPlot::new(PlotKind::Scaling, workload, format!("Warm starts of {workload}"), x, y);
    let series = [
        ("farfork", SeriesRole::Measured, PauseMethod::FarforkHandle),
        ("farfork by requests", SeriesRole::Measured, PauseMethod::Farfork),
        ("bare freezer", SeriesRole::Floor, PauseMethod::BareFreezer),
        ("SIGSTOP", SeriesRole::Floor, PauseMethod::Signals),
    ];
    series.into_iter().fold(plot, |plot, (name, role, by)| {
        let point = |&parallel: &usize| {
            samples.point(parallel as f64, &WarmStartCase { workload: workload.to_owned(), parallel, by }, RATE)
        };
        plot.with_series(name, role, parallel.iter().filter_map(point))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        BenchWarmStart, FigureSamples, FunctionFailures, PUBLISHED_FIGURES, PauseMethod, RATE, SamplesOption,
        WarmStartCase, find_best,
    };
    use crate::options::parse_arguments;

    #[test]
    fn the_best_number_is_named_next_to_floors() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (workload, parallel, by, per_s) in [
            ("steps", 1, PauseMethod::FarforkHandle, 1500.0),
            ("steps", 2, PauseMethod::FarforkHandle, 2500.0),
            ("steps", 4, PauseMethod::FarforkHandle, 2000.0),
            ("steps", 2, PauseMethod::Signals, 10_000.0),
            ("json", 8, PauseMethod::FarforkHandle, 150.0),
        ] {
            samples.add(&WarmStartCase { workload: workload.to_owned(), parallel, by }, RATE, per_s).unwrap();
        }
        let best = |by| find_best("steps", &[1, 2, 4], by, &samples);
        assert_eq!((best(PauseMethod::FarforkHandle), best(PauseMethod::BareFreezer)), (Some((2, 2500.0)), None));
        let plan: BenchWarmStart = parse_arguments(&[]);
        let measured = vec![("steps".to_owned(), vec![1, 2, 4]), ("json".to_owned(), vec![8])];
        let results = plan.results(&measured, &samples, &FunctionFailures::default());
        let (text, document) = (results.to_text(), results.to_json());
        let flat = text.replace('\n', " ");
        assert!(text.contains("(0.25 ×)") && flat.contains("farfork 2,500 a second with 2 at once"), "{text}");
        assert!(
            flat.contains("farfork 150 a second with 8 at once, reference 1,651 a second with 24 at once"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!((&document["best"][0]["parallel"], &document["best"][1]["by"]), (&2.into(), &"signals".into()));
        assert_eq!(document["best"][2]["workload"], "json");
    }

    #[test]
    fn the_best_warm_start_has_the_floor_of_equal_concurrency() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        let functions = &PUBLISHED_FIGURES.warm_start.functions;
        for (reference, parallel) in functions.iter().flat_map(|reference| [(reference, 1), (reference, 4)]) {
            for (by, per_s) in [(PauseMethod::FarforkHandle, 100.0), (PauseMethod::BareFreezer, 400.0)] {
                let case = WarmStartCase { workload: reference.name.clone(), parallel, by };
                samples.add(&case, RATE, per_s * parallel as f64).unwrap();
            }
        }
        let measured = functions.iter().map(|reference| (reference.name.clone(), vec![1, 4])).collect();
        let plan: BenchWarmStart = parse_arguments(&[]);
        let section = plan.results(&measured, &samples, &FunctionFailures::default()).section;
        let json = section.figure("best", "json", "rate");
        assert_eq!((json.median, json.floor, json.reference), (400.0, Some(1600.0), Some(1651.0)));
        section.require_published_rows();
    }
}
