//! The parameters of `farfork bench volume`, and the keys of its samples.

use std::path::PathBuf;

use serde::Serialize;

/// The experiments, and their sizes.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeParameters {
    /// The experiments to run, in this order.
    pub experiments: Vec<VolumeExperiment>,
    /// Bytes of one write(2).
    pub operation_bytes: u64,
    /// Writes of a latency run, each followed by fsync(2).
    pub operations: u64,
    /// Bytes that all processes of a throughput run write together, in MiB.
    pub mib: u64,
    /// Processes of the throughput runs.
    pub processes: Vec<u64>,
    /// Without and with a program on each replica that computes all the time.
    pub loads: Vec<ReplicaLoad>,
    /// Size of the log of a volume, in MiB.
    pub log_mib: u64,
    /// Runs of each point. Each begins with a new volume.
    pub runs: usize,
    /// A directory on the disk that is compared.
    pub disk: PathBuf,
    /// The file that each sample is written to.
    #[serde(skip)]
    pub samples_file: Option<PathBuf>,
}

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeExperiment {
    /// One process writes and syncs.
    Latency,
    /// Processes write, and sync once at the end.
    Throughput,
}

/// What runs on the replicas at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaLoad {
    /// Nothing.
    Idle,
    /// A program on each replica that computes all the time.
    Busy,
}

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StorageSystem {
    /// A volume with three replicas in memory.
    Volume,
    /// A floor: sockets along the chain, without any storage.
    SocketChain,
    /// A peer: a tmpfs, one copy.
    Tmpfs,
    /// A peer: the file system of the disk, one copy.
    Disk,
}

impl ReplicaLoad {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

impl StorageSystem {
    /// In the order of the table.
    pub(crate) const ALL: [Self; 4] = [Self::Volume, Self::SocketChain, Self::Tmpfs, Self::Disk];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::SocketChain => "sockets",
            Self::Tmpfs => "tmpfs",
            Self::Disk => "disk",
        }
    }
}

impl VolumeCase {
    /// For the progress of a run.
    pub(crate) fn describe(&self, system: StorageSystem) -> String {
        let experiment = match self.experiment {
            VolumeExperiment::Latency => "latency",
            VolumeExperiment::Throughput => "throughput",
        };
        format!("{experiment} of {}, {}, {} processes", system.name(), self.load.name(), self.processes)
    }
}

/// One row: an experiment and its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct VolumeCase {
    pub(crate) experiment: VolumeExperiment,
    pub(crate) load: ReplicaLoad,
    pub(crate) processes: u64,
}

/// A figure of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VolumeFigure {
    /// A write and its sync, the mean of a run, in µs.
    SyncedWriteUs,
    /// The same, percentiles of a run.
    SyncedWriteP50Us,
    SyncedWriteP99Us,
    SyncedWriteP999Us,
    SyncedWriteP9999Us,
    /// The sync alone, the mean of a run, in µs.
    SyncUs,
    /// Bytes that were written and synced, the sum of all processes, in MiB/s.
    WriteMibPerS,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct VolumeSampleKey {
    #[serde(flatten)]
    pub(crate) case: VolumeCase,
    pub(crate) system: StorageSystem,
    pub(crate) figure: VolumeFigure,
}

impl VolumeParameters {
    /// All points of the experiments.
    pub(crate) fn cases(&self) -> Vec<VolumeCase> {
        let mut cases = Vec::new();
        for experiment in self.experiments.iter().copied() {
            let processes = match experiment {
                VolumeExperiment::Latency => &[1][..],
                VolumeExperiment::Throughput => &self.processes[..],
            };
            for load in self.loads.iter().copied() {
                cases.extend(processes.iter().map(|processes| VolumeCase { experiment, load, processes: *processes }));
            }
        }
        cases
    }

    /// Writes of one process in a run.
    pub(crate) fn operations_of(&self, case: &VolumeCase) -> u64 {
        match case.experiment {
            VolumeExperiment::Latency => self.operations,
            VolumeExperiment::Throughput => ((self.mib << 20) / self.operation_bytes / case.processes).max(1),
        }
    }
}
