//! The results of `farfork bench volume`: a table for each experiment, and plots of throughput and availability.

use serde_json::json;

use super::availability::AvailabilityRun;
use super::case::{OffloadVariant, StorageSystem, VolumeCase, VolumeExperiment};
use super::{
    BenchResults, BenchVolume, FIRST_NODE, FIRST_NODE_ALONE, Figure, FigureSamples, OPERATION_RATE, REPLICA,
    REPLICA_ALONE, SYNC, SYNCED_WRITE, SYNCED_WRITE_P50, SYNCED_WRITE_P99, SYNCED_WRITE_P999, SYNCED_WRITE_P9999,
    VolumeSampleCase, WRITE_RATE,
};
use crate::machine::description::CpuDivision;
use crate::reference::PUBLISHED_FIGURES;
use crate::report::number_text::format_value;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{BetterDirection, ReportCell, ReportFigure, ReportTable};
use crate::workload::file_tree::FileCount;
use crate::workload::filebench::INTERVAL_S;

/// The results of a run other than samples.
pub(super) struct VolumeNotes {
    pub(super) availability: Option<AvailabilityRun>,
    /// Version and settings of GlusterFS, or the reason why it was not measured; `None` if it was not wanted.
    pub(super) gluster: Option<Result<Vec<String>, String>>,
    /// Files that were read again on another node.
    pub(super) verified: FileCount,
}

/// The times of a clustering on the first node and on a replica: alone, and next to a writer.
const INTERFERENCE_FIGURES: [(Figure, Figure); 2] = [(FIRST_NODE_ALONE, FIRST_NODE), (REPLICA_ALONE, REPLICA)];

/// The times of a synced write.
const LATENCY_FIGURES: [Figure; 6] =
    [SYNCED_WRITE, SYNCED_WRITE_P50, SYNCED_WRITE_P99, SYNCED_WRITE_P999, SYNCED_WRITE_P9999, SYNC];

/// The systems that have a column of their own next to the volume.
const PEERS: [StorageSystem; 4] =
    [StorageSystem::Inline, StorageSystem::Tmpfs, StorageSystem::Disk, StorageSystem::Gluster];

impl VolumeNotes {
    fn gluster_notes(&self) -> Vec<String> {
        match &self.gluster {
            None => Vec::new(),
            Some(Ok(settings)) => settings.iter().map(|line| format!("Gluster: {line}.")).collect(),
            Some(Err(reason)) => vec![format!("Gluster: not measured: {reason}.")],
        }
    }
}

impl VolumeNotes {
    fn verified_note(&self) -> String {
        let FileCount { files, bytes } = self.verified;
        format!(
            "Verified: the last node read the same {files} files with {} MiB as the first node, after each row and each fault. \
             `farfork volume check` found no difference between replicas.",
            bytes >> 20
        )
    }
}

impl BenchVolume {
    pub(super) fn results(&self, samples: &FigureSamples<VolumeSampleCase>, notes: VolumeNotes) -> BenchResults {
        let tables = VolumeTables { plan: self, samples, with_gluster: matches!(notes.gluster, Some(Ok(_))) };
        let question = "What does a write to three replicas cost, next to sockets and to a local file system?";
        let section = ReportSection::new("volume", "Volumes", question)
            .with_table(tables.latency())
            .with_table(tables.latency_by_system("latency-systems", "The same, by system", true))
            .with_table(tables.latency_by_system("latency-access", "Reads, and synced writes at random offsets", false))
            .with_table(tables.throughput())
            .with_table(tables.interference())
            .with_table(tables.copy_methods())
            .with_table(tables.filebench())
            .with_table(tables.leveldb())
            .with_plot(tables.throughput_plot());
        let section = match &notes.availability {
            None => section,
            Some(run) => {
                section.with_table(availability_table(run)).with_plot(availability_plot(run)).with_note(format!(
                    "The median of the mail server during faults is {} operations per second.",
                    format_value(run.median_per_s())
                ))
            }
        };
        let section =
            section.with_notes(self.notes()).with_notes(notes.gluster_notes()).with_note(notes.verified_note());
        let document = json!({
            "plan": self.to_json(tables.with_gluster),
            "figures": samples.to_json(None),
            "availability": notes.availability,
            "gluster": notes.gluster_notes(),
            "verified": notes.verified,
        });
        BenchResults::new(section, document)
    }

    /// Sentences that explain the figures.
    fn notes(&self) -> Vec<String> {
        let inline =
            "Inline: the daemons replicate, without a process of their own. Its reference is Assise.".to_owned();
        let inline = self.offload().contains(&OffloadVariant::Inline).then_some(inline);
        let cpus = CpuDivision::detect().filter(|_| self.pin);
        let pinned = cpus.map(|CpuDivision { offload, others, count }| {
            format!(
                "Pinned: the offload processes have CPU {offload}, everything else has {others}: {count} CPUs in all. Daemons \
                 that replicate inline have {count} CPUs. See --pin."
            )
        });
        let notes = vec![
            format!("Volume: three replicas in memory, logs of {} MiB, a new volume for each row.", self.log_mib),
            "Floor: sockets: the same bytes along the chain of three nodes, without storage.".to_owned(),
            format!("tmpfs, disk ({}): one copy on this machine.", self.disk.display()),
            "Busy: a program on each replica computes all the time. All nodes share the processors of this machine."
                .to_owned(),
            "LevelDB: each write of fillsync waits for all replicas. In the published run it waits for none."
                .to_owned(),
            "Slow seconds: those from a fault to the next one with less than half of the median.".to_owned(),
            format!("Reference: {}.", PUBLISHED_FIGURES.volume.source),
        ];
        inline.into_iter().chain(pinned).chain(notes).collect()
    }
}

struct VolumeTables<'a> {
    plan: &'a BenchVolume,
    samples: &'a FigureSamples<VolumeSampleCase>,
    with_gluster: bool,
}

impl VolumeTables<'_> {
    /// The cases of an experiment, in the order of the table.
    fn cases(&self, experiment: VolumeExperiment) -> Vec<VolumeCase> {
        self.plan.cases().into_iter().filter(|case| case.experiment == experiment).collect()
    }

    fn median(&self, case: &VolumeCase, system: StorageSystem, figure: Figure) -> Option<f64> {
        self.samples.median(&VolumeSampleCase { case: *case, system }, figure)
    }

    fn figure(&self, case: &VolumeCase, system: StorageSystem, figure: Figure) -> Option<ReportFigure> {
        self.samples.figure(&VolumeSampleCase { case: *case, system }, figure)
    }

    /// A figure of a volume, compared with sockets and with the published value.
    fn volume_cell(&self, case: &VolumeCase, figure: Figure, published: Option<f64>) -> ReportCell {
        let floor = self.median(case, StorageSystem::SocketChain, figure);
        let measured = self.figure(case, StorageSystem::Volume, figure);
        measured.map(|measured| measured.with_floor(floor).with_reference(published)).into()
    }

    /// A figure of the other systems.
    fn peer_cells(&self, case: &VolumeCase, figure: Figure) -> [ReportCell; 4] {
        PEERS.map(|system| self.figure(case, system, figure).into())
    }

    fn latency(&self) -> ReportTable {
        let title = format!("write({}) and fsync, {} times on each volume", self.plan.bytes, self.plan.operations());
        let columns: Vec<String> = ["replicas".to_owned()]
            .into_iter()
            .chain(LATENCY_FIGURES.map(|figure| figure.name.to_owned()))
            .chain(PEERS.map(|system| format!("{}, mean", system.name())))
            .collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = ReportTable::new("latency", title, &columns);
        for case in self.cases(VolumeExperiment::Latency).into_iter().filter(VolumeCase::is_sequential_write) {
            let reference = PUBLISHED_FIGURES.volume.latency(case.load);
            let published = reference.map_or([None; 6], |reference| {
                let [mean, p99, p999] = [reference.mean_us, reference.p99_us, reference.p999_us].map(Some);
                [mean, None, p99, p999, None, Some(reference.sync_us)]
            });
            let volume = LATENCY_FIGURES.iter().zip(published).map(|(figure, of)| self.volume_cell(&case, *figure, of));
            let key = [ReportCell::text(case.load.name())].into_iter();
            table.add_row(key.chain(volume).chain(self.peer_cells(&case, SYNCED_WRITE)));
        }
        table
    }

    /// All times of all systems: of sequential writes, or of the other accesses.
    fn latency_by_system(&self, id: &str, title: &str, is_sequential_write: bool) -> ReportTable {
        let keys =
            if is_sequential_write { &["replicas", "system"][..] } else { &["replicas", "operations", "system"] };
        let mut table = ReportTable::new(id, title, &[keys, &LATENCY_FIGURES.map(|figure| figure.name)].concat());
        for (case, system) in self.plan.points_to_measure(self.with_gluster) {
            if case.experiment == VolumeExperiment::Latency && case.is_sequential_write() == is_sequential_write {
                let access = (!is_sequential_write).then_some(case.access.name());
                let key = [Some(case.load.name()), access, Some(system.name())].into_iter().flatten();
                let cells = LATENCY_FIGURES.map(|figure| self.figure(&case, system, figure).into());
                table.add_row(key.map(ReportCell::text).chain(cells));
            }
        }
        table
    }

    fn throughput(&self) -> ReportTable {
        let title = format!("write({}), {} MiB in all, one fsync at the end", self.plan.bytes, self.plan.mib());
        let columns = [&["replicas", "processes", "volume"][..], &PEERS.map(StorageSystem::name)].concat();
        let mut table = ReportTable::new("throughput", title, &columns);
        for case in self.cases(VolumeExperiment::Throughput) {
            let published = PUBLISHED_FIGURES.volume.mib_per_s(case.load, case.processes);
            let cells = [
                ReportCell::text(case.load.name()),
                ReportCell::text(case.processes),
                self.volume_cell(&case, WRITE_RATE, published),
            ];
            table.add_row(cells.into_iter().chain(self.peer_cells(&case, WRITE_RATE)));
        }
        table
    }

    fn interference(&self) -> ReportTable {
        let (points, mib) = (self.plan.points(), self.plan.mib());
        let title = format!("Clustering of {points} points on each node while the first one writes {mib} MiB");
        let columns = ["system", "node", FIRST_NODE_ALONE.name, FIRST_NODE.name, "slowdown", WRITE_RATE.name];
        let mut table = ReportTable::new("interference", title, &columns);
        let cases = self.cases(VolumeExperiment::Interference);
        for (case, system) in cases.iter().flat_map(|case| self.plan.volume_systems().map(move |system| (case, system)))
        {
            let reference = PUBLISHED_FIGURES.volume.interference(system);
            for (node, published) in reference.slowdowns().into_iter().enumerate() {
                let (alone, next) = INTERFERENCE_FIGURES[node];
                let rate = self.figure(case, system, WRITE_RATE).filter(|_| node == 0);
                table.add_row([
                    ReportCell::text(system.name()),
                    ReportCell::text(if node == 0 { "first" } else { "replica" }),
                    self.figure(case, system, alone).into(),
                    self.figure(case, system, next).into(),
                    self.slowdown(case, system, node, Some(published)),
                    rate.map(|rate| rate.with_reference(Some(reference.mib_per_s))).into(),
                ]);
            }
        }
        table
    }

    /// Time of a computation next to a writer divided by its time alone: on the first node (0) or on a replica (1).
    fn slowdown(&self, case: &VolumeCase, system: StorageSystem, node: usize, published: Option<f64>) -> ReportCell {
        let (alone, next) = INTERFERENCE_FIGURES[node];
        let times = self.median(case, system, next).zip(self.median(case, system, alone));
        let slowdown = times.map(|(next, alone)| ReportFigure::single(next / alone, "×", BetterDirection::Lower));
        slowdown.map(|slowdown| slowdown.with_reference(published)).into()
    }

    fn copy_methods(&self) -> ReportTable {
        let (points, mib) = (self.plan.points(), self.plan.mib());
        let title = format!("Four writers of {mib} MiB, and a clustering of {points} points on each replica");
        let columns = ["method", "alone", "next to writers", "slowdown", "writers"];
        let mut table = ReportTable::new("copy-methods", title, &columns);
        for case in self.cases(VolumeExperiment::CopyMethods) {
            let published = PUBLISHED_FIGURES.volume.copy_method(case.copy_method).map(|published| published.mib_per_s);
            let slowdown = PUBLISHED_FIGURES.volume.copy_slowdown(case.copy_method);
            let rate = self.figure(&case, StorageSystem::Volume, WRITE_RATE);
            table.add_row([
                ReportCell::text(case.copy_method),
                self.figure(&case, StorageSystem::Volume, REPLICA_ALONE).into(),
                self.figure(&case, StorageSystem::Volume, REPLICA).into(),
                self.slowdown(&case, StorageSystem::Volume, 1, slowdown),
                rate.map(|rate| rate.with_reference(published)).into(),
            ]);
        }
        table
    }

    fn filebench(&self) -> ReportTable {
        let title = format!("Operations per second for {} s", self.plan.seconds());
        let columns = [&["loop", "files", "replicas", "volume"][..], &PEERS.map(StorageSystem::name)].concat();
        let mut table = ReportTable::new("filebench", title, &columns);
        for experiment in [VolumeExperiment::Varmail, VolumeExperiment::Fileserver] {
            for case in self.cases(experiment) {
                let cells = [
                    ReportCell::text(experiment.name()),
                    ReportCell::text(self.plan.files_of(experiment)),
                    ReportCell::text(case.load.name()),
                    self.volume_cell(&case, OPERATION_RATE, None),
                ];
                table.add_row(cells.into_iter().chain(self.peer_cells(&case, OPERATION_RATE)));
            }
        }
        table
    }

    fn leveldb(&self) -> ReportTable {
        let (entries, synced) = (self.plan.entries(), self.plan.synced_entries());
        let title = format!("LevelDB with {entries} entries of 1 KiB ({synced} in fillsync), µs per operation");
        let columns = [&["replicas", "workload", "volume"][..], &PEERS.map(StorageSystem::name)].concat();
        let mut table = ReportTable::new("leveldb", title, &columns);
        for case in self.cases(VolumeExperiment::Leveldb) {
            for workload in self.plan.workloads.iter().copied() {
                let cell = |system| -> ReportCell {
                    let published = PUBLISHED_FIGURES.volume.leveldb_us(system, case.load, workload);
                    let time = self.figure(&case, system, workload.figure());
                    time.map(|time| time.with_reference(published)).into()
                };
                let key = [ReportCell::text(case.load.name()), ReportCell::text(workload.name())];
                table.add_row(key.into_iter().chain([cell(StorageSystem::Volume)]).chain(PEERS.map(cell)));
            }
        }
        table
    }

    fn throughput_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("processes", ""), PlotAxis::new("written and synced", "MiB/s"));
        let plot = ReportPlot::new(PlotKind::Scaling, "throughput", "Sequential writes by processes", x, y);
        self.plan.loads().iter().fold(plot, |plot, load| {
            let points = |system| {
                let cases = self.cases(VolumeExperiment::Throughput).into_iter().filter(|case| case.load == *load);
                let point = |case: VolumeCase| {
                    Some(PlotPoint::new(case.processes as f64, self.median(&case, system, WRITE_RATE)?))
                };
                cases.filter_map(point).collect::<Vec<_>>()
            };
            let name = load.name();
            plot.with_series(&format!("volume, {name}"), SeriesRole::Measured, points(StorageSystem::Volume))
                .with_series(&format!("sockets, {name}"), SeriesRole::Floor, points(StorageSystem::SocketChain))
        })
    }
}

fn availability_table(run: &AvailabilityRun) -> ReportTable {
    let columns =
        ["fault", "place in the chain", "from", "until", "slow seconds", "lowest second", "longest operation"];
    let title = "A mail server while processes of each node in turn are stopped or killed";
    let mut table = ReportTable::new("availability", title, &columns);
    let single = |value, unit, better| ReportCell::Figure(ReportFigure::single(value, unit, better));
    for fault in &run.faults {
        let lowest = run.lowest_per_s(fault).map(|rate| ReportFigure::single(rate, "1/s", BetterDirection::Higher));
        let longest = run.longest_ms(fault).map(|ms| ReportFigure::single(ms, "ms", BetterDirection::Lower));
        table.add_row([
            ReportCell::text(fault.kind.name()),
            ReportCell::text(fault.node + 1),
            single(fault.from_s, "s", BetterDirection::Neither),
            single(fault.until_s, "s", BetterDirection::Neither),
            single(run.slow_seconds(fault) as f64, "s", BetterDirection::Lower),
            lowest.into(),
            longest.into(),
        ]);
    }
    table
}

fn availability_plot(run: &AvailabilityRun) -> ReportPlot {
    let (x, y) = (PlotAxis::new("time", "s"), PlotAxis::new("operations", "1/s"));
    let title = "A mail server during faults: one in each period";
    let points = run.per_s.iter().enumerate();
    let points = points.map(|(second, rate)| PlotPoint::new((second as f64 + 0.5) * INTERVAL_S, *rate));
    let begins = run.faults.iter().map(|fault| PlotPoint::new(fault.from_s, 0.0));
    ReportPlot::new(PlotKind::OverTime, "availability", title, x, y)
        .with_series("mail server", SeriesRole::Measured, points)
        .with_series("faults begin", SeriesRole::Reference, begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::volume::case::ReplicaLoad;
    use crate::options::{SamplesOption, parse_arguments};
    use crate::workload::file_writer::FileAccess;

    #[test]
    fn each_case_has_a_row_next_to_its_reference() {
        let plan: BenchVolume = parse_arguments(&["latency", "throughput", "--quick"]);
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (experiment, processes, system, figure, value) in [
            (VolumeExperiment::Latency, 1, StorageSystem::Volume, SYNCED_WRITE, 321.0),
            (VolumeExperiment::Latency, 1, StorageSystem::SocketChain, SYNCED_WRITE, 45.0),
            (VolumeExperiment::Throughput, 4, StorageSystem::Volume, WRITE_RATE, 777.0),
            (VolumeExperiment::Throughput, 4, StorageSystem::Gluster, WRITE_RATE, 55.0),
        ] {
            let case = VolumeCase {
                experiment,
                load: ReplicaLoad::Idle,
                processes,
                copy_method: "memcpy",
                access: FileAccess::SequentialWrite,
            };
            samples.add(&VolumeSampleCase { case, system }, figure, value).unwrap();
        }
        let verified = FileCount { files: 3, bytes: 5 << 20 };
        let notes = VolumeNotes { availability: None, gluster: Some(Err("it is not installed".to_owned())), verified };
        let results = plan.results(&samples, notes);
        let (text, document) = (results.to_text(), results.to_json());
        for expected in ["321", "148", "45.0", "777", "2,113", "55.0", "not installed"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        let latency = &document["section"]["tables"][0];
        assert_eq!((&latency["id"], latency["rows"].as_array().unwrap().len()), (&"latency".into(), 1), "{latency}");
    }
}
