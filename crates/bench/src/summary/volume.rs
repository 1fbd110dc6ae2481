//! The summary of `farfork bench volume`: tables as text, and a JSON document for scripts. Both have published figures for
//! comparison.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::machine::MachineState;
use crate::parameters::volume::{
    StorageSystem, VolumeCase, VolumeExperiment, VolumeFigure, VolumeParameters, VolumeSampleKey,
};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct VolumeSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: VolumeParameters,
    samples: Samples<VolumeSampleKey>,
}

impl VolumeSummary {
    pub(crate) fn new(plan: &VolumeParameters, mut samples: Samples<VolumeSampleKey>) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples })
    }

    pub(super) fn spread(&self, case: &VolumeCase, system: StorageSystem, figure: VolumeFigure) -> Option<Spread> {
        self.samples.spread(&VolumeSampleKey { case: *case, system, figure })
    }

    /// The cases of an experiment in the order of the table.
    pub(super) fn cases(&self, experiment: VolumeExperiment) -> Vec<VolumeCase> {
        self.plan.cases().into_iter().filter(|case| case.experiment == experiment).collect()
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&VolumeSampleKey, Spread)| figure_json(key, spread, None);
        json!({
            "benchmark": "volume",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let tables = [self.latency_table(), self.throughput_table()].into_iter().flatten();
        let tables: Vec<String> = tables.map(|table| table.render()).collect();
        let notes = self.notes().join("\n");
        format!("{}\n\n{}\n\n{notes}\n", self.machine_state.describe(), tables.join("\n\n"))
    }

    /// What a reader needs to understand the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        vec![
            format!("Volume: three replicas in memory, logs of {} MiB, a new volume for each row.", self.plan.log_mib),
            "Sockets: the same bytes along the chain of three nodes, without storage.".to_owned(),
            format!("tmpfs, disk ({}): one copy on this machine.", self.plan.disk.display()),
            "Busy: a program on each replica computes all the time. All nodes share the processors of this machine."
                .to_owned(),
            format!("Reference: {}.", PUBLISHED_FIGURES.volume.source),
        ]
    }

    fn latency_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::Latency);
        let bytes = self.plan.operation_bytes;
        let title = format!("write({bytes}) and fsync, {} times, µs: median of runs (p10–p90)", self.plan.operations);
        let headings = ["replicas", "system", "mean", "ref.", "p50", "p99", "p99.9", "p99.99", "fsync alone"];
        let mut table = FigureTable::new(&title, &headings);
        for case in &cases {
            let reference = PUBLISHED_FIGURES.volume.latency(case.load).map(|reference| reference.mean_us);
            for system in StorageSystem::ALL {
                let median = |figure| format_median(self.spread(case, system, figure));
                table.add_row([
                    case.load.name().to_owned(),
                    system.name().to_owned(),
                    format_spread(self.spread(case, system, VolumeFigure::SyncedWriteUs)),
                    reference_text(system, reference),
                    median(VolumeFigure::SyncedWriteP50Us),
                    median(VolumeFigure::SyncedWriteP99Us),
                    median(VolumeFigure::SyncedWriteP999Us),
                    median(VolumeFigure::SyncedWriteP9999Us),
                    median(VolumeFigure::SyncUs),
                ]);
            }
        }
        (!cases.is_empty()).then_some(table)
    }

    fn throughput_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::Throughput);
        let (bytes, mib) = (self.plan.operation_bytes, self.plan.mib);
        let title = format!("write({bytes}), {mib} MiB in all, one fsync at the end, MiB/s: median of runs (p10–p90)");
        let headings = ["replicas", "processes", "volume", "ref.", "sockets", "tmpfs", "disk"];
        let mut table = FigureTable::new(&title, &headings);
        for case in &cases {
            let rate = |system| format_spread(self.spread(case, system, VolumeFigure::WriteMibPerS));
            table.add_row([
                case.load.name().to_owned(),
                case.processes.to_string(),
                rate(StorageSystem::Volume),
                reference_text(StorageSystem::Volume, PUBLISHED_FIGURES.volume.mib_per_s(case.load, case.processes)),
                rate(StorageSystem::SocketChain),
                rate(StorageSystem::Tmpfs),
                rate(StorageSystem::Disk),
            ]);
        }
        (!cases.is_empty()).then_some(table)
    }
}

/// Only volumes have a reference.
fn reference_text(system: StorageSystem, reference: Option<f64>) -> String {
    reference.filter(|_| system == StorageSystem::Volume).map_or("–".to_owned(), format_figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::volume::ReplicaLoad;

    #[test]
    fn each_case_has_a_row_next_to_its_reference() {
        let plan = VolumeParameters {
            experiments: vec![VolumeExperiment::Latency, VolumeExperiment::Throughput],
            operation_bytes: 16 << 10,
            operations: 100,
            mib: 64,
            processes: vec![1, 4],
            loads: vec![ReplicaLoad::Idle, ReplicaLoad::Busy],
            log_mib: 64,
            runs: 1,
            disk: "/var/tmp".into(),
            samples_file: None,
        };
        let mut samples = Samples::new();
        let mut add = |experiment, processes, system, figure, value| {
            let case = VolumeCase { experiment, load: ReplicaLoad::Idle, processes };
            samples.add(VolumeSampleKey { case, system, figure }, value).unwrap();
        };
        add(VolumeExperiment::Latency, 1, StorageSystem::Volume, VolumeFigure::SyncedWriteUs, 321.0);
        add(VolumeExperiment::Latency, 1, StorageSystem::SocketChain, VolumeFigure::SyncedWriteUs, 45.0);
        add(VolumeExperiment::Throughput, 4, StorageSystem::Volume, VolumeFigure::WriteMibPerS, 777.0);
        let summary = VolumeSummary::new(&plan, samples).unwrap();
        let (text, document) = (summary.to_text(), summary.to_json());
        for expected in ["321", "148", "45.0", "777", "2113"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        let latency = &document["section"]["tables"][0];
        assert_eq!((&latency["id"], latency["rows"].as_array().unwrap().len()), (&"latency".into(), 1), "{latency}");
    }
}
