//! `farfork bench tree`: how long a process tree is stopped while its seed is made. `process_tree.cpp` is the program.

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{BenchResults, BenchRun, Benchmark};
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram};
use crate::options::{SamplesOption, count, size};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::FigureSamples;
use crate::workload::micro::ns_to_ms;

/// Measure how long a prepare stops trees of processes.
///
/// The benchmark starts two nodes on this machine, and trees of several sizes. In each round it prepares each tree in turn.
/// Before a prepare, each process of the tree forks itself with fork(2). The floor of the pause is the sum of the times of
/// these forks and the time to copy the memory that the processes share.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farfork bench tree
  farfork bench tree --processes 1,16 --mib 1 --shared-mib 0 --json

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchTree {
    /// Number of processes of a tree. Each of several numbers is a tree.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = size(1..=64))]
    processes: Vec<u64>,
    /// Private memory of each process, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = size(1..=1024))]
    mib: u64,
    /// Memory that the processes of a tree share, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = size(0..=1024))]
    shared_mib: u64,
    /// Number of rounds. Each round measures every tree once.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count(1..=10_000))]
    runs: usize,
    #[command(flatten)]
    samples: SamplesOption,
}

/// A floor: `fork()` of each process, one after the other.
const FORKS: Figure = Figure::lower("forks", "fork() of each", "ms");
/// A floor: memcpy(3) of the memory that the processes share.
const COPY: Figure = Figure::lower("copy", "copy of the shared memory", "ms");
/// Time from the stop of the tree's first thread until its last thread continues.
const PAUSE: Figure = Figure::lower("pause", "pause", "ms");
/// Another process requests a seed of the tree: time from the request to the answer.
const PREPARE: Figure = Figure::lower("prepare", "prepare", "ms");

/// The size of a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct TreeCase {
    processes: u64,
}

impl Benchmark for BenchTree {
    const COMMAND: &'static str = "bench tree";
    const HOSTS_REFUSAL: Option<&'static str> = None;

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        let mut cluster = BenchCluster::start(&run.machines, run.machines.encrypts_by_default()).await?;
        PROCESS_TREE.install(cluster.machine())?;
        let start = |&processes: &u64| {
            Ok((TreeCase { processes }, ProcessTree::start(cluster.machine(), processes, self.mib, self.shared_mib)?))
        };
        let mut trees = self.processes.iter().map(start).collect::<Result<Vec<_>, BenchError>>()?;
        let mut samples = FigureSamples::create(&self.samples)?;
        run.expect_steps(self.runs * trees.len());
        for _ in 0..self.runs {
            for (case, tree) in &mut trees {
                run.show(format!("{} processes", case.processes))?;
                measure_tree(&mut cluster, case, tree, &mut samples).await?;
                run.complete_step();
            }
        }
        drop(trees);
        cluster.stop()?;
        Ok(self.results(&samples))
    }
}

/// One round of a tree. The processes write to all of their pages before they fork themselves, and before the prepare.
async fn measure_tree(
    cluster: &mut BenchCluster,
    case: &TreeCase,
    tree: &mut ProcessTree,
    samples: &mut FigureSamples<TreeCase>,
) -> Result<(), BenchError> {
    tree.write_all()?;
    samples.add(case, FORKS, tree.measure_forks_ms()?)?;
    samples.add(case, COPY, tree.measure_copy_ms()?)?;
    tree.write_all()?;
    let prepared = cluster.prepare(tree.pid()).await?;
    cluster.drop_seed(&prepared.seed).await?;
    samples.add(case, PAUSE, prepared.pause_us as f64 / 1e3)?;
    samples.add(case, PREPARE, prepared.round_trip.as_secs_f64() * 1e3)
}

impl BenchTree {
    fn results(&self, samples: &FigureSamples<TreeCase>) -> BenchResults {
        let Self { mib, shared_mib, .. } = self;
        let floor_ms = |case: &TreeCase| Some(samples.median(case, FORKS)? + samples.median(case, COPY)?);
        let above_floor_ms = |case: &TreeCase| Some(samples.median(case, PAUSE)? - floor_ms(case)?);
        let columns = ["processes", FORKS.name, COPY.name, PAUSE.name, "above the floor", PREPARE.name];
        let mut table = ReportTable::new("tree", "Prepare of a tree", &columns);
        let cases = || self.processes.iter().map(|&processes| TreeCase { processes });
        for case in cases() {
            let above = above_floor_ms(&case).map(|ms| ReportFigure::single(ms, "ms", BetterDirection::Lower));
            table.add_row([
                ReportCell::text(case.processes),
                samples.cell(&case, FORKS),
                samples.cell(&case, COPY),
                samples.figure(&case, PAUSE).map(|pause| pause.with_floor(floor_ms(&case))).into(),
                above.into(),
                samples.cell(&case, PREPARE),
            ]);
        }
        let (x, y) = (PlotAxis::new("processes", ""), PlotAxis::new("time", "ms"));
        let plot = ReportPlot::new(PlotKind::Scaling, "pause", "Pause of a tree by processes", x, y);
        let points = |figure| cases().filter_map(move |case| samples.point(case.processes as f64, &case, figure));
        let floors = cases().filter_map(|case| Some(PlotPoint::new(case.processes as f64, floor_ms(&case)?)));
        let plot = plot.with_series("pause", SeriesRole::Measured, points(PAUSE));
        let plot = plot.with_series("prepare", SeriesRole::Measured, points(PREPARE));
        let question = "How long does a prepare stop a tree of processes?";
        let section = ReportSection::new("tree", "Process trees", question)
            .with_table(table)
            .with_plot(plot.with_series(FORKS.name, SeriesRole::Floor, floors))
            .with_note(format!("Each process has {mib} MiB; the processes of a tree share {shared_mib} MiB."))
            .with_note(
                "Floor of a pause: fork(2) of each process, summed up, and a copy of the memory that they share.",
            );
        let figures = samples.to_json_with(Some("ms"), |case, figure, mut document| {
            if figure == PAUSE {
                document["above_floor_ms"] = json!(above_floor_ms(case));
            }
            Some(document)
        });
        BenchResults::new(section, json!({ "mib": mib, "shared_mib": shared_mib, "figures": figures }))
    }
}

const PROCESS_TREE: EmbeddedProgram =
    EmbeddedProgram { name: "process_tree", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/process_tree")) };

/// A running tree. It is killed when this value is dropped.
#[derive(Debug)]
struct ProcessTree(RunningProgram);

impl ProcessTree {
    /// Starts the installed program with this many processes. Each has `mib` of private memory; all share `shared_mib`.
    fn start(machine: &dyn Machine, processes: u64, mib: u64, shared_mib: u64) -> Result<Self, BenchError> {
        let arguments = [processes, mib, shared_mib].map(|number| number.to_string());
        PROCESS_TREE.start(machine, arguments)?.ready().map(Self)
    }

    /// The pid of the tree's first process.
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Makes every process write to all of its pages, so that the next fork finds them as a busy program leaves them.
    fn write_all(&mut self) -> Result<(), BenchError> {
        let [_ns] = self.0.request(b'w', "written")?;
        Ok(())
    }

    /// Measures the sum of the times of fork(2) in all processes, in ms.
    fn measure_forks_ms(&mut self) -> Result<f64, BenchError> {
        let [ns] = self.0.request(b'f', "forked")?;
        Ok(ns_to_ms(ns))
    }

    /// Measures the time of memcpy(3) for the shared memory, in ms.
    fn measure_copy_ms(&mut self) -> Result<f64, BenchError> {
        let [ns] = self.0.request(b'm', "copied")?;
        Ok(ns_to_ms(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BenchTree, COPY, FORKS, FigureSamples, PAUSE, PREPARE, PROCESS_TREE, ProcessTree, SamplesOption, TreeCase,
    };
    use crate::machine::namespace::NamespaceMachine;

    #[test]
    fn a_pause_is_shown_next_to_its_floors() {
        let (mut samples, case) =
            (FigureSamples::create(&SamplesOption::default()).unwrap(), TreeCase { processes: 16 });
        for (figure, ms) in [(FORKS, 4.0), (COPY, 0.5), (PAUSE, 6.0), (PREPARE, 9.0)] {
            samples.add(&case, figure, ms).unwrap();
        }
        let plan = BenchTree { processes: vec![16], mib: 4, shared_mib: 1, runs: 1, samples: SamplesOption::default() };
        let results = plan.results(&samples);
        let document = results.to_json();
        let figures = document["figures"].as_array().unwrap();
        let pause = figures.iter().find(|figure| figure["figure"] == "pause").unwrap();
        assert_eq!((&pause["processes"], &pause["above_floor_ms"]), (&16.into(), &1.5.into()), "{document}");
        assert!(results.to_text().contains("1.50"), "{}", results.to_text());
        assert!(results.to_text().lines().all(|line| line.chars().count() <= 110), "{}", results.to_text());
    }

    #[test]
    fn processes_of_a_tree_fork_and_end_with_the_first_process() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = NamespaceMachine::own(scratch.path());
        PROCESS_TREE.install(&machine).unwrap();
        let mut tree = ProcessTree::start(&machine, 3, 1, 1).unwrap();
        let children = format!("/proc/{}/task/{0}/children", tree.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let children: Vec<&str> = children.split_ascii_whitespace().collect();
        assert_eq!(children.len(), 2);
        tree.write_all().unwrap();
        assert!(tree.measure_forks_ms().unwrap() > 0.0 && tree.measure_copy_ms().unwrap() > 0.0);
        drop(tree);
        // An ended process is gone, or is a zombie until the reaper of this pid namespace waits for it.
        let ends = |child: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        while !children.iter().all(|child| ends(child)) {
            std::thread::yield_now();
        }
    }
}
