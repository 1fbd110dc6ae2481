//! The results of `farfork bench fork`: tables and plots by size, and the document for scripts.

use std::time::Duration;

use serde_json::json;

use super::strategies::{self, StrategyFigures};
use super::{
    BenchFork, BenchResults, CHECKPOINT, CHECKPOINT_PAUSE, ChildPlace, EXECUTION, EXECUTION_WRITING, FIRST_RESUME,
    Figure, FigureSamples, ForkCase, ForkSystem, PAUSE, PREPARE, PREPARE_ON_NODE, Pace, RESUME, ResumeCase,
    TouchAccess, TouchOrder,
};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};

/// A series of a plot by size: its name, its role, and its figure in a case with a size of 0 MiB.
type SizeSeries = (&'static str, SeriesRole, ForkCase, Figure);

/// Where and after what a child is resumed, with the name of the column.
const RESUMES: [(ChildPlace, Pace, &str); 4] = [
    (ChildPlace::Own, Pace::BackToBack, "own node"),
    (ChildPlace::Own, Pace::Idle, "own node, after idle"),
    (ChildPlace::Other, Pace::BackToBack, "other node"),
    (ChildPlace::Other, Pace::Idle, "other node, after idle"),
];

impl BenchFork {
    pub(super) fn results(
        &self,
        samples: &FigureSamples<ForkCase>,
        strategies: &[StrategyFigures],
        notes: Vec<String>,
        elapsed: Duration,
    ) -> BenchResults {
        let tables = ForkTables { plan: self, samples };
        let subject = if strategies.is_empty() { "Fork by size" } else { "Fork strategies" };
        let order = if self.order() == TouchOrder::Random { "random" } else { "sequential" };
        let access = if self.access() == TouchAccess::Read { "reads" } else { "writes" };
        let question = "How long does it take to prepare a process of some size, to start a child of it, and to touch \
                        every page in the child?";
        let title = format!("{subject}: {order} {access}");
        let section = ReportSection::new("fork", title, question)
            .with_table(tables.checkpoint())
            .with_table(tables.prepare())
            .with_table(tables.resume())
            .with_table(tables.first_resume())
            .with_table(tables.execution())
            .with_table(strategies::times_table(strategies))
            .with_table(strategies::memory_table(strategies))
            .with_table(tables.peer())
            .with_table(tables.peer_sums())
            .with_plot(tables.prepare_plot())
            .with_plot(tables.resume_plot())
            .with_plot(tables.execution_plot())
            .with_note(self.program_note(elapsed))
            .with_note(self.encryption.note())
            .with_note(
                "Floors: of a pause and a prepare, fork(2) of the same process; of an execution on the parent's node, the \
                 same touches in a child of fork(2); of an execution on the other node, the same bytes over the same link by \
                 two bare programs.",
            )
            .with_note("A published resume is that of a seed's first child on a node. Later children have no reference.")
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.fork.source))
            .with_notes(strategies::notes(strategies))
            .with_notes(self.peer.map(|_| {
                "CRIU, eager: all memory is present before the clone runs; lazy: it follows. Its images are files in memory."
                    .to_owned()
            }))
            .with_notes(notes.iter().cloned());
        let figures = samples.to_json_with(None, |case, figure, mut document| {
            // Floors do other work, so they are not compared with the reference.
            let is_compared = !matches!(case.by, ForkSystem::LocalFork | ForkSystem::Link);
            let reference = tables.published_ms(figure, case.mib).filter(|_| is_compared);
            let median = samples.median(case, figure)?;
            document["reference"] = json!(reference);
            document["below_reference"] = json!(reference.map(|reference| median < reference));
            Some(document)
        });
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "plan": self.plan_json(),
            "elapsed_s": elapsed.as_secs_f64(),
            "reference": PUBLISHED_FIGURES.fork.source,
            "figures": figures,
            "strategies": strategies,
            "notes": notes,
        });
        BenchResults::new(section, document)
    }

    fn plan_json(&self) -> serde_json::Value {
        json!({
            "mib": self.sizes_mib(),
            "runs": self.runs(),
            "time_max_s": self.time_max().as_secs_f64(),
            "order": self.order(),
            "access": self.access(),
            "page_size": self.page_size(),
            "threads": self.threads,
            "mappings": self.mappings,
            "first": self.resume_case().is_first(),
            "foretold": self.resume_case() == ResumeCase::Speculative,
            "fresh": self.resume_case() == ResumeCase::Fresh,
            "encrypted": self.encryption.encrypted,
        })
    }

    fn program_note(&self, elapsed: Duration) -> String {
        let child = match self.resume_case() {
            ResumeCase::Later => "later children, next to first ones",
            ResumeCase::First => "a seed's first child on the node",
            ResumeCase::Speculative => "a seed's first child, after its program was prepared and forked before",
            ResumeCase::Fresh => "a new process's first child",
        };
        format!(
            "A process in {} pages with {} threads and {} additional mappings. Resume: of {child}, in a container of its own. \
             Large sizes get fewer samples, so that a run ends in time. Measured in {:.0} s.",
            self.page_size(),
            self.threads,
            self.mappings,
            elapsed.as_secs_f64()
        )
    }
}

struct ForkTables<'a> {
    plan: &'a BenchFork,
    samples: &'a FigureSamples<ForkCase>,
}

impl ForkTables<'_> {
    fn checkpoint(&self) -> ReportTable {
        let columns = ["MiB", CHECKPOINT.name, "after idle", CHECKPOINT_PAUSE.name];
        self.table("checkpoint", "Prepare, called by the program itself", &columns, |mib| {
            let (case, fork) = (farfork(mib), self.fork_pause(mib));
            vec![
                self.compared(&case, CHECKPOINT, fork),
                self.compared(&case.clone().with_pace(Pace::Idle), CHECKPOINT, fork),
                self.samples.figure(&case, CHECKPOINT_PAUSE).map(|pause| pause.with_floor(fork)).into(),
            ]
        })
    }

    fn prepare(&self) -> ReportTable {
        let columns = ["MiB", PREPARE.name, "after idle", PREPARE_ON_NODE.name, PAUSE.name];
        self.table("prepare", "Prepare by process id: from another process's request to the answer", &columns, |mib| {
            let case = farfork(mib);
            vec![
                self.compared(&case, PREPARE, None),
                self.compared(&case.clone().with_pace(Pace::Idle), PREPARE, None),
                self.samples.cell(&case, PREPARE_ON_NODE),
                self.samples.figure(&case, PAUSE).map(|pause| pause.with_floor(self.fork_pause(mib))).into(),
            ]
        })
    }

    fn resume(&self) -> ReportTable {
        let title = if self.plan.resume_case().is_first() {
            "Resume of a seed's first child: from the request to the child's first instruction"
        } else {
            "Resume of a seed's later children: from the request to the child's first instruction"
        };
        let columns = ["MiB", RESUMES[0].2, RESUMES[1].2, RESUMES[2].2, RESUMES[3].2];
        self.table("resume", title, &columns, |mib| {
            let cells = RESUMES.map(|(place, pace, _)| self.compared(&resumed(mib, place, pace), RESUME, None));
            cells.into()
        })
    }

    /// The first children of seeds, which the published figures are of.
    fn first_resume(&self) -> ReportTable {
        let title = "Resume of a seed's first child, as published: from the request to the child's first instruction";
        let columns = ["MiB", "other node", "containers, other node"];
        let figure = if self.plan.resume_case().is_first() { RESUME } else { FIRST_RESUME };
        self.table("first-resume", title, &columns, |mib| {
            let case = resumed(mib, ChildPlace::Other, Pace::BackToBack);
            let ms = self.samples.median(&case, figure);
            let published = self.published_ms(FIRST_RESUME, mib).map(|ms| 1e3 / ms);
            let rate = ms.map(|ms| ReportFigure::single(1e3 / ms, "1/s", BetterDirection::Higher));
            vec![self.compared(&case, figure, None), rate.map(|rate| rate.with_reference(published)).into()]
        })
    }

    fn execution(&self) -> ReportTable {
        let columns = ["MiB", "own node", "other node", EXECUTION_WRITING.name];
        self.table("execution", "Execution: every page once in the child", &columns, |mib| {
            let floor = |by| self.samples.median(&ForkCase::new(mib, by), EXECUTION);
            let placed = |place| farfork(mib).with_place(place);
            vec![
                self.compared(&placed(ChildPlace::Own), EXECUTION, floor(ForkSystem::LocalFork)),
                self.compared(&placed(ChildPlace::Other), EXECUTION, floor(ForkSystem::Link)),
                self.samples.cell(&ForkCase::new(mib, ForkSystem::LocalFork), EXECUTION_WRITING),
            ]
        })
    }

    /// A table with a row for each size.
    fn table(&self, id: &str, title: &str, columns: &[&str], cells: impl Fn(u64) -> Vec<ReportCell>) -> ReportTable {
        let mut table = ReportTable::new(id, title, columns);
        for mib in self.plan.sizes_mib() {
            table.add_row([ReportCell::text(mib)].into_iter().chain(cells(mib)));
        }
        table
    }

    fn peer(&self) -> ReportTable {
        let columns = ["MiB", "system", PREPARE.name, PAUSE.name, RESUME.name, EXECUTION.name];
        let mut table = ReportTable::new("peer", "CRIU: the same process cloned by dump and restore", &columns);
        for (mib, name, by) in self.clones() {
            let (case, clone) = (ForkCase::new(mib, by), ForkCase::new(mib, by).with_place(ChildPlace::Own));
            table.add_row([
                ReportCell::text(mib),
                ReportCell::text(name),
                self.samples.cell(&case, PREPARE),
                self.samples.cell(&case, PAUSE),
                self.samples.cell(&clone, RESUME),
                self.samples.cell(&clone, EXECUTION),
            ]);
        }
        table
    }

    /// The whole times of clones: sums of medians.
    fn peer_sums(&self) -> ReportTable {
        let title = "Whole clones: prepare and resume, and the sum with the execution";
        let mut table = ReportTable::new("peer-sums", title, &["MiB", "system", "clone", "sum"]);
        for (mib, name, by) in self.clones() {
            let clone = ForkCase::new(mib, by).with_place(ChildPlace::Own);
            let prepare = self.samples.median(&ForkCase::new(mib, by), PREPARE);
            let cloned = prepare.zip(self.samples.median(&clone, RESUME)).map(|(prepare, resume)| prepare + resume);
            let sum = cloned.zip(self.samples.median(&clone, EXECUTION)).map(|(clone, execution)| clone + execution);
            let figure = |ms: Option<f64>| ms.map(|ms| ReportFigure::single(ms, "ms", BetterDirection::Lower)).into();
            table.add_row([ReportCell::text(mib), ReportCell::text(name), figure(cloned), figure(sum)]);
        }
        table
    }

    /// farfork and the peer for each size; empty without a peer.
    fn clones(&self) -> Vec<(u64, &'static str, ForkSystem)> {
        let systems = [
            ("farfork, own node", ForkSystem::Farfork),
            ("CRIU, eager", ForkSystem::CriuEager),
            ("CRIU, lazy", ForkSystem::CriuLazy),
        ];
        let sizes = self.plan.peer.map_or(Vec::new(), |_| self.plan.sizes_mib());
        sizes.into_iter().flat_map(|mib| systems.map(|(name, by)| (mib, name, by))).collect()
    }

    /// The time of fork(2) of the same process.
    fn fork_pause(&self, mib: u64) -> Option<f64> {
        self.samples.median(&ForkCase::new(mib, ForkSystem::LocalFork), PAUSE)
    }

    /// A figure with its floor and its published reference.
    fn compared(&self, case: &ForkCase, figure: Figure, floor: Option<f64>) -> ReportCell {
        let measured = self.samples.figure(case, figure);
        measured.map(|measured| measured.with_floor(floor).with_reference(self.published_ms(figure, case.mib))).into()
    }

    /// The published time. Published executions touch pages in random order, and published resumes are those of first
    /// children, so others have none.
    fn published_ms(&self, figure: Figure, mib: u64) -> Option<f64> {
        let is_comparable = (figure != EXECUTION || self.plan.order() == TouchOrder::Random)
            && (figure != RESUME || self.plan.resume_case().is_first());
        PUBLISHED_FIGURES.fork.published_ms(figure, mib).filter(|_| is_comparable)
    }

    fn prepare_plot(&self) -> ReportPlot {
        let series = [
            ("prepare, own call", SeriesRole::Measured, farfork(0), CHECKPOINT),
            ("prepare by process id", SeriesRole::Measured, farfork(0), PREPARE),
            ("pause", SeriesRole::Measured, farfork(0), PAUSE),
            ("fork(2)", SeriesRole::Floor, ForkCase::new(0, ForkSystem::LocalFork), PAUSE),
        ];
        self.plot("prepare", "Prepare by size", &series, PREPARE)
    }

    fn resume_plot(&self) -> ReportPlot {
        let of = |place, pace| resumed(0, place, pace);
        let series = [
            ("own node", SeriesRole::Measured, of(ChildPlace::Own, Pace::BackToBack), RESUME),
            ("other node", SeriesRole::Measured, of(ChildPlace::Other, Pace::BackToBack), RESUME),
            ("other node, after idle", SeriesRole::Measured, of(ChildPlace::Other, Pace::Idle), RESUME),
            ("other node, first child", SeriesRole::Measured, of(ChildPlace::Other, Pace::BackToBack), FIRST_RESUME),
        ];
        self.plot("resume", "Resume by size", &series, FIRST_RESUME)
    }

    fn execution_plot(&self) -> ReportPlot {
        let floor = |by| ForkCase::new(0, by);
        let series = [
            ("own node", SeriesRole::Measured, farfork(0).with_place(ChildPlace::Own), EXECUTION),
            ("other node", SeriesRole::Measured, farfork(0).with_place(ChildPlace::Other), EXECUTION),
            ("fork(2)", SeriesRole::Floor, floor(ForkSystem::LocalFork), EXECUTION),
            ("bare link", SeriesRole::Floor, floor(ForkSystem::Link), EXECUTION),
        ];
        self.plot("execution", "Execution by size: every page once", &series, EXECUTION)
    }

    fn plot(&self, id: &str, title: &str, series: &[SizeSeries], reference: Figure) -> ReportPlot {
        let (size, time) = (PlotAxis::new("private memory", "MiB"), PlotAxis::new("time", "ms"));
        let plot = ReportPlot::new(PlotKind::BySize, id, title, size, time);
        let sizes = self.plan.sizes_mib();
        let plot = series.iter().fold(plot, |plot, (name, role, case, figure)| {
            let point = |&mib: &u64| self.samples.point(mib as f64, &ForkCase { mib, ..case.clone() }, *figure);
            plot.with_series(name, *role, sizes.iter().filter_map(point))
        });
        let published = |&mib: &u64| Some(PlotPoint::new(mib as f64, self.published_ms(reference, mib)?));
        plot.with_series("reference", SeriesRole::Reference, sizes.iter().filter_map(published))
    }
}

fn farfork(mib: u64) -> ForkCase {
    ForkCase::new(mib, ForkSystem::Farfork)
}

fn resumed(mib: u64, place: ChildPlace, pace: Pace) -> ForkCase {
    farfork(mib).with_place(place).with_pace(pace)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::benchmark::fork::strategies::StrategyChildFigures;
    use crate::options::{SamplesOption, parse_arguments};
    use crate::report::text::COLUMNS_MAX;

    /// Samples of about `scale_ms` per MiB for each figure of each size.
    fn samples(sizes_mib: &[u64], scale_ms: f64) -> FigureSamples<ForkCase> {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for &mib in sizes_mib {
            let mut cases = vec![
                ForkCase::new(mib, ForkSystem::LocalFork),
                ForkCase::new(mib, ForkSystem::Link),
                ForkCase::new(mib, ForkSystem::CriuEager),
                ForkCase::new(mib, ForkSystem::CriuEager).with_place(ChildPlace::Own),
            ];
            for pace in [Pace::BackToBack, Pace::Idle] {
                cases.push(farfork(mib).with_pace(pace));
                cases.extend([ChildPlace::Own, ChildPlace::Other].map(|place| resumed(mib, place, pace)));
            }
            for figure in
                [CHECKPOINT, CHECKPOINT_PAUSE, PREPARE, PREPARE_ON_NODE, PAUSE, RESUME, FIRST_RESUME, EXECUTION]
            {
                for (case, factor) in cases.iter().flat_map(|case| [0.9, 1.0, 1.2].map(|factor| (case, factor))) {
                    samples.add(case, figure, factor * scale_ms * mib as f64).unwrap();
                }
            }
        }
        samples
    }

    fn results(arguments: &[&str], scale_ms: f64) -> BenchResults {
        let plan: BenchFork = parse_arguments(arguments);
        let child = StrategyChildFigures { samples: 5, whole_ms: scale_ms, network_bytes: 1e9, ..Default::default() };
        let strategy = |mib| StrategyFigures {
            mib,
            strategy: "prefetch,cache".to_owned(),
            first: child.clone(),
            second: child.clone(),
        };
        let strategies: Vec<_> = plan.sizes_mib().into_iter().map(strategy).collect();
        plan.results(&samples(&plan.sizes_mib(), scale_ms), &strategies, Vec::new(), Duration::from_secs(240))
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        for scale_ms in [0.001, 1.0, 5.0] {
            let text = results(&["--peer", "criu"], scale_ms).to_text();
            let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(widest.chars().count() <= COLUMNS_MAX, "{}: {widest}", widest.chars().count());
        }
    }

    #[test]
    fn a_row_is_below_the_reference_only_if_all_its_samples_are() {
        let plan: BenchFork = parse_arguments(&["--mib", "1", "--first"]);
        let mut samples = samples(&[1], 1.0);
        let idle = resumed(1, ChildPlace::Own, Pace::Idle);
        (0..9).for_each(|_| samples.add(&idle, RESUME, 29.18).unwrap());
        let text = plan.results(&samples, &[], Vec::new(), Duration::ZERO).to_text();
        for verdict in ["0.65 (1.54 × above)", "2.92 (10.0 × mixed)", "1.07 (0.93 × below)"] {
            assert!(text.contains(verdict), "{verdict}: {text}");
        }
    }

    #[test]
    fn the_document_has_each_figure_with_its_reference() {
        let document = results(&["--mib", "1,3"], 1.0).to_json();
        let figures = document["figures"].as_array().unwrap();
        let find = |mib: u64, by: &str, figure: &str, node: Option<&str>| {
            let is = |found: &&Value| {
                (&found["mib"], &found["by"], &found["figure"]) == (&mib.into(), &by.into(), &figure.into())
                    && found["node"].as_str() == node
                    && found["pace"] == "back_to_back"
            };
            figures.iter().find(is).unwrap()
        };
        let prepare = find(1, "farfork", "prepare", None);
        assert_eq!(find(1, "farfork", "checkpoint", None)["reference"], prepare["reference"]);
        assert_eq!((&prepare["reference"], &prepare["below_reference"]), (&0.648.into(), &false.into()));
        assert_eq!((&prepare["unit"], &prepare["samples"]), (&"ms".into(), &3.into()));
        assert!(find(3, "farfork", "resume", Some("other"))["reference"].is_null());
        assert!(find(1, "link", "execution", None)["below_reference"].is_null());
        assert!(find(1, "farfork", "resume", Some("other"))["reference"].is_null());
        assert_eq!(find(1, "farfork", "first_resume", Some("other"))["reference"], 2.918);
    }

    #[test]
    fn an_execution_is_compared_with_the_same_touches_of_a_local_fork() {
        let section = results(&[], 1.0).section;
        section.require_published_rows();
        let execution = section.figure("execution", "64", "own node");
        assert_eq!((execution.floor, execution.reference), (Some(64.0), Some(75.376)));
        assert_eq!(section.figure("checkpoint", "64", "prepare").floor, Some(64.0));
        let sequential = results(&["--sequential"], 1.0).section;
        assert_eq!(sequential.figure("execution", "64", "own node").reference, None);
        assert_ne!(section.title, sequential.title);
        let plot = section.plots.iter().find(|plot| plot.id == "execution").unwrap();
        let reference = plot.series.iter().find(|series| series.role == SeriesRole::Reference).unwrap();
        let last = reference.points.last().unwrap();
        assert_eq!((reference.points.len(), last.x, last.y), (10, 1024.0, 1246.94));
    }

    #[test]
    fn a_published_resume_is_that_of_a_first_child() {
        let later = results(&["--mib", "1"], 1.0).section;
        assert_eq!(later.figure("resume", "1", "other node").reference, None);
        assert_eq!(later.figure("first-resume", "1", "other node").reference, Some(2.918));
        let containers = later.figure("first-resume", "1", "containers, other node");
        assert_eq!((containers.median, containers.reference), (1000.0, Some(1e3 / 2.918)));
        let first = results(&["--mib", "1", "--first"], 1.0).section;
        assert_eq!(first.figure("resume", "1", "other node").reference, Some(2.918));
    }
}
