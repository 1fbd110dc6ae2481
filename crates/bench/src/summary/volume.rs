//! The summary of `farfork bench volume`: tables as text, and a JSON document for scripts. Both have published figures for
//! comparison.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::experiment::volume::availability::AvailabilityRun;
use crate::experiment::volume::storage::REPLICAS;
use crate::machine::{CpuDivision, MachineState};
use crate::parameters::volume::{
    OffloadVariant, StorageSystem, VolumeCase, VolumeExperiment, VolumeFigure, VolumeParameters, VolumeSampleKey,
};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};
use crate::workload::leveldb::LeveldbWorkload;

/// All figures of a run.
#[derive(Debug)]
pub struct VolumeSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: VolumeParameters,
    samples: Samples<VolumeSampleKey>,
    pub(super) availability: Option<AvailabilityRun>,
    /// Version and settings of GlusterFS, or the reason why it was not measured; `None` if it was not wanted.
    gluster: Option<Result<Vec<String>, String>>,
}

impl VolumeSummary {
    pub(crate) fn new(
        plan: &VolumeParameters,
        mut samples: Samples<VolumeSampleKey>,
        availability: Option<AvailabilityRun>,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        let machine_state = MachineState::detect();
        Ok(Self { machine_state, plan: plan.clone(), samples, availability, gluster: None })
    }

    /// Adds the settings of GlusterFS, or the reason why it was not measured.
    pub(crate) fn with_gluster_settings(self, gluster: Option<Result<Vec<String>, String>>) -> Self {
        Self { gluster, ..self }
    }

    pub(super) fn spread(&self, case: &VolumeCase, system: StorageSystem, figure: VolumeFigure) -> Option<Spread> {
        self.samples.spread(&VolumeSampleKey { case: *case, system, figure })
    }

    /// The cases of an experiment in the order of the table.
    pub(super) fn cases(&self, experiment: VolumeExperiment) -> Vec<VolumeCase> {
        self.plan.cases().into_iter().filter(|case| case.experiment == experiment).collect()
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&VolumeSampleKey, Spread)| figure_json(key, spread, None);
        json!({
            "benchmark": "volume",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "availability": self.availability,
            "gluster": self.gluster_notes(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let tables = [
            self.latency_table(),
            self.throughput_table(),
            self.interference_table(),
            self.copy_methods_table(),
            self.filebench_table(),
            self.leveldb_table(),
            self.availability_table(),
        ];
        let tables = tables.into_iter().flatten();
        let tables: Vec<String> = tables.map(|table| table.render()).collect();
        let notes = self.notes().join("\n");
        format!("{}\n\n{}\n\n{notes}\n", self.machine_state.describe(), tables.join("\n\n"))
    }

    /// Sentences that explain the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        let inline =
            "Inline: the daemons replicate, without a process of their own. Its reference is Assise.".to_owned();
        let cpus = CpuDivision::detect().filter(|_| self.plan.pins_cpus);
        let pinned = cpus.map(|CpuDivision { offload, others }| {
            format!("Pinned: the offload processes have CPU {offload}, everything else has {others}. See --pin.")
        });
        let inline = self.plan.offload.contains(&OffloadVariant::Inline).then_some(inline);
        let notes = vec![
            format!("Volume: three replicas in memory, logs of {} MiB, a new volume for each row.", self.plan.log_mib),
            "Sockets: the same bytes along the chain of three nodes, without storage.".to_owned(),
            format!("tmpfs, disk ({}): one copy on this machine.", self.plan.disk.display()),
            "Busy: a program on each replica computes all the time. All nodes share the processors of this machine."
                .to_owned(),
            "LevelDB: each write of fillsync waits for all replicas. In the published run it waits for none."
                .to_owned(),
            "Slow seconds: those from a fault to the next one with less than half of the median.".to_owned(),
            format!("Reference: {}.", PUBLISHED_FIGURES.volume.source),
        ];
        inline.into_iter().chain(pinned).chain(self.gluster_notes()).chain(notes).collect()
    }

    fn gluster_notes(&self) -> Vec<String> {
        match &self.gluster {
            None => Vec::new(),
            Some(Ok(settings)) => settings.iter().map(|line| format!("Gluster: {line}.")).collect(),
            Some(Err(reason)) => vec![format!("Gluster: not measured: {reason}.")],
        }
    }

    fn is_measured(&self, case: &VolumeCase, system: StorageSystem) -> bool {
        self.plan.points_to_measure().contains(&(*case, system))
    }

    fn latency_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::Latency);
        let bytes = self.plan.operation_bytes;
        let title = format!("write({bytes}) and fsync, {} times, µs: median of runs (p10–p90)", self.plan.operations);
        let headings = ["replicas", "system", "mean", "ref.", "p50", "p99", "p99.9", "p99.99", "fsync alone"];
        let mut table = FigureTable::new(&title, &headings);
        for case in &cases {
            let reference = PUBLISHED_FIGURES.volume.latency(case.load).map(|reference| reference.mean_us);
            for system in StorageSystem::ALL.into_iter().filter(|system| self.is_measured(case, *system)) {
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

    fn interference_table(&self) -> Option<FigureTable> {
        let case = *self.cases(VolumeExperiment::Interference).first()?;
        let (points, mib) = (self.plan.points, self.plan.mib);
        let title = format!("Clustering of {points} points on each node while one writes {mib} MiB, s (p10–p90)");
        let headings = ["system", "node", "alone", "next to the writer", "slowdown", "ref.", "writer, MiB/s", "ref."];
        let mut table = FigureTable::new(&title, &headings);
        for system in self.volume_systems() {
            let seconds = |figure| self.spread(&case, system, figure);
            let reference = PUBLISHED_FIGURES.volume.interference(system);
            for (node, ((alone, next), published)) in INTERFERENCE_FIGURES.iter().zip(reference.slowdowns()).enumerate()
            {
                let is_first = node == 0;
                table.add_row([
                    system.name().to_owned(),
                    if is_first { "first" } else { "replica" }.to_owned(),
                    format_spread(seconds(*alone)),
                    format_spread(seconds(*next)),
                    self.slowdowns(&case, system)[node].map_or("–".to_owned(), format_figure),
                    format_figure(published),
                    if is_first { format_spread(seconds(VolumeFigure::WriteMibPerS)) } else { "–".to_owned() },
                    if is_first { format_figure(reference.mib_per_s) } else { "–".to_owned() },
                ]);
            }
        }
        Some(table)
    }

    /// Volumes that are measured: with offload processes, inline, or both.
    pub(super) fn volume_systems(&self) -> Vec<StorageSystem> {
        let system = |variant: &OffloadVariant| match variant {
            OffloadVariant::On => StorageSystem::Volume,
            OffloadVariant::Inline => StorageSystem::Inline,
        };
        self.plan.offload.iter().map(system).collect()
    }

    /// Time of a computation next to a writer ÷ its time alone: on the first node, and on a replica.
    pub(super) fn slowdowns(&self, case: &VolumeCase, system: StorageSystem) -> [Option<f64>; 2] {
        let median = |figure| self.spread(case, system, figure).map(|spread| spread.median);
        INTERFERENCE_FIGURES.map(|(alone, next)| Some(median(next)? / median(alone)?))
    }

    fn copy_methods_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::CopyMethods);
        let (points, mib) = (self.plan.points, self.plan.mib);
        let title =
            format!("Four writers of {mib} MiB by copy method, and a clustering of {points} points on each replica");
        let headings = ["method", "alone, s", "next to writers, s", "slowdown", "ref.", "writers, MiB/s", "ref."];
        let mut table = FigureTable::new(&title, &headings);
        for case in &cases {
            let spread = |figure| format_spread(self.spread(case, StorageSystem::Volume, figure));
            let optional = |value: Option<f64>| value.map_or("–".to_owned(), format_figure);
            let published = PUBLISHED_FIGURES.volume.copy_method(case.copy_method);
            table.add_row([
                case.copy_method.to_owned(),
                spread(VolumeFigure::ReplicaAloneS),
                spread(VolumeFigure::ReplicaS),
                optional(self.slowdowns(case, StorageSystem::Volume)[1]),
                optional(PUBLISHED_FIGURES.volume.copy_slowdown(case.copy_method)),
                spread(VolumeFigure::WriteMibPerS),
                optional(published.map(|published| published.mib_per_s)),
            ]);
        }
        (!cases.is_empty()).then_some(table)
    }

    fn filebench_table(&self) -> Option<FigureTable> {
        let cases = [VolumeExperiment::Varmail, VolumeExperiment::Fileserver].map(|experiment| self.cases(experiment));
        let cases = cases.concat();
        let title = format!("Operations per second for {} s: median of runs (p10–p90)", self.plan.seconds);
        let mut table =
            FigureTable::new(&title, &["loop", "files", "replicas", "volume", "inline", "tmpfs", "disk", "gluster"]);
        for case in &cases {
            let rate = |system| format_spread(self.spread(case, system, VolumeFigure::OperationsPerS));
            table.add_row([
                case.experiment.name().to_owned(),
                self.files_of(case.experiment).to_string(),
                case.load.name().to_owned(),
                rate(StorageSystem::Volume),
                rate(StorageSystem::Inline),
                rate(StorageSystem::Tmpfs),
                rate(StorageSystem::Disk),
                rate(StorageSystem::Gluster),
            ]);
        }
        (!cases.is_empty()).then_some(table)
    }

    fn leveldb_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::Leveldb);
        let mut table = FigureTable::new(
            &self.leveldb_title(),
            &["replicas", "workload", "volume", "ref.", "inline", "ref.", "tmpfs", "disk", "gluster"],
        );
        for (case, workload) in cases.iter().flat_map(|case| LeveldbWorkload::ALL.map(|workload| (case, workload))) {
            let time = |system| format_spread(self.spread(case, system, workload.figure()));
            let published = |system| {
                let published = PUBLISHED_FIGURES.volume.leveldb_us(system, case.load, workload);
                published.map_or("–".to_owned(), format_figure)
            };
            table.add_row([
                case.load.name().to_owned(),
                workload.name().to_owned(),
                time(StorageSystem::Volume),
                published(StorageSystem::Volume),
                time(StorageSystem::Inline),
                published(StorageSystem::Inline),
                time(StorageSystem::Tmpfs),
                time(StorageSystem::Disk),
                time(StorageSystem::Gluster),
            ]);
        }
        (!cases.is_empty()).then_some(table)
    }

    pub(super) fn leveldb_title(&self) -> String {
        let (entries, synced) = (self.plan.entries, self.plan.synced_entries());
        format!("LevelDB with {entries} entries of 1 KiB ({synced} in fillsync), µs per operation")
    }

    pub(super) fn files_of(&self, experiment: VolumeExperiment) -> u64 {
        match experiment {
            VolumeExperiment::Fileserver => self.plan.server_files,
            _ => self.plan.mail_files,
        }
    }

    fn availability_table(&self) -> Option<FigureTable> {
        let run = self.availability.as_ref()?;
        let median = format_figure(run.median_per_s());
        let title = format!("A mail server during faults; its median is {median} operations per second");
        let headings = ["fault", "node", "from, s", "until, s", "lowest second, 1/s", "slow seconds", "longest, ms"];
        let mut table = FigureTable::new(&title, &headings);
        for fault in &run.faults {
            let figure = |value: Option<f64>| value.map_or("–".to_owned(), format_figure);
            table.add_row([
                fault.kind.name().to_owned(),
                format!("{} of {REPLICAS}", fault.node + 1),
                format!("{:.1}", fault.from_s),
                format!("{:.1}", fault.until_s),
                figure(run.lowest_per_s(fault)),
                run.slow_seconds(fault).to_string(),
                figure(run.longest_ms(fault)),
            ]);
        }
        Some(table)
    }

    fn throughput_table(&self) -> Option<FigureTable> {
        let cases = self.cases(VolumeExperiment::Throughput);
        let (bytes, mib) = (self.plan.operation_bytes, self.plan.mib);
        let title = format!("write({bytes}), {mib} MiB in all, one fsync at the end, MiB/s: median of runs (p10–p90)");
        let headings = ["replicas", "processes", "volume", "ref.", "inline", "sockets", "tmpfs", "disk", "gluster"];
        let mut table = FigureTable::new(&title, &headings);
        for case in &cases {
            let rate = |system| format_spread(self.spread(case, system, VolumeFigure::WriteMibPerS));
            table.add_row([
                case.load.name().to_owned(),
                case.processes.to_string(),
                rate(StorageSystem::Volume),
                reference_text(StorageSystem::Volume, PUBLISHED_FIGURES.volume.mib_per_s(case.load, case.processes)),
                rate(StorageSystem::Inline),
                rate(StorageSystem::SocketChain),
                rate(StorageSystem::Tmpfs),
                rate(StorageSystem::Disk),
                rate(StorageSystem::Gluster),
            ]);
        }
        (!cases.is_empty()).then_some(table)
    }
}

/// The figures of the first node and of a replica: alone, and next to a writer.
pub(super) const INTERFERENCE_FIGURES: [(VolumeFigure, VolumeFigure); 2] =
    [(VolumeFigure::FirstNodeAloneS, VolumeFigure::FirstNodeS), (VolumeFigure::ReplicaAloneS, VolumeFigure::ReplicaS)];

/// Formats the reference of a system. Only `StorageSystem::Volume` has one; others get a dash.
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
            points: 600,
            mail_files: 50,
            server_files: 500,
            entries: 5000,
            seconds: 3.0,
            period_s: 4.0,
            offload: vec![OffloadVariant::On],
            copy_methods: vec!["memcpy"],
            pins_cpus: false,
            log_mib: 64,
            runs: 1,
            disk: "/var/tmp".into(),
            with_gluster: true,
            samples_file: None,
        };
        let mut samples = Samples::new();
        let mut add = |experiment, processes, system, figure, value| {
            let case = VolumeCase { experiment, load: ReplicaLoad::Idle, processes, copy_method: "memcpy" };
            samples.add(VolumeSampleKey { case, system, figure }, value).unwrap();
        };
        add(VolumeExperiment::Latency, 1, StorageSystem::Volume, VolumeFigure::SyncedWriteUs, 321.0);
        add(VolumeExperiment::Latency, 1, StorageSystem::SocketChain, VolumeFigure::SyncedWriteUs, 45.0);
        add(VolumeExperiment::Throughput, 4, StorageSystem::Volume, VolumeFigure::WriteMibPerS, 777.0);
        add(VolumeExperiment::Throughput, 4, StorageSystem::Gluster, VolumeFigure::WriteMibPerS, 55.0);
        let summary = VolumeSummary::new(&plan, samples, None).unwrap();
        let summary = summary.with_gluster_settings(Some(Err("it is not installed".to_owned())));
        let (text, document) = (summary.to_text(), summary.to_json());
        for expected in ["321", "148", "45.0", "777", "2113", "55.0", "not installed"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        let latency = &document["section"]["tables"][0];
        assert_eq!((&latency["id"], latency["rows"].as_array().unwrap().len()), (&"latency".into(), 1), "{latency}");
    }
}
