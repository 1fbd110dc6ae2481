//! `VolumeCase`: an experiment of `farfork bench volume` and its conditions. Each case is measured with several systems.

use serde::Serialize;

use super::BenchVolume;
use crate::workload::file_writer::FileAccess;
use crate::workload::filebench::FilebenchLoop;

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VolumeExperiment {
    /// One process writes and syncs.
    Latency,
    /// Processes write, and sync once at the end.
    Throughput,
    /// The operations of a mail server, as in Filebench.
    Varmail,
    /// The operations of a file server.
    Fileserver,
    /// The workloads of LevelDB's db_bench.
    Leveldb,
    /// A process on each node computes, alone and next to a writer.
    Interference,
    /// Processes write, and the host workers copy by each method.
    CopyMethods,
    /// A mail server works while processes of the nodes are stopped or killed.
    Availability,
}

/// The load of the replicas during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplicaLoad {
    /// No load.
    Idle,
    /// A busy loop on each replica.
    Busy,
}

/// Where the replication work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OffloadVariant {
    /// In a separate offload process.
    On,
    /// In the daemon of the node: the baseline.
    Inline,
}

/// A measured system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StorageSystem {
    /// A volume with three replicas in memory.
    Volume,
    /// As `Volume`, with replication in the daemons.
    Inline,
    /// A floor: sockets along the chain, without any storage.
    SocketChain,
    /// A peer: a tmpfs, one copy.
    Tmpfs,
    /// A peer: the file system of the disk, one copy.
    Disk,
    /// A peer: GlusterFS with three replicas in memory.
    Gluster,
}

impl VolumeExperiment {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Varmail => "varmail",
            Self::Fileserver => "fileserver",
            Self::Leveldb => "leveldb",
            Self::Interference => "interference",
            Self::CopyMethods => "copy-methods",
            Self::Availability => "availability",
        }
    }

    /// The experiment with a Filebench loop.
    pub(crate) fn of_loop(operations: FilebenchLoop) -> Self {
        match operations {
            FilebenchLoop::Varmail => Self::Varmail,
            FilebenchLoop::Fileserver => Self::Fileserver,
        }
    }

    /// The Filebench loop of the experiment, if it has one.
    pub(crate) fn filebench_loop(self) -> Option<FilebenchLoop> {
        match self {
            Self::Varmail => Some(FilebenchLoop::Varmail),
            Self::Fileserver => Some(FilebenchLoop::Fileserver),
            _ => None,
        }
    }
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
    /// All systems, in the order of the table.
    pub(crate) const ALL: [Self; 6] =
        [Self::Volume, Self::Inline, Self::SocketChain, Self::Tmpfs, Self::Disk, Self::Gluster];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Inline => "inline",
            Self::SocketChain => "sockets",
            Self::Tmpfs => "tmpfs",
            Self::Disk => "disk",
            Self::Gluster => "gluster",
        }
    }
}

impl VolumeCase {
    /// Whether a system is measured in this case. Sockets have no file operations, and interference is measured for
    /// volumes only.
    fn includes(&self, system: StorageSystem) -> bool {
        match self.experiment {
            VolumeExperiment::Varmail | VolumeExperiment::Fileserver | VolumeExperiment::Leveldb => {
                system != StorageSystem::SocketChain
            }
            VolumeExperiment::Interference => matches!(system, StorageSystem::Volume | StorageSystem::Inline),
            VolumeExperiment::CopyMethods => system == StorageSystem::Volume,
            // Sockets store nothing that could be read, and have no offsets.
            VolumeExperiment::Latency if self.access != FileAccess::SequentialWrite => {
                system != StorageSystem::SocketChain
            }
            _ => true,
        }
    }

    /// Whether the operations are those of the published latencies.
    pub(crate) fn is_sequential_write(&self) -> bool {
        self.access == FileAccess::SequentialWrite
    }

    /// The text that the progress shows for a run.
    pub(crate) fn describe(&self, system: StorageSystem) -> String {
        let Self { experiment, load, processes, copy_method, .. } = self;
        let system = system.name();
        format!("{} of {system}, {}, {processes} processes, {copy_method}", experiment.name(), load.name())
    }
}

/// A row of the summary: an experiment and its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct VolumeCase {
    pub(crate) experiment: VolumeExperiment,
    pub(crate) load: ReplicaLoad,
    pub(crate) processes: u64,
    /// How the host workers copy data, an argument of `farfork node --volume-copy`.
    pub(crate) copy_method: &'static str,
    /// The operations of a latency run.
    pub(crate) access: FileAccess,
}

/// The copy methods of host workers, by their names in `farfork node --volume-copy`.
pub(crate) const COPY_METHODS: [&str; 5] = ["memcpy", "async", "async-batch", "event", "none"];
/// The copy method of all experiments except `CopyMethods`.
const COPY_METHOD_DEFAULT: &str = "memcpy";
/// Number of processes that write while copy methods are compared, as published.
const COPY_WRITERS: u64 = 4;

impl BenchVolume {
    /// All cases of the experiments, except availability.
    pub(crate) fn cases(&self) -> Vec<VolumeCase> {
        let mut cases = Vec::new();
        let (all_loads, all_processes) = (self.loads(), &self.processes);
        let all_methods = self.copy_methods();
        for experiment in self.experiments() {
            let processes = match experiment {
                VolumeExperiment::Throughput => &all_processes[..],
                VolumeExperiment::Availability => &[],
                VolumeExperiment::CopyMethods => &[COPY_WRITERS],
                _ => &[1][..],
            };
            let loads = match experiment {
                VolumeExperiment::Interference | VolumeExperiment::CopyMethods => &[ReplicaLoad::Idle],
                _ => all_loads,
            };
            let accesses = match experiment {
                VolumeExperiment::Latency => &self.access[..],
                _ => &[FileAccess::SequentialWrite],
            };
            let copy_methods = match experiment {
                VolumeExperiment::CopyMethods => &all_methods[..],
                _ => &[COPY_METHOD_DEFAULT],
            };
            for (load, copy_method) in loads.iter().flat_map(|load| copy_methods.iter().map(|method| (*load, *method)))
            {
                for access in accesses.iter().copied() {
                    let case = |&processes: &u64| VolumeCase { experiment, load, processes, copy_method, access };
                    cases.extend(processes.iter().map(case));
                }
            }
        }
        cases
    }

    /// Each case with each system that is measured.
    pub(crate) fn points_to_measure(&self, with_gluster: bool) -> Vec<(VolumeCase, StorageSystem)> {
        let with_systems = |case: VolumeCase| StorageSystem::ALL.map(|system| (case, system));
        let points = self.cases().into_iter().flat_map(with_systems);
        points.filter(|(case, system)| case.includes(*system) && self.measures(case, *system, with_gluster)).collect()
    }

    fn measures(&self, case: &VolumeCase, system: StorageSystem, with_gluster: bool) -> bool {
        match system {
            StorageSystem::Volume => {
                case.experiment == VolumeExperiment::CopyMethods || self.offload().contains(&OffloadVariant::On)
            }
            StorageSystem::Inline => self.offload().contains(&OffloadVariant::Inline),
            StorageSystem::Gluster => with_gluster,
            StorageSystem::SocketChain | StorageSystem::Tmpfs | StorageSystem::Disk => true,
        }
    }

    /// Number of synced writes of a LevelDB, which are more than ten times slower than others.
    pub(crate) fn synced_entries(&self) -> u64 {
        (self.entries() / 10).max(1)
    }

    /// Number of writes of one process in a run.
    pub(crate) fn operations_of(&self, case: &VolumeCase) -> u64 {
        match case.experiment {
            VolumeExperiment::Throughput | VolumeExperiment::Interference | VolumeExperiment::CopyMethods => {
                ((self.mib() << 20) / self.bytes / case.processes).max(1)
            }
            _ => self.operations(),
        }
    }
}
