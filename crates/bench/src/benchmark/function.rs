//! `farfork bench function`: prepare, resume and execution of Python functions. For each function, a seed and its first child
//! on each node, in turn with a child of os.fork().

use clap::Args;
use farfork_api::v1::{PagerStats, Phase};
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::error::BenchError;
use crate::experiment::local_cluster::{BenchCluster, ForkOptions};
use crate::figure::{ChildPlace, Figure, MIB_BYTES};
use crate::options::{FunctionCallArgs, SamplesOption, count};
use crate::reference::{FunctionReference, PUBLISHED_FIGURES};
use crate::report::plot::{BarTitles, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::functions::failures::FunctionFailures;
use crate::workload::functions::{FunctionOptions, FunctionParent, FunctionSource};
use crate::workload::micro::{PAGE_BYTES, ns_to_ms};

/// Measure Python functions in children: nine serverless functions, or a function of your own.
///
/// Starts two nodes on this machine, and a Python process for each function, which calls the function twice. Then makes a
/// seed of the process, and the seed's first child on each node. The child calls the function once. A child of os.fork()
/// does the same, for comparison. Each result is compared with the parent's.
///
/// A function is a Python file with `handler(payload)`. The payload is a JSON document, and every call with the same
/// payload must return the same result: the repr() of the values is compared. A function of your own runs in the current
/// directory, and may import modules from the directory of its file. It has no standard input. Text that it prints in the
/// parent appears on standard error. In a child of farfork, output and changes of files are discarded. Processes that the
/// function leaves are killed at the end, except those in sessions of their own.
///
/// The nine functions need packages from PyPI, which are installed into FARFORK_CACHE (default: ~/.cache/farfork) when
/// they are first needed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench function                                all nine functions
  farfork bench function json image --runs 20 --profile
  farfork bench function ./mine.py:work --payload '{\"size\": 3}'
  farfork bench function ./mine.py --payload @payload.json --python venv/bin/python3

Exit status: 0 measured, 1 a function failed or returned a wrong result, 2 wrong usage.")]
pub(crate) struct BenchFunction {
    /// Functions: helloworld, json, compression, pyaes, chameleon, image, pagerank, recognition, micro, or
    /// FILE.py:HANDLER [default: these nine].
    #[arg(value_name = "FUNCTION", value_parser = FunctionSource::parse)]
    functions: Vec<FunctionSource>,
    #[command(flatten)]
    call: FunctionCallArgs,
    /// Samples of each figure.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count(1..=10_000))]
    runs: usize,
    /// Paging strategy of children, as `farfork fork --strategy`. With `first`, no child profits from pages that earlier
    /// children touched.
    #[arg(long, value_name = "STRATEGY", default_value = "first")]
    strategy: String,
    /// Show where the time of each function's last child went: page faults, fetched memory, and the phases of its start.
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    samples: SamplesOption,
}

const RESIDENT: Figure = Figure::property("resident_mib", "resident", "MiB");
/// Times of the parent's first and second call.
const FIRST_CALL: Figure = Figure::lower("first_call", "parent, first call", "ms");
const WARM_CALL: Figure = Figure::lower("warm_call", "parent, second call", "ms");
/// Time from the request for a seed to the answer.
const PREPARE: Figure = Figure::lower("prepare", "prepare", "ms");
/// Time that the parent was stopped.
const PAUSE: Figure = Figure::lower("pause", "pause", "ms");
/// Time from the request for a seed's first child on a node to the child's first instruction.
const RESUME: Figure = Figure::lower("resume", "resume", "ms");
/// Time of the first call in that child.
const EXECUTION: Figure = Figure::lower("execution", "execution", "ms");
/// A floor: time from the call of os.fork() to the child's first instruction.
const LOCAL_FORK: Figure = Figure::lower("local_fork", "os.fork()", "ms");
/// A floor: time of the first call in a child of os.fork().
const LOCAL_EXECUTION: Figure = Figure::lower("local_execution", "os.fork()", "ms");

/// The function, and where the child is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct FunctionCase {
    function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<ChildPlace>,
}

impl FunctionCase {
    fn new(function: &str, place: Option<ChildPlace>) -> Self {
        Self { function: function.to_owned(), place }
    }
}

impl BenchFunction {
    fn sources(&self) -> Vec<FunctionSource> {
        FunctionSource::distinct_or_embedded(self.functions.clone())
    }
}

impl Benchmark for BenchFunction {
    const COMMAND: &'static str = "bench function";
    const HOSTS_REFUSAL: Option<&'static str> = Some("the packages of Python functions are on this machine");

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let (sources, options) = (self.sources(), self.call.options()?);
        run.expect_steps(sources.len() * (self.runs + 1));
        run.show("starting the nodes")?;
        let (mut failures, mut profiles) = (FunctionFailures::default(), Vec::new());
        let mut samples = FigureSamples::create(&self.samples)?;
        let mut cluster = BenchCluster::start(&run.machines, true).await?;
        for source in &sources {
            let what = if options.must_install(source) { "installing the packages of" } else { "starting" };
            run.show(format!("{what} {}", source.name))?;
            let measured = self.measure_function(source, &options, &mut cluster, &mut samples, run).await;
            profiles.extend(failures.record(&source.name, measured)?.into_iter().flatten());
            run.complete_step();
        }
        cluster.stop()?;
        Ok(self.results(&samples, &profiles, &failures.require_other(sources.len())?))
    }
}

impl BenchFunction {
    /// Measures one function. Returns the profiles of the last round.
    async fn measure_function(
        &self,
        source: &FunctionSource,
        options: &FunctionOptions,
        cluster: &mut BenchCluster,
        samples: &mut FigureSamples<FunctionCase>,
        run: &BenchRun,
    ) -> Result<Vec<FunctionProfile>, BenchError> {
        let mut parent = FunctionParent::start(source, options, cluster.machine(), &self.call.payload, None)?;
        let case = FunctionCase::new(&source.name, None);
        samples.add(&case, RESIDENT, parent.resident_kib as f64 / 1024.0)?;
        samples.add(&case, FIRST_CALL, ns_to_ms(parent.first_call_ns))?;
        samples.add(&case, WARM_CALL, ns_to_ms(parent.warm_call_ns))?;
        let mut profiles = Vec::new();
        for _ in 0..self.runs {
            run.show(source.name.as_str())?;
            profiles = self.measure_round(&case, &mut parent, cluster, samples).await?;
            run.complete_step();
        }
        Ok(profiles)
    }

    /// Returns the profiles of the round's children, if they are wanted.
    async fn measure_round(
        &self,
        case: &FunctionCase,
        parent: &mut FunctionParent,
        cluster: &mut BenchCluster,
        samples: &mut FigureSamples<FunctionCase>,
    ) -> Result<Vec<FunctionProfile>, BenchError> {
        let local = parent.call_in_local_fork()?;
        samples.add(case, LOCAL_FORK, ns_to_ms(local.started_ns))?;
        samples.add(case, LOCAL_EXECUTION, ns_to_ms(local.execution_ns))?;
        let seed = cluster.prepare(parent.pid()).await?;
        samples.add(case, PREPARE, seed.round_trip.as_secs_f64() * 1e3)?;
        samples.add(case, PAUSE, seed.pause_us as f64 / 1e3)?;
        let mut profiles = Vec::new();
        let options = ForkOptions { strategy: &self.strategy, profile: self.profile, ..ForkOptions::default() };
        for place in [ChildPlace::Own, ChildPlace::Other] {
            let child = cluster.fork_with_detail(&seed.seed, place, &self.call.payload, options);
            let (child, detail) = parent.await_child(child).await?;
            let call = parent.parse_call(&child.output)?;
            let child_case = FunctionCase::new(&case.function, Some(place));
            samples.add(&child_case, RESUME, ns_to_ms(call.started_ns - child.sent_unix_ns))?;
            samples.add(&child_case, EXECUTION, ns_to_ms(call.execution_ns))?;
            if self.profile {
                let pager = detail.pager.unwrap_or_default();
                profiles.push(FunctionProfile::new(&case.function, place, &pager, &child.phases));
            }
        }
        cluster.drop_seed(&seed.seed).await?;
        Ok(profiles)
    }

    fn results(
        &self,
        samples: &FigureSamples<FunctionCase>,
        profiles: &[FunctionProfile],
        failures: &FunctionFailures,
    ) -> BenchResults {
        let sources = self.sources();
        let names = sources.iter().map(|source| source.name.as_str()).filter(|name| !failures.contains(name));
        let tables = FunctionTables { names: names.collect(), samples };
        let (start, ratios) = (tables.start(), tables.ratios());
        let measured =
            |columns: &[&'static str]| columns.iter().map(|name| (*name, SeriesRole::Measured)).collect::<Vec<_>>();
        let start_titles = BarTitles { plot: "Prepare and resume of functions", axis: "time" };
        let start_columns = measured(&["prepare", "resume, own node", "resume, other node"]);
        let axis = "child of farfork ÷ child of os.fork()";
        let ratio_titles = BarTitles { plot: "First call in a child, compared with os.fork()", axis };
        let question =
            "How long does it take to prepare a Python function, to start a child of it, and to call it there?";
        let section = ReportSection::new("function", "Functions", question)
            .with_plot(ReportPlot::bars_of_table(&start, "start", start_titles, &start_columns))
            .with_plot(ReportPlot::bars_of_table(
                &ratios,
                "ratio",
                ratio_titles,
                &measured(&["own node", "other node"]),
            ))
            .with_table(start)
            .with_table(tables.execution())
            .with_table(ratios)
            .with_table(memory_table(profiles))
            .with_table(phase_table(profiles))
            .with_note("Each child is its seed's first on the node. Own, other: the parent's node and another one.")
            .with_note(format!("Paging strategy of the children: {}.", self.strategy))
            .with_notes(failures.sentences_or("No result was wrong."))
            .with_note("Floors: a child of os.fork() of the same process, in the same run.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.function.source));
        let figures =
            samples.to_json_with(None, |case, _, document| (!failures.contains(&case.function)).then_some(document));
        let references = sources.iter().filter_map(|source| find_reference(&source.name)).collect::<Vec<_>>();
        let document = json!({
            "plan": {
                "functions": sources,
                "payload": self.call.payload,
                "runs": self.runs,
                "profile": self.profile,
                "strategy": self.strategy,
            },
            "figures": figures,
            "profiles": profiles,
            "failures": failures.to_json(),
            "reference": references,
        });
        BenchResults { is_complete: failures.is_empty(), ..BenchResults::new(section, document) }
    }
}

fn find_reference(name: &str) -> Option<&'static FunctionReference> {
    PUBLISHED_FIGURES.function.functions.iter().find(|reference| reference.name == name)
}

/// The tables of the functions that did not fail.
struct FunctionTables<'a> {
    names: Vec<&'a str>,
    samples: &'a FigureSamples<FunctionCase>,
}

impl FunctionTables<'_> {
    fn start(&self) -> ReportTable {
        let title = "Prepare, and a child from the request to its first instruction";
        let columns = [
            "function",
            RESIDENT.name,
            PREPARE.name,
            PAUSE.name,
            "resume, own node",
            "resume, other node",
            LOCAL_FORK.name,
        ];
        let mut table = ReportTable::new("start", title, &columns);
        for name in self.names.iter().copied() {
            let case = FunctionCase::new(name, None);
            table.add_row([
                ReportCell::text(name),
                self.samples.cell(&case, RESIDENT),
                self.compared(name, None, PREPARE, None, |reference| reference.prepare_ms),
                self.samples.cell(&case, PAUSE),
                self.compared(name, Some(ChildPlace::Own), RESUME, Some(LOCAL_FORK), |reference| reference.resume_ms),
                self.compared(name, Some(ChildPlace::Other), RESUME, None, |reference| reference.resume_ms),
                self.samples.cell(&case, LOCAL_FORK),
            ]);
        }
        table
    }

    fn execution(&self) -> ReportTable {
        let title = "The function's first call in a child, and its first two calls in the parent";
        let columns = ["function", FIRST_CALL.name, WARM_CALL.name, "own node", "other node"];
        let mut table = ReportTable::new("execution", title, &columns);
        for name in self.names.iter().copied() {
            let case = FunctionCase::new(name, None);
            let child = |place| {
                self.compared(name, Some(place), EXECUTION, Some(LOCAL_EXECUTION), |reference| reference.execution_ms)
            };
            table.add_row([
                ReportCell::text(name),
                self.samples.cell(&case, FIRST_CALL),
                self.samples.cell(&case, WARM_CALL),
                child(ChildPlace::Own),
                child(ChildPlace::Other),
            ]);
        }
        table
    }

    /// The medians of first calls divided by those in children of `os.fork()`.
    fn ratios(&self) -> ReportTable {
        let title = "The median of the first call in a child, divided by the median in a child of os.fork()";
        let mut table = ReportTable::new("ratio", title, &["function", "own node", "other node"]);
        for name in self.names.iter().copied() {
            let cells = [ChildPlace::Own, ChildPlace::Other].map(|place| {
                let child = self.samples.median(&FunctionCase::new(name, Some(place)), EXECUTION)?;
                let local = self.samples.median(&FunctionCase::new(name, None), LOCAL_EXECUTION)?;
                Some(ReportFigure::single(child / local, "×", BetterDirection::Lower))
            });
            table.add_row([ReportCell::text(name)].into_iter().chain(cells.map(ReportCell::from)));
        }
        table
    }

    /// A figure of a function, next to its floor in the parent and to the published value.
    fn compared(
        &self,
        name: &str,
        place: Option<ChildPlace>,
        figure: Figure,
        floor: Option<Figure>,
        reference: fn(&FunctionReference) -> f64,
    ) -> ReportCell {
        let floor = floor.and_then(|floor| self.samples.median(&FunctionCase::new(name, None), floor));
        let measured = self.samples.figure(&FunctionCase::new(name, place), figure);
        let published = find_reference(name).map(reference);
        measured.map(|measured| measured.with_floor(floor).with_reference(published)).into()
    }
}

/// Phases that take a smaller part of the start are not shown.
const SHOWN_PART_MIN: f64 = 0.05;

/// The page faults, the fetched memory and the phases of one child.
#[derive(Debug, Serialize)]
struct FunctionProfile {
    function: String,
    place: ChildPlace,
    /// Page faults that the pager answered.
    faults: u64,
    /// Faults for which the pager requested the page from the owner.
    faults_missing: u64,
    /// Requests for pages to the owner, with those that no thread waited for.
    round_trips: u64,
    /// Time from the request for a page that a thread waits for to its installation: the sum, in ms.
    wait_ms: f64,
    fetched_mib: f64,
    /// Received over the network. On the parent's node, memory is copied instead.
    network_mib: f64,
    zero_mib: f64,
    phases: Vec<FunctionPhase>,
}

/// A phase of the start of a child.
#[derive(Debug, Serialize)]
struct FunctionPhase {
    name: String,
    /// 0 for the whole request.
    depth: u32,
    ms: f64,
}

impl FunctionProfile {
    fn new(function: &str, place: ChildPlace, pager: &PagerStats, phases: &[Phase]) -> Self {
        let phase = |phase: &Phase| FunctionPhase {
            name: phase.name.clone(),
            depth: phase.depth,
            ms: phase.duration_us as f64 / 1e3,
        };
        Self {
            function: function.to_owned(),
            place,
            faults: pager.faults,
            faults_missing: pager.faults_missing,
            round_trips: pager.round_trips,
            wait_ms: pager.demand_us as f64 / 1e3,
            fetched_mib: pager.pages_fetched as f64 * PAGE_BYTES as f64 / MIB_BYTES,
            network_mib: pager.bytes_fetched.saturating_sub(pager.bytes_same_host) as f64 / MIB_BYTES,
            zero_mib: pager.zero_pages as f64 * PAGE_BYTES as f64 / MIB_BYTES,
            phases: phases.iter().map(phase).collect(),
        }
    }
}

fn place_text(place: ChildPlace) -> &'static str {
    if place == ChildPlace::Own { "own" } else { "other" }
}

/// The memory of the last child of each function on each node.
fn memory_table(profiles: &[FunctionProfile]) -> ReportTable {
    let title =
        "Memory of the last child; missing: faults that waited for a request to the owner; network: received over it";
    let columns = ["function", "node", "faults", "missing", "requests", "wait", "fetched", "network", "zero"];
    let mut table = ReportTable::new("memory", title, &columns);
    let figure = |value, unit| ReportCell::Figure(ReportFigure::single(value, unit, BetterDirection::Lower));
    for profile in profiles {
        table.add_row([
            ReportCell::text(&profile.function),
            ReportCell::text(place_text(profile.place)),
            figure(profile.faults as f64, ""),
            figure(profile.faults_missing as f64, ""),
            figure(profile.round_trips as f64, ""),
            figure(profile.wait_ms, "ms"),
            figure(profile.fetched_mib, "MiB"),
            figure(profile.network_mib, "MiB"),
            figure(profile.zero_mib, "MiB"),
        ]);
    }
    table
}

/// The longer phases of the start of these children.
fn phase_table(profiles: &[FunctionProfile]) -> ReportTable {
    let title = "Phases of its start that take 5 % of it or more";
    let mut table = ReportTable::new("phases", title, &["function", "node", "phase", "time"]);
    for profile in profiles {
        let whole_ms = profile.phases.iter().filter(|phase| phase.depth == 0).map(|phase| phase.ms).fold(0.0, f64::max);
        for phase in profile.phases.iter().filter(|phase| phase.ms >= whole_ms * SHOWN_PART_MIN) {
            table.add_row([
                ReportCell::text(&profile.function),
                ReportCell::text(place_text(profile.place)),
                ReportCell::text(&phase.name),
                ReportCell::Figure(ReportFigure::single(phase.ms, "ms", BetterDirection::Lower)),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use farfork_api::v1::{PagerStats, Phase};

    use super::{
        BenchFunction, ChildPlace, EXECUTION, FigureSamples, FunctionCase, FunctionFailures, FunctionProfile,
        LOCAL_EXECUTION, LOCAL_FORK, PREPARE, RESUME, SamplesOption, memory_table, phase_table,
    };
    use crate::options::parse_arguments;
    use crate::report::text::{COLUMNS_MAX, render_table};

    #[test]
    fn a_function_is_compared_with_a_child_of_os_fork() {
        let plan: BenchFunction = parse_arguments(&[]);
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for source in plan.sources() {
            for (figure, place, ms) in [
                (PREPARE, None, 1.0),
                (LOCAL_FORK, None, 0.5),
                (RESUME, Some(ChildPlace::Own), 1.5),
                (RESUME, Some(ChildPlace::Other), 2.0),
                (EXECUTION, Some(ChildPlace::Own), 6.0),
                (LOCAL_EXECUTION, None, 4.0),
            ] {
                samples.add(&FunctionCase::new(&source.name, place), figure, ms).unwrap();
            }
        }
        let section = plan.results(&samples, &[], &FunctionFailures::default()).section;
        section.require_published_rows();
        let json = section.figure("execution", "json", "own node");
        assert_eq!((json.floor_ratio(), json.reference), (Some(1.5), Some(17.52)));
        assert_eq!(section.figure("ratio", "json", "own node").median, 1.5);
        assert_eq!(section.figure("start", "json", "resume, own node").floor, Some(0.5));
    }

    #[test]
    fn a_profile_has_the_memory_and_the_phases_of_a_child() {
        let pager = PagerStats { faults: 5, pages_fetched: 512, bytes_fetched: 2 << 20, ..PagerStats::default() };
        let phase = Phase { name: "fork.restore".to_owned(), duration_us: 1_500, ..Phase::default() };
        let profiles = [FunctionProfile::new("recognition", ChildPlace::Other, &pager, &[phase])];
        let text = format!("{}\n{}", render_table(&memory_table(&profiles)), render_table(&phase_table(&profiles)));
        let has_row = |words: &[&str]| text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
        assert!(has_row(&["recognition", "other", "5", "0", "0", "0.00", "2.00", "2.00", "0.00"]), "{text}");
        assert!(has_row(&["recognition", "other", "fork.restore", "1.50"]), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        assert!(memory_table(&[]).rows.is_empty());
    }
}
