//! Runs `farfork bench volume`: processes write to a volume, to other file systems, and to bare sockets.

pub(crate) mod availability;
pub(crate) mod storage;

use std::path::PathBuf;
use std::process::Command;

use farfork_sys::affinity::restrict_to_cpus;

use self::availability::run_availability;
use self::storage::{MountedStorage, REPLICAS, StorageTestbed};
use crate::baseline::socket_chain::SocketChain;
use crate::embedded_program::ChildProgram;
use crate::error::BenchError;
use crate::figure::MIB_BYTES;
use crate::machine::{self, CpuDivision};
use crate::parameters::volume::{
    ReplicaLoad, StorageSystem, VolumeCase, VolumeExperiment, VolumeFigure, VolumeParameters, VolumeSampleKey,
};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::volume::VolumeSummary;
use crate::workload::clustering::{ClusteringProcesses, ClusteringSpec};
use crate::workload::file_writer::{FileWriterResult, FileWriterSpec, FileWriters, OperationLatency};
use crate::workload::filebench::{FilebenchLoop, FilebenchProcess, FilebenchSpec};
use crate::workload::leveldb::{LEVELDB, VALUE_BYTES, run_leveldb};

/// Number of chunks of a stream of points, as published.
const CLUSTERING_CHUNKS: u64 = 3;
/// Memory for the processes of the nodes and for the kernel.
const SPARE_MIB: u64 = 1024;
/// Maximum copies of each value in a LevelDB: two databases, each of which has two copies while it compacts.
const LEVELDB_COPIES: u64 = 4;
/// Maximum number of messages of the socket chain. More messages do not change its figures.
const CHAIN_MESSAGES_MAX: u64 = 20_000;

/// Measures all points, each on a new volume or in a new directory. `show` may end the run before a point. `farfork` is
/// the program that runs nodes and writers.
///
/// # Errors
/// The error of the step that fails.
pub async fn run_volume(
    plan: &VolumeParameters,
    farfork: PathBuf,
    show: ProgressCallback<'_>,
) -> Result<VolumeSummary, BenchError> {
    require_memory(plan)?;
    if let Some(cpus) = CpuDivision::detect().filter(|_| plan.pins_cpus) {
        let failed = |cause| BenchError::Program { program: "sched_setaffinity", cause };
        // This thread starts every process of the run, and they inherit its affinity.
        restrict_to_cpus(&cpus.others).map_err(failed)?;
    }
    let mut testbed = StorageTestbed::start(plan, farfork.clone()).await?;
    let mut plan = plan.clone();
    let gluster = start_gluster(&mut plan, &mut testbed, show)?;
    let plan = &plan;
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let mut run = VolumeRun { plan, farfork, testbed, samples };
    let has_availability = plan.experiments.contains(&VolumeExperiment::Availability);
    let (points, mut done) = (plan.points_to_measure(), 0);
    let steps = points.len() * plan.runs + usize::from(has_availability);
    for _ in 0..plan.runs {
        for (case, system) in &points {
            report_progress(show, done, steps, case.describe(*system))?;
            run.testbed.prepare(case).await?;
            run.measure(case, *system)?;
            done += 1;
        }
    }
    let mut availability = None;
    if has_availability {
        let mut check_interrupt = || report_progress(show, done, steps, VolumeExperiment::Availability.name());
        availability = Some(run_availability(plan, &run.farfork, &mut run.testbed, &mut check_interrupt)?);
    }
    run.testbed.stop()?;
    Ok(VolumeSummary::new(plan, run.samples, availability)?.with_gluster_settings(gluster))
}

/// Starts GlusterFS if a case of the plan measures it. Removes it from the plan if it does not run. Returns its settings,
/// or the reason why it does not run; `None` if it is not wanted.
fn start_gluster(
    plan: &mut VolumeParameters,
    testbed: &mut StorageTestbed,
    show: ProgressCallback<'_>,
) -> Result<Option<Result<Vec<String>, String>>, BenchError> {
    let points = plan.points_to_measure();
    if points.iter().all(|(_, system)| *system != StorageSystem::Gluster) {
        return Ok(None);
    }
    let steps = points.len() * plan.runs;
    let started = testbed.start_gluster(&mut || report_progress(show, 0, steps, "start of GlusterFS"))?;
    plan.with_gluster = started.is_ok();
    Ok(Some(started))
}

/// Checks that the memory suffices, because all replicas are in memory.
fn require_memory(plan: &VolumeParameters) -> Result<(), BenchError> {
    for case in plan.cases() {
        let (mib, option) = match case.experiment {
            VolumeExperiment::Varmail | VolumeExperiment::Fileserver => continue,
            VolumeExperiment::Leveldb => ((LEVELDB_COPIES * plan.entries * VALUE_BYTES) >> 20, "--entries"),
            VolumeExperiment::Latency => (written_mib(plan, &case), "--operations"),
            _ => (written_mib(plan, &case), "--mib"),
        };
        let needed_mib = REPLICAS as u64 * (mib + plan.log_mib) + SPARE_MIB;
        machine::require_memory(mib, needed_mib, option)?;
    }
    Ok(())
}

fn written_mib(plan: &VolumeParameters, case: &VolumeCase) -> u64 {
    (plan.operations_of(case) * case.processes * plan.operation_bytes) >> 20
}

struct VolumeRun<'a> {
    plan: &'a VolumeParameters,
    farfork: PathBuf,
    testbed: StorageTestbed,
    samples: Samples<VolumeSampleKey>,
}

impl VolumeRun<'_> {
    fn measure(&mut self, case: &VolumeCase, system: StorageSystem) -> Result<(), BenchError> {
        let _load = match case.load {
            ReplicaLoad::Idle => Vec::new(),
            ReplicaLoad::Busy => start_hogs()?,
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
            // Remove the volume also after an error, because it would outlive the run.
            self.testbed.remove(storage)?;
            figures?
        };
        for (figure, value) in figures {
            self.samples.add(VolumeSampleKey { case: *case, system, figure }, value)?;
        }
        Ok(())
    }

    fn measure_files(
        &self,
        case: &VolumeCase,
        storage: &MountedStorage,
    ) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let results = self.start_writers(case, storage)?.run()?;
        if case.experiment == VolumeExperiment::Latency {
            let mut figures = latency_figures(&results[0].operation);
            figures.push((VolumeFigure::SyncUs, ns_to_us(results[0].sync_mean)));
            return Ok(figures);
        }
        Ok(vec![(VolumeFigure::WriteMibPerS, self.rate_of(case, &results))])
    }

    fn start_writers(&self, case: &VolumeCase, storage: &MountedStorage) -> Result<FileWriters, BenchError> {
        let spec = |process: u64| FileWriterSpec {
            path: storage.directory.join(format!("file-{process}")),
            operation_bytes: self.plan.operation_bytes,
            operations: self.plan.operations_of(case),
            syncs_each: case.experiment == VolumeExperiment::Latency,
        };
        let specs: Vec<_> = (0..case.processes).map(spec).collect();
        FileWriters::start(&self.farfork, &specs)
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
    ) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let NeighbourTimes { alone, next_to_writer, rate } = self.run_neighbours(case, storage, REPLICAS)?;
        Ok(vec![
            (VolumeFigure::FirstNodeAloneS, alone[0]),
            (VolumeFigure::ReplicaAloneS, alone[1]),
            (VolumeFigure::FirstNodeS, next_to_writer[0]),
            (VolumeFigure::ReplicaS, next_to_writer[1]),
            (VolumeFigure::WriteMibPerS, rate),
        ])
    }

    /// Measures a computation by a process for each node except the first: alone, and while the first node writes.
    fn measure_copies(
        &self,
        case: &VolumeCase,
        storage: &MountedStorage,
    ) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let NeighbourTimes { alone, next_to_writer, rate } = self.run_neighbours(case, storage, REPLICAS - 1)?;
        Ok(vec![
            (VolumeFigure::ReplicaAloneS, alone[0]),
            (VolumeFigure::ReplicaS, next_to_writer[0]),
            (VolumeFigure::WriteMibPerS, rate),
        ])
    }

    /// Runs processes that compute: alone, and while writers work.
    fn run_neighbours(
        &self,
        case: &VolumeCase,
        storage: &MountedStorage,
        count: usize,
    ) -> Result<NeighbourTimes, BenchError> {
        let spec = ClusteringSpec { points: self.plan.points, chunk: self.plan.points.div_ceil(CLUSTERING_CHUNKS) };
        let start = || ClusteringProcesses::start(&self.farfork, spec, count);
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
    ) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let files = match operations {
            FilebenchLoop::Varmail => self.plan.mail_files,
            FilebenchLoop::Fileserver => self.plan.server_files,
        };
        let (directory, seconds) = (storage.directory.clone(), self.plan.seconds);
        let spec = FilebenchSpec { operations, directory, files, seconds };
        let intervals = FilebenchProcess::start(&self.farfork, &spec)?.finish()?;
        let mean = intervals.iter().map(|interval| interval.per_s).sum::<f64>() / intervals.len() as f64;
        Ok(vec![(VolumeFigure::OperationsPerS, mean)])
    }

    fn measure_leveldb(&self, storage: &MountedStorage) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let program = LEVELDB.install(self.testbed.memory())?;
        run_leveldb(&program, &storage.directory, self.plan.entries, self.plan.synced_entries())
    }

    /// Measures sending the data along the chain, without storage.
    fn measure_sockets(&self, case: &VolumeCase) -> Result<Vec<(VolumeFigure, f64)>, BenchError> {
        let failed = |cause| BenchError::Program { program: "socket chain", cause };
        let messages = (self.plan.operations_of(case) * case.processes).min(CHAIN_MESSAGES_MAX);
        let (nodes, bytes) = (self.testbed.cluster().nodes(), self.plan.operation_bytes as usize);
        let mut chain = SocketChain::connect(nodes, bytes).map_err(failed)?;
        if case.experiment == VolumeExperiment::Throughput {
            let took = chain.stream(messages).map_err(failed)?;
            return Ok(vec![(VolumeFigure::WriteMibPerS, self.mib_per_s(messages, took.as_secs_f64()))]);
        }
        let times = chain.send_each(messages).map_err(failed)?;
        let times = times.into_iter().map(|time| time.as_nanos() as u64).collect();
        Ok(latency_figures(&OperationLatency::of(times)))
    }

    fn mib_per_s(&self, operations: u64, seconds: f64) -> f64 {
        (operations * self.plan.operation_bytes) as f64 / MIB_BYTES / seconds
    }
}

/// Times of processes that compute, in seconds, and the rate of the writers, in MiB/s.
struct NeighbourTimes {
    alone: Vec<f64>,
    next_to_writer: Vec<f64>,
    rate: f64,
}

fn latency_figures(latency: &OperationLatency) -> Vec<(VolumeFigure, f64)> {
    let OperationLatency { mean, p50, p99, p999, p9999 } = *latency;
    let figures = [
        (VolumeFigure::SyncedWriteUs, mean),
        (VolumeFigure::SyncedWriteP50Us, p50),
        (VolumeFigure::SyncedWriteP99Us, p99),
        (VolumeFigure::SyncedWriteP999Us, p999),
        (VolumeFigure::SyncedWriteP9999Us, p9999),
    ];
    figures.map(|(figure, ns)| (figure, ns_to_us(ns))).to_vec()
}

fn ns_to_us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Starts a busy loop for each node except the first. The loops end with this thread, even if SIGKILL ends it.
fn start_hogs() -> Result<Vec<ChildProgram>, BenchError> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
    (1..REPLICAS).map(|_| ChildProgram::start("setpriv", &command)).collect()
}
