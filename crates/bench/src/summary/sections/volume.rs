//! The section of `farfork bench volume`: a table for each experiment, and plots of throughput and availability.

use super::time_cell;
use crate::parameters::volume::{StorageSystem, VolumeCase, VolumeExperiment, VolumeFigure};
use crate::reference::{PUBLISHED_FIGURES, VolumeLatencyReference};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::summary::volume::{INTERFERENCE_FIGURES, VolumeSummary};
use crate::workload::filebench::INTERVAL_S;
use crate::workload::leveldb::LeveldbWorkload;

impl SectionSource for VolumeSummary {
    fn section(&self) -> ReportSection {
        let question = "What does a write to three replicas cost, next to sockets and to a local file system?";
        let section = ReportSection::new("volume", "Volumes", question, &self.machine_state)
            .with_table(self.latency_section_table())
            .with_table(self.throughput_section_table())
            .with_table(self.interference_section_table())
            .with_table(self.copy_methods_section_table())
            .with_table(self.filebench_section_table())
            .with_table(self.leveldb_section_table())
            .with_table(self.availability_section_table())
            .with_plot(self.throughput_plot());
        let section = self.availability_plot().into_iter().fold(section, ReportSection::with_plot);
        self.notes().into_iter().fold(section, ReportSection::with_note)
    }
}

impl VolumeSummary {
    fn latency_section_table(&self) -> ReportTable {
        let title =
            format!("write({}) and fsync, {} times on each volume", self.plan.operation_bytes, self.plan.operations);
        let columns = [
            "replicas",
            "mean",
            "p50",
            "p99",
            "p99.9",
            "p99.99",
            "fsync alone",
            "inline, mean",
            "tmpfs, mean",
            "disk, mean",
            "gluster, mean",
        ];
        let mut table = ReportTable::new("latency", title, &columns);
        for case in self.cases(VolumeExperiment::Latency) {
            let mean = |system| self.spread(&case, system, VolumeFigure::SyncedWriteUs);
            let reference = PUBLISHED_FIGURES.volume.latency(case.load);
            let cell = |figure, published: fn(&VolumeLatencyReference) -> Option<f64>| -> ReportCell {
                let measured = self.spread(&case, StorageSystem::Volume, figure);
                let floor = self.spread(&case, StorageSystem::SocketChain, figure).map(|floor| floor.median);
                let figure = measured.map(|spread| ReportFigure::lower(spread, "µs").with_floor(floor));
                figure.map(|figure| figure.with_reference(reference.and_then(published))).into()
            };
            table.add_row([
                ReportCell::text(case.load.name()),
                cell(VolumeFigure::SyncedWriteUs, |reference| Some(reference.mean_us)),
                cell(VolumeFigure::SyncedWriteP50Us, |_| None),
                cell(VolumeFigure::SyncedWriteP99Us, |reference| Some(reference.p99_us)),
                cell(VolumeFigure::SyncedWriteP999Us, |reference| Some(reference.p999_us)),
                cell(VolumeFigure::SyncedWriteP9999Us, |_| None),
                cell(VolumeFigure::SyncUs, |reference| Some(reference.sync_us)),
                time_cell(mean(StorageSystem::Inline), "µs"),
                time_cell(mean(StorageSystem::Tmpfs), "µs"),
                time_cell(mean(StorageSystem::Disk), "µs"),
                time_cell(mean(StorageSystem::Gluster), "µs"),
            ]);
        }
        table
    }

    fn throughput_section_table(&self) -> ReportTable {
        let (bytes, mib) = (self.plan.operation_bytes, self.plan.mib);
        let title = format!("write({bytes}), {mib} MiB in all, one fsync at the end");
        let columns = ["replicas", "processes", "volume", "inline", "tmpfs", "disk", "gluster"];
        let mut table = ReportTable::new("throughput", title, &columns);
        for case in self.cases(VolumeExperiment::Throughput) {
            let volume = self.rate(&case, StorageSystem::Volume).map(|figure| {
                let floor = self.spread(&case, StorageSystem::SocketChain, VolumeFigure::WriteMibPerS);
                let reference = PUBLISHED_FIGURES.volume.mib_per_s(case.load, case.processes);
                figure.with_floor(floor.map(|floor| floor.median)).with_reference(reference)
            });
            table.add_row([
                ReportCell::text(case.load.name()),
                ReportCell::text(case.processes),
                volume.into(),
                self.rate(&case, StorageSystem::Inline).into(),
                self.rate(&case, StorageSystem::Tmpfs).into(),
                self.rate(&case, StorageSystem::Disk).into(),
                self.rate(&case, StorageSystem::Gluster).into(),
            ]);
        }
        table
    }

    fn interference_section_table(&self) -> ReportTable {
        let (points, mib) = (self.plan.points, self.plan.mib);
        let title = format!("Clustering of {points} points on each node while the first one writes {mib} MiB");
        let columns = ["system", "node", "alone", "next to the writer", "slowdown", "writer"];
        let mut table = ReportTable::new("interference", title, &columns);
        let cases = self.cases(VolumeExperiment::Interference);
        let systems = cases.iter().flat_map(|case| self.volume_systems().into_iter().map(move |system| (case, system)));
        for (case, system) in systems {
            let seconds = |figure| self.spread(case, system, figure);
            let reference = PUBLISHED_FIGURES.volume.interference(system);
            let slowdowns = self.slowdowns(case, system);
            for (node, ((alone, next), published)) in INTERFERENCE_FIGURES.iter().zip(reference.slowdowns()).enumerate()
            {
                let slowdown = slowdowns[node].map(|times| {
                    ReportFigure::single(times, "×", BetterDirection::Lower).with_reference(Some(published))
                });
                let rate = self.rate(case, system).filter(|_| node == 0);
                table.add_row([
                    ReportCell::text(system.name()),
                    ReportCell::text(if node == 0 { "first" } else { "replica" }),
                    time_cell(seconds(*alone), "s"),
                    time_cell(seconds(*next), "s"),
                    slowdown.into(),
                    rate.map(|rate| rate.with_reference(Some(reference.mib_per_s))).into(),
                ]);
            }
        }
        table
    }

    fn copy_methods_section_table(&self) -> ReportTable {
        let (points, mib) = (self.plan.points, self.plan.mib);
        let title = format!("Four writers of {mib} MiB, and a clustering of {points} points on each replica");
        let columns = ["method", "alone", "next to writers", "slowdown", "writers"];
        let mut table = ReportTable::new("copy-methods", title, &columns);
        for case in self.cases(VolumeExperiment::CopyMethods) {
            let seconds = |figure| time_cell(self.spread(&case, StorageSystem::Volume, figure), "s");
            let slowdown = self.slowdowns(&case, StorageSystem::Volume)[1].map(|times| {
                let published = PUBLISHED_FIGURES.volume.copy_slowdown(case.copy_method);
                ReportFigure::single(times, "×", BetterDirection::Lower).with_reference(published)
            });
            let published = PUBLISHED_FIGURES.volume.copy_method(case.copy_method);
            let rate = self.rate(&case, StorageSystem::Volume);
            table.add_row([
                ReportCell::text(case.copy_method),
                seconds(VolumeFigure::ReplicaAloneS),
                seconds(VolumeFigure::ReplicaS),
                slowdown.into(),
                rate.map(|rate| rate.with_reference(published.map(|published| published.mib_per_s))).into(),
            ]);
        }
        table
    }

    fn filebench_section_table(&self) -> ReportTable {
        let title = format!("Operations per second for {} s", self.plan.seconds);
        let mut table = ReportTable::new(
            "filebench",
            title,
            &["loop", "files", "replicas", "volume", "inline", "tmpfs", "disk", "gluster"],
        );
        for experiment in [VolumeExperiment::Varmail, VolumeExperiment::Fileserver] {
            for case in self.cases(experiment) {
                let rate = |system| -> ReportCell {
                    let spread = self.spread(&case, system, VolumeFigure::OperationsPerS);
                    spread.map(|spread| ReportFigure::higher(spread, "1/s")).into()
                };
                table.add_row([
                    ReportCell::text(experiment.name()),
                    ReportCell::text(self.files_of(experiment)),
                    ReportCell::text(case.load.name()),
                    rate(StorageSystem::Volume),
                    rate(StorageSystem::Inline),
                    rate(StorageSystem::Tmpfs),
                    rate(StorageSystem::Disk),
                    rate(StorageSystem::Gluster),
                ]);
            }
        }
        table
    }

    fn leveldb_section_table(&self) -> ReportTable {
        let columns = ["replicas", "workload", "volume", "inline", "tmpfs", "disk", "gluster"];
        let mut table = ReportTable::new("leveldb", self.leveldb_title(), &columns);
        for case in self.cases(VolumeExperiment::Leveldb) {
            for workload in LeveldbWorkload::ALL {
                let time = |system| self.spread(&case, system, workload.figure());
                let with_reference = |system| -> ReportCell {
                    let reference = PUBLISHED_FIGURES.volume.leveldb_us(system, case.load, workload);
                    time(system).map(|spread| ReportFigure::lower(spread, "µs").with_reference(reference)).into()
                };
                table.add_row([
                    ReportCell::text(case.load.name()),
                    ReportCell::text(workload.name()),
                    with_reference(StorageSystem::Volume),
                    with_reference(StorageSystem::Inline),
                    time_cell(time(StorageSystem::Tmpfs), "µs"),
                    time_cell(time(StorageSystem::Disk), "µs"),
                    time_cell(time(StorageSystem::Gluster), "µs"),
                ]);
            }
        }
        table
    }

    fn availability_section_table(&self) -> ReportTable {
        let columns = ["fault", "place in the chain", "slow seconds", "lowest second", "longest operation"];
        let title = "A mail server while processes of each node in turn are stopped or killed";
        let mut table = ReportTable::new("availability", title, &columns);
        let Some(run) = &self.availability else { return table };
        for fault in &run.faults {
            let slow = run.slow_seconds(fault) as f64;
            table.add_row([
                ReportCell::text(fault.kind.name()),
                ReportCell::text(fault.node + 1),
                Some(ReportFigure::single(slow, "s", BetterDirection::Lower)).into(),
                run.lowest_per_s(fault).map(|rate| ReportFigure::single(rate, "1/s", BetterDirection::Higher)).into(),
                run.longest_ms(fault).map(|ms| ReportFigure::single(ms, "ms", BetterDirection::Lower)).into(),
            ]);
        }
        table
    }

    fn availability_plot(&self) -> Option<ReportPlot> {
        let run = self.availability.as_ref()?;
        let (x, y) = (PlotAxis::new("time", "s"), PlotAxis::new("operations", "1/s"));
        let title = "A mail server during faults: one in each period";
        let plot = ReportPlot::new(PlotKind::OverTime, "availability", title, x, y);
        let points = run.per_s.iter().enumerate();
        let points = points.map(|(second, rate)| PlotPoint::new((second as f64 + 0.5) * INTERVAL_S, *rate));
        let begins = run.faults.iter().map(|fault| PlotPoint::new(fault.from_s, 0.0));
        let plot = plot.with_series("mail server", SeriesRole::Measured, points);
        Some(plot.with_series("faults begin", SeriesRole::Reference, begins))
    }

    fn rate(&self, case: &VolumeCase, system: StorageSystem) -> Option<ReportFigure> {
        let spread = self.spread(case, system, VolumeFigure::WriteMibPerS)?;
        Some(ReportFigure::higher(spread, "MiB/s"))
    }

    fn throughput_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("processes", ""), PlotAxis::new("written and synced", "MiB/s"));
        let plot = ReportPlot::new(PlotKind::Scaling, "throughput", "Sequential writes by processes", x, y);
        self.plan.loads.iter().fold(plot, |plot, load| {
            let cases = self.cases(VolumeExperiment::Throughput).into_iter().filter(|case| case.load == *load);
            let points = |system| {
                let point = |case: VolumeCase| {
                    let spread = self.spread(&case, system, VolumeFigure::WriteMibPerS)?;
                    Some(PlotPoint::new(case.processes as f64, spread.median))
                };
                cases.clone().filter_map(point).collect::<Vec<_>>()
            };
            let name = load.name();
            plot.with_series(&format!("volume, {name}"), SeriesRole::Measured, points(StorageSystem::Volume))
                .with_series(&format!("sockets, {name}"), SeriesRole::Floor, points(StorageSystem::SocketChain))
        })
    }
}
