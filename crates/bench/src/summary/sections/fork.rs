//! The section of `farfork bench fork`: prepare, resume and execution by size.

use super::{time_cell, time_cell_with_floor};
use crate::figure::{ChildPlace, ForkFigure, ForkSampleKey, ForkSystem, MIB_BYTES, Pace};
use crate::parameters::strategies::{StrategyChildFigures, StrategyFigures};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::{ReportSection, SectionSource};
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::samples::Spread;
use crate::summary::fork::ForkSummary;
use crate::workload::micro::{TouchAccess, TouchOrder};

/// A series of a plot by size: its name, its role, and its key with a size of 0 MiB.
type KeyedSeries = (&'static str, SeriesRole, ForkSampleKey);

impl SectionSource for ForkSummary {
    fn section(&self) -> ReportSection {
        let question = "How long does it take to prepare a process of some size, to start a child of it, and to touch \
                        every page in the child?";
        let subject = if self.strategies.is_empty() { "Fork by size" } else { "Fork strategies" };
        let touches = match (self.plan.order, self.plan.access) {
            (TouchOrder::Random, TouchAccess::Read) => "random reads",
            (TouchOrder::Random, TouchAccess::Write) => "random writes",
            (TouchOrder::Sequential, TouchAccess::Read) => "sequential reads",
            (TouchOrder::Sequential, TouchAccess::Write) => "sequential writes",
        };
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        let section = ReportSection::new("fork", format!("{subject}: {touches}"), question, &self.machine_state)
            .with_table(self.prepare_call_section_table())
            .with_table(self.prepare_section_table())
            .with_table(self.resume_section_table())
            .with_table(self.execution_section_table())
            .with_table(self.strategies_section_table())
            .with_table(self.peer_section_table())
            .with_plot(self.prepare_plot())
            .with_plot(self.resume_plot())
            .with_plot(self.execution_plot())
            .with_note(format!("Memory crosses the link between the nodes {link}."))
            .with_note(
                "Floors: of a pause and a prepare, fork(2) of the same process; of an execution on the parent's node, the \
                 same touches in a child of fork(2); of an execution on the other node, the same bytes over the same link by \
                 two bare programs.",
            )
            .with_note(format!("Reference: {}.", PUBLISHED_FIGURES.fork.source));
        self.notes.iter().fold(section, |section, note| section.with_note(note.as_str()))
    }
}

impl ForkSummary {
    fn prepare_call_section_table(&self) -> ReportTable {
        let title = "Prepare, called by the program itself";
        let mut table = ReportTable::new("checkpoint", title, &["MiB", "prepare", "after idle", "pause"]);
        for &mib in &self.plan.sizes_mib {
            let checkpoint = ForkSampleKey::for_farfork(mib, ForkFigure::Checkpoint);
            let fork = self.spread(local_fork(mib, ForkFigure::Pause));
            table.add_row([
                ReportCell::text(mib),
                self.compared_cell(checkpoint, fork),
                self.compared_cell(checkpoint.with_pace(Pace::Idle), fork),
                time_cell_with_floor(
                    self.spread(ForkSampleKey::for_farfork(mib, ForkFigure::CheckpointPause)),
                    "ms",
                    fork,
                ),
            ]);
        }
        table
    }

    fn prepare_section_table(&self) -> ReportTable {
        let title = "Prepare by process id: from another process's request to the answer";
        let mut table = ReportTable::new("prepare", title, &["MiB", "prepare", "after idle", "on the node", "pause"]);
        for &mib in &self.plan.sizes_mib {
            let of = |figure| ForkSampleKey::for_farfork(mib, figure);
            let fork = self.spread(local_fork(mib, ForkFigure::Pause));
            table.add_row([
                ReportCell::text(mib),
                self.compared_cell(of(ForkFigure::Prepare), None),
                self.compared_cell(of(ForkFigure::Prepare).with_pace(Pace::Idle), None),
                time_cell(self.spread(of(ForkFigure::PrepareOnNode)), "ms"),
                time_cell_with_floor(self.spread(of(ForkFigure::Pause)), "ms", fork),
            ]);
        }
        table
    }

    fn resume_section_table(&self) -> ReportTable {
        let title = "Resume: from the request to the child's first instruction";
        let columns = ["MiB", "own node", "own node, after idle", "other node", "other node, after idle"];
        let mut table = ReportTable::new("resume", title, &columns);
        for &mib in &self.plan.sizes_mib {
            let of = |place, pace| {
                let key = ForkSampleKey::for_farfork(mib, ForkFigure::Resume).with_place(place).with_pace(pace);
                self.compared_cell(key, None)
            };
            table.add_row([
                ReportCell::text(mib),
                of(ChildPlace::Own, Pace::BackToBack),
                of(ChildPlace::Own, Pace::Idle),
                of(ChildPlace::Other, Pace::BackToBack),
                of(ChildPlace::Other, Pace::Idle),
            ]);
        }
        table
    }

    fn execution_section_table(&self) -> ReportTable {
        let title = "Execution: every page once in the child";
        let mut table = ReportTable::new("execution", title, &["MiB", "own node", "other node"]);
        for &mib in &self.plan.sizes_mib {
            let key = ForkSampleKey::for_farfork(mib, ForkFigure::Execution);
            let floors = [ForkSystem::LocalFork, ForkSystem::Link]
                .map(|by| self.spread(ForkSampleKey::new(mib, by, ForkFigure::Execution)));
            table.add_row([
                ReportCell::text(mib),
                self.compared_cell(key.with_place(ChildPlace::Own), floors[0]),
                self.compared_cell(key.with_place(ChildPlace::Other), floors[1]),
            ]);
        }
        table
    }

    fn strategies_section_table(&self) -> ReportTable {
        let title = "Strategies: every page once in a child on the other node";
        let columns = ["MiB", "strategy", "child", "whole", "touching", "faults", "reads", "network", "cache"];
        let mut table = ReportTable::new("strategies", title, &columns);
        for StrategyFigures { mib, strategy, first, second } in &self.strategies {
            for (name, child) in [("first", first), ("second", second)] {
                let StrategyChildFigures { samples, whole_ms, touching_ms, faults_missing, round_trips, .. } = child;
                let of = |value: f64, unit| {
                    let figure = ReportFigure::single(value, unit, BetterDirection::Lower);
                    ReportCell::Figure(ReportFigure { samples: *samples, ..figure })
                };
                table.add_row([
                    ReportCell::text(mib),
                    ReportCell::text(strategy),
                    ReportCell::text(name),
                    of(*whole_ms, "ms"),
                    of(*touching_ms, "ms"),
                    of(*faults_missing, ""),
                    of(*round_trips, ""),
                    of(child.network_bytes / MIB_BYTES, "MiB"),
                    of(child.cached_bytes / MIB_BYTES, "MiB"),
                ]);
            }
        }
        table
    }

    fn peer_section_table(&self) -> ReportTable {
        let columns = ["MiB", "system", "prepare", "resume", "execution"];
        let mut table = ReportTable::new("peer", "CRIU: the same process cloned by dump and restore", &columns);
        let systems = [
            ("farfork, own node", ForkSystem::Farfork),
            ("CRIU, eager", ForkSystem::CriuEager),
            ("CRIU, lazy", ForkSystem::CriuLazy),
        ];
        let sizes_mib = self.plan.peer.map_or(&[][..], |_| &self.plan.sizes_mib);
        for &mib in sizes_mib {
            for (name, by) in systems {
                let of = |figure| ForkSampleKey::new(mib, by, figure);
                table.add_row([
                    ReportCell::text(mib),
                    ReportCell::text(name),
                    time_cell(self.spread(of(ForkFigure::Prepare)), "ms"),
                    time_cell(self.spread(of(ForkFigure::Resume).with_place(ChildPlace::Own)), "ms"),
                    time_cell(self.spread(of(ForkFigure::Execution).with_place(ChildPlace::Own)), "ms"),
                ]);
            }
        }
        table
    }

    /// A figure with its floor and its published reference.
    fn compared_cell(&self, key: ForkSampleKey, floor: Option<Spread>) -> ReportCell {
        let figure = self.spread(key).map(|spread| ReportFigure::lower(spread, "ms"));
        let floor = floor.map(|floor| floor.median);
        figure.map(|figure| figure.with_floor(floor).with_reference(self.published_ms(key.figure, key.mib))).into()
    }

    /// The published time. Published executions touch pages in random order, so other orders have none.
    fn published_ms(&self, figure: ForkFigure, mib: u64) -> Option<f64> {
        let is_comparable = figure != ForkFigure::Execution || self.plan.order == TouchOrder::Random;
        PUBLISHED_FIGURES.fork.published_ms(figure, mib).filter(|_| is_comparable)
    }

    fn prepare_plot(&self) -> ReportPlot {
        let of = |figure| ForkSampleKey::for_farfork(0, figure);
        let series = [
            ("prepare, own call", SeriesRole::Measured, of(ForkFigure::Checkpoint)),
            ("prepare by process id", SeriesRole::Measured, of(ForkFigure::Prepare)),
            ("pause", SeriesRole::Measured, of(ForkFigure::Pause)),
            ("fork(2)", SeriesRole::Floor, local_fork(0, ForkFigure::Pause)),
        ];
        self.plot("prepare", "Prepare by size", &series, ForkFigure::Prepare)
    }

    fn resume_plot(&self) -> ReportPlot {
        let of = |place| ForkSampleKey::for_farfork(0, ForkFigure::Resume).with_place(place);
        let series = [
            ("own node", SeriesRole::Measured, of(ChildPlace::Own)),
            ("other node", SeriesRole::Measured, of(ChildPlace::Other)),
            ("other node, after idle", SeriesRole::Measured, of(ChildPlace::Other).with_pace(Pace::Idle)),
        ];
        self.plot("resume", "Resume by size", &series, ForkFigure::Resume)
    }

    fn execution_plot(&self) -> ReportPlot {
        let of = |place| ForkSampleKey::for_farfork(0, ForkFigure::Execution).with_place(place);
        let floor = |by| ForkSampleKey::new(0, by, ForkFigure::Execution);
        let series = [
            ("own node", SeriesRole::Measured, of(ChildPlace::Own)),
            ("other node", SeriesRole::Measured, of(ChildPlace::Other)),
            ("fork(2)", SeriesRole::Floor, floor(ForkSystem::LocalFork)),
            ("bare link", SeriesRole::Floor, floor(ForkSystem::Link)),
        ];
        self.plot("execution", "Execution by size: every page once", &series, ForkFigure::Execution)
    }

    fn plot(&self, id: &str, title: &str, series: &[KeyedSeries], reference: ForkFigure) -> ReportPlot {
        let (size, time) = (PlotAxis::new("private memory", "MiB"), PlotAxis::new("time", "ms"));
        let plot = ReportPlot::new(PlotKind::BySize, id, title, size, time);
        let sizes = || self.plan.sizes_mib.iter().copied();
        let plot = series.iter().fold(plot, |plot, &(name, role, key)| {
            let point = |mib| {
                let spread = self.spread(ForkSampleKey { mib, ..key })?;
                Some(PlotPoint::of_spread(mib as f64, spread))
            };
            plot.with_series(name, role, sizes().filter_map(point))
        });
        let published = |mib| Some(PlotPoint::new(mib as f64, self.published_ms(reference, mib)?));
        plot.with_series("reference", SeriesRole::Reference, sizes().filter_map(published))
    }
}

fn local_fork(mib: u64, figure: ForkFigure) -> ForkSampleKey {
    ForkSampleKey::new(mib, ForkSystem::LocalFork, figure)
}
