//! `farfork bench volume`: processes write to a volume with three replicas, to other file systems, and to bare sockets.
//! `case` has the experiments, `storage` the measured systems, and `results` the tables.

mod arguments;
mod availability;
pub(crate) mod case;
mod results;
mod storage;

use std::process::Command;

use serde::Serialize;

pub(crate) use self::arguments::BenchVolume;
use self::availability::run_availability;
use self::case::{ReplicaLoad, StorageSystem, VolumeCase, VolumeExperiment};
use self::results::VolumeNotes;
use self::storage::{MountedStorage, REPLICAS, StorageTestbed};
use super::{BenchResults, BenchRun, Benchmark};
use crate::baseline::socket_chain::SocketChain;
use crate::error::BenchError;
use crate::experiment::nodes::ClusterNode;
use crate::figure::{Figure, MIB_BYTES};
use crate::machine::description;
use crate::machine::program::RunningProgram;
use crate::samples::FigureSamples;
use crate::workload::clustering::{ClusteringProcesses, ClusteringSpec};
use crate::workload::file_tree::FileCount;
use crate::workload::file_writer::{FileWriterResult, FileWriterSpec, FileWriters, OperationLatency};
use crate::workload::filebench::{FilebenchLoop, FilebenchProcess, FilebenchSpec};
use crate::workload::leveldb::{VALUE_BYTES, run_leveldb};

/// Number of chunks of a stream of points, as published.
const CLUSTERING_CHUNKS: u64 = 3;
/// Memory for the processes of the nodes and for the kernel.
const SPARE_MIB: u64 = 1024;
/// Maximum copies of each value in a LevelDB: two databases, each of which has two copies while it compacts.
const LEVELDB_COPIES: u64 = 4;
/// Maximum number of messages of the socket chain. More messages do not change its figures.
const CHAIN_MESSAGES_MAX: u64 = 20_000;

/// A write and its sync: mean and percentiles of a run.
const SYNCED_WRITE: Figure = Figure::lower("synced_write_us", "mean", "µs");
const SYNCED_WRITE_P50: Figure = Figure::lower("synced_write_p50_us", "p50", "µs");
const SYNCED_WRITE_P99: Figure = Figure::lower("synced_write_p99_us", "p99", "µs");
const SYNCED_WRITE_P999: Figure = Figure::lower("synced_write_p999_us", "p99.9", "µs");
const SYNCED_WRITE_P9999: Figure = Figure::lower("synced_write_p9999_us", "p99.99", "µs");
/// The sync alone: the mean of a run.
const SYNC: Figure = Figure::lower("sync_us", "fsync alone", "µs");
/// Written and synced bytes of all processes.
const WRITE_RATE: Figure = Figure::higher("write_mib_per_s", "writer", "MiB/s");
/// Operations of a loop: the mean of a run.
const OPERATION_RATE: Figure = Figure::higher("operations_per_s", "operations", "1/s");
/// Time of a computation on the first node, and on the next one, without a writer.
const FIRST_NODE_ALONE: Figure = Figure::lower("first_node_alone_s", "alone", "s");
const REPLICA_ALONE: Figure = Figure::lower("replica_alone_s", "alone", "s");
/// The same while a program on the first node writes.
const FIRST_NODE: Figure = Figure::lower("first_node_s", "next to the writer", "s");
const REPLICA: Figure = Figure::lower("replica_s", "next to the writer", "s");

/// A case, and the system that was measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct VolumeSampleCase {
    #[serde(flatten)]
    case: VolumeCase,
    system: StorageSystem,
}

impl Benchmark for BenchVolume {
    const COMMAND: &'static str = "bench volume";
    const HOSTS_REFUSAL: Option<&'static str> = Some("it needs nodes with directories for volumes, and kills them");
    const ROOT_REASON: &'static str = "it makes namespaces and control groups, and mounts file systems";

    async fn measure(&self, run: &mut BenchRun) -> Result<BenchResults, BenchError> {
        require_memory(self)?;
        let mut testbed = StorageTestbed::start(self, &run.machines.farfork).await?;
        let gluster = self.start_gluster(&mut testbed, run)?;
        let points = self.points_to_measure(gluster.as_ref().is_some_and(Result::is_ok));
        let samples = FigureSamples::create(&self.samples)?;
        let mut volume_run = VolumeRun { plan: self, testbed, samples, verified: FileCount::default() };
        let has_availability = self.has_experiment(VolumeExperiment::Availability);
        run.expect_steps(points.len() * self.runs() + usize::from(has_availability));
        for (case, system) in points.repeat(self.runs()) {
            run.show(case.describe(system))?;
            volume_run.testbed.prepare(&case).await?;
            volume_run.measure(&case, system)?;
            run.complete_step();
        }
        let mut availability = None;
        if has_availability {
            let mut check_interrupt = || run.show(VolumeExperiment::Availability.name());
            availability = Some(run_availability(self, &mut volume_run.testbed, &mut check_interrupt)?);
        }
        let VolumeRun { testbed, samples, mut verified, .. } = volume_run;
        testbed.stop()?;
        if let Some(availability) = &availability {
            verified.add(availability.verified);
        }
        Ok(self.results(&samples, VolumeNotes { availability, gluster, verified }))
    }
}

impl BenchVolume {
    /// Starts GlusterFS if a case measures it. Returns its settings, or the reason why it does not run; `None` if it is not
    /// wanted.
    fn start_gluster(
        &self,
        testbed: &mut StorageTestbed,
        run: &BenchRun,
    ) -> Result<Option<Result<Vec<String>, String>>, BenchError> {
        let points = self.points_to_measure(self.with_gluster());
        if points.iter().all(|(_, system)| *system != StorageSystem::Gluster) {
            return Ok(None);
        }
        testbed.start_gluster(&mut || run.show("start of GlusterFS")).map(Some)
    }
}

/// Checks that the memory suffices, because all replicas are in memory.
fn require_memory(plan: &BenchVolume) -> Result<(), BenchError> {
    for case in plan.cases() {
        let (mib, option) = match case.experiment {
            VolumeExperiment::Varmail | VolumeExperiment::Fileserver => continue,
            VolumeExperiment::Leveldb => ((LEVELDB_COPIES * plan.entries() * VALUE_BYTES) >> 20, "--entries"),
            VolumeExperiment::Latency => (written_mib(plan, &case), "--operations"),
            _ => (written_mib(plan, &case), "--mib"),
        };
        let needed_mib = REPLICAS as u64 * (mib + plan.log_mib) + SPARE_MIB;
        description::require_memory(mib, needed_mib, option)?;
    }
    Ok(())
}

fn written_mib(plan: &BenchVolume, case: &VolumeCase) -> u64 {
    (plan.operations_of(case) * case.processes * plan.bytes) >> 20
}

struct VolumeRun<'a> {
    plan: &'a BenchVolume,
    testbed: StorageTestbed,
    samples: FigureSamples<VolumeSampleCase>,
    /// Files that were read again on another node.
    verified: FileCount,
}

impl VolumeRun<'_> {
    fn measure(&mut self, case: &VolumeCase, system: StorageSystem) -> Result<(), BenchError> {
        let _load = match case.load {
            ReplicaLoad::Idle => Vec::new(),
            ReplicaLoad::Busy => self.start_hogs()?,
        };
        let figures = if system == StorageSystem::SocketChain {
            self.measure_sockets(case)?
        } else {
            let storage = self.testbed.mount(case, system)?;
            let figures = match (case.experiment.filebench_loop(), case.experiment) {
                (Some(operations), _) => self.measure_loop(operations, &storage),
                (None, VolumeExperiment::Interference) => self.measure_interference(case, &storage),
                (None, VolumeExperiment::CopyMethods) => self.measure_copies(case, &storage),
                (None, VolumeExperiment::Leveldb) => self.measure_leveldb(&storage),
                (None, _) => self.measure_files(case, &storage),
            };
            let verified = figures.and_then(|figures| Ok((figures, self.testbed.verify(&storage)?)));
            // Remove the volume also after an error, because it would outlive the run.
            self.testbed.remove(storage)?;
            let (figures, verified) = verified?;
            self.verified.add(verified);
            figures
        };
        let case = VolumeSampleCase { case: *case, system };
        figures.into_iter().try_for_each(|(figure, value)| self.samples.add(&case, figure, value))
    }

    fn measure_files(&self, case: &VolumeCase, storage: &MountedStorage) -> Result<Vec<(Figure, f64)>, BenchError> {
        let results = self.start_writers(case, storage)?.run()?;
        if case.experiment == VolumeExperiment::Latency {
            let mut figures = latency_figures(&results[0].operation);
            // Reads are not synced.
            let sync = (results[0].sync_mean > 0).then(|| (SYNC, ns_to_us(results[0].sync_mean)));
            figures.extend(sync);
            return Ok(figures);
        }
        Ok(vec![(WRITE_RATE, self.rate_of(case, &results))])
    }

    fn start_writers(&self, case: &VolumeCase, storage: &MountedStorage) -> Result<FileWriters, BenchError> {
        let spec = |process: u64| FileWriterSpec {
            path: storage.directory.join(format!("file-{process}")),
            operation_bytes: self.plan.bytes,
            operations: self.plan.operations_of(case),
            access: case.access,
            syncs_each: case.experiment == VolumeExperiment::Latency,
        };
        let specs: Vec<_> = (0..case.processes).map(spec).collect();
        FileWriters::start(self.testbed.machine(), &specs)
    }

    /// The sum of the rates of all writers, in MiB/s.
    fn rate_of(&self, case: &VolumeCase, results: &[FileWriterResult]) -> f64 {
        let operations = self.plan.operations_of(case);
        results.iter().map(|result| self.mib_per_s(operations, result.total as f64 / 1e9)).sum()
    }

    /// Measures a computation by a process for each node: alone, and while a writer works.
    fn measure_interference(
        &self,
        case: &VolumeCase,
        storage: &MountedStorage,
    ) -> Result<Vec<(Figure, f64)>, BenchError> {
        let NeighbourTimes { alone, next_to_writer, rate } = self.run_neighbours(case, storage, 0)?;
        Ok(vec![
            (FIRST_NODE_ALONE, alone[0]),
            (REPLICA_ALONE, alone[1]),
            (FIRST_NODE, next_to_writer[0]),
            (REPLICA, next_to_writer[1]),
            (WRITE_RATE, rate),
        ])
    }

    /// Measures a computation by a process for each node except the first: alone, and while the first node writes.
    fn measure_copies(&self, case: &VolumeCase, storage: &MountedStorage) -> Result<Vec<(Figure, f64)>, BenchError> {
        let NeighbourTimes { alone, next_to_writer, rate } = self.run_neighbours(case, storage, 1)?;
        Ok(vec![(REPLICA_ALONE, alone[0]), (REPLICA, next_to_writer[0]), (WRITE_RATE, rate)])
    }

    /// Runs processes that compute, one on each node except the first `skipped`: alone, and while writers work.
    fn run_neighbours(
        &self,
        case: &VolumeCase,
        storage: &MountedStorage,
        skipped: usize,
    ) -> Result<NeighbourTimes, BenchError> {
        let spec = ClusteringSpec { points: self.plan.points(), chunk: self.plan.points().div_ceil(CLUSTERING_CHUNKS) };
        let nodes = || self.testbed.cluster().nodes().iter().skip(skipped);
        let start = || ClusteringProcesses::start(nodes().map(ClusterNode::machine), spec);
        let alone = start()?.finish()?;
        let writers = self.start_writers(case, storage)?;
        let neighbours = start()?;
        let written = writers.run()?;
        Ok(NeighbourTimes { alone, next_to_writer: neighbours.finish()?, rate: self.rate_of(case, &written) })
    }

    fn measure_loop(
        &self,
        operations: FilebenchLoop,
        storage: &MountedStorage,
    ) -> Result<Vec<(Figure, f64)>, BenchError> {
        let files = self.plan.files_of(VolumeExperiment::of_loop(operations));
        let (directory, seconds) = (storage.directory.clone(), self.plan.seconds());
        let has_constant_sizes = self.plan.like_the_document && operations == FilebenchLoop::Varmail;
        let spec = FilebenchSpec { operations, directory, files, seconds, has_constant_sizes };
        let mut process = FilebenchProcess::start(self.testbed.machine(), &spec)?;
        process.begin()?;
        let intervals = process.finish()?;
        let mean = intervals.iter().map(|interval| interval.per_s).sum::<f64>() / intervals.len() as f64;
        Ok(vec![(OPERATION_RATE, mean)])
    }

    fn measure_leveldb(&self, storage: &MountedStorage) -> Result<Vec<(Figure, f64)>, BenchError> {
        let (machine, entries, synced) = (self.testbed.machine(), self.plan.entries(), self.plan.synced_entries());
        run_leveldb(machine, &storage.directory, entries, synced, &self.plan.workloads)
    }

    /// Measures sending the data along the chain, without storage.
    fn measure_sockets(&self, case: &VolumeCase) -> Result<Vec<(Figure, f64)>, BenchError> {
        let messages = (self.plan.operations_of(case) * case.processes).min(CHAIN_MESSAGES_MAX);
        let nodes = self.testbed.cluster().nodes();
        let chain = SocketChain { nodes, messages, message_bytes: self.plan.bytes as usize };
        if case.experiment == VolumeExperiment::Throughput {
            let took = chain.measure_stream()?;
            return Ok(vec![(WRITE_RATE, self.mib_per_s(messages, took.as_secs_f64()))]);
        }
        Ok(latency_figures(&chain.measure_each()?))
    }

    /// Starts a busy loop on each node except the first. The loops end with this thread, even if SIGKILL ends it.
    fn start_hogs(&self) -> Result<Vec<RunningProgram>, BenchError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
        let replicas = self.testbed.cluster().nodes().iter().skip(1);
        replicas.map(|node| node.machine().start("setpriv", &command)).collect()
    }

    fn mib_per_s(&self, operations: u64, seconds: f64) -> f64 {
        (operations * self.plan.bytes) as f64 / MIB_BYTES / seconds
    }
}

/// Times of processes that compute, in seconds, and the rate of the writers, in MiB/s.
struct NeighbourTimes {
    alone: Vec<f64>,
    next_to_writer: Vec<f64>,
    rate: f64,
}

fn latency_figures(latency: &OperationLatency) -> Vec<(Figure, f64)> {
    let OperationLatency { mean, p50, p99, p999, p9999 } = *latency;
    let figures = [
        (SYNCED_WRITE, mean),
        (SYNCED_WRITE_P50, p50),
        (SYNCED_WRITE_P99, p99),
        (SYNCED_WRITE_P999, p999),
        (SYNCED_WRITE_P9999, p9999),
    ];
    figures.map(|(figure, ns)| (figure, ns_to_us(ns))).to_vec()
}

fn ns_to_us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
