//! Published figures of MITOSIS, the first remote fork in a kernel, and of LineFS, a replicated file system. Summaries print
//! them next to farfork's. The file `reference.toml` has the figures, and says how they were measured.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::benchmark::volume::case::{ReplicaLoad, StorageSystem};
use crate::figure::Figure;
use crate::workload::leveldb::LeveldbWorkload;

/// Sizes for which fork figures are published, in MiB; a run measures them by default.
pub(crate) const SIZES_MIB: [u64; 10] = [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// The published figures.
pub(crate) static PUBLISHED_FIGURES: LazyLock<PublishedFigures> =
    LazyLock::new(|| toml::from_str(include_str!("reference.toml")).expect("reference.toml is part of the program"));

/// All published figures, by benchmark.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedFigures {
    pub(crate) fork: ForkReference,
    pub(crate) function: FunctionsReference,
    pub(crate) peak: PeakFigures,
    pub(crate) warm_start: WarmStartReference,
    pub(crate) rpc: RpcReference,
    pub(crate) connect: ConnectReference,
    pub(crate) volume: VolumeReference,
}

/// Published figures of one column, by the quantity that varies, such as the size in MiB or the number of threads.
#[derive(Debug, Deserialize)]
pub(crate) struct ReferenceColumn(Vec<(u64, f64)>);

impl ReferenceColumn {
    /// The figure for exactly this value of the varied quantity; `None` if none was published.
    pub(crate) fn find(&self, varied: u64) -> Option<f64> {
        self.0.iter().find(|(of, _)| *of == varied).map(|(_, figure)| *figure)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkReference {
    /// The source of the figures, for the summary.
    pub(crate) source: String,
    prepare_ms: ReferenceColumn,
    resume_ms: ReferenceColumn,
    execution_ms: ReferenceColumn,
}

impl ForkReference {
    /// The published time, in ms, for a parent of `mib` MiB; `None` if there is none. `figure` is a figure of `bench fork`.
    pub(crate) fn published_ms(&self, figure: Figure, mib: u64) -> Option<f64> {
        match figure.key {
            // The program in the published artifact calls prepare itself. Its time is also the closest reference for a
            // prepare by another process.
            "checkpoint" | "prepare" => self.prepare_ms.find(mib),
            "resume" | "first_resume" => self.resume_ms.find(mib),
            "execution" => self.execution_ms.find(mib),
            _ => None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionsReference {
    /// The source of the figures, for the summary.
    pub(crate) source: String,
    pub(crate) functions: Vec<FunctionReference>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionReference {
    pub(crate) name: String,
    pub(crate) prepare_ms: f64,
    pub(crate) resume_ms: f64,
    pub(crate) execution_ms: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeakFigures {
    /// The source of the figures, for the summary.
    pub(crate) source: String,
    pub(crate) workloads: Vec<PeakReference>,
}

impl PeakFigures {
    /// The figures of a workload; `None` if none were published.
    pub(crate) fn find(&self, workload: &str) -> Option<&PeakReference> {
        self.workloads.iter().find(|reference| reference.name == workload)
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeakReference {
    pub(crate) name: String,
    /// Children per second of one client process.
    pub(crate) per_client_s: f64,
    /// Time from the request for a child to the child's end.
    pub(crate) latency_ms: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WarmStartReference {
    /// The source of the figures, for the summary.
    pub(crate) source: String,
    pub(crate) functions: Vec<PausedFunctionReference>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PausedFunctionReference {
    pub(crate) name: String,
    /// Number of containers that run functions at the same time.
    pub(crate) parallel: u64,
    pub(crate) runs_per_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RpcReference {
    pub(crate) source: String,
    pub(crate) requests_per_s_by_clients: ReferenceColumn,
    pub(crate) one_thread_per_s: f64,
    pub(crate) checksum_per_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectReference {
    pub(crate) source: String,
    pub(crate) per_s_by_threads: ReferenceColumn,
    pub(crate) per_s_by_clients: ReferenceColumn,
    pub(crate) latency_us: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeReference {
    /// The source of the figures, for the summary.
    pub(crate) source: String,
    latency: Vec<VolumeLatencyReference>,
    interference: InterferenceReference,
    interference_inline: InterferenceReference,
    copy_methods: Vec<CopyMethodReference>,
    leveldb_busy_us: BTreeMap<String, f64>,
    leveldb_inline_busy_us: BTreeMap<String, f64>,
    idle_mib_per_s: ReferenceColumn,
    busy_mib_per_s: ReferenceColumn,
}

/// Published latencies of synced writes of 16 KiB, in µs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeLatencyReference {
    load: String,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) sync_us: f64,
}

/// Published times of a clustering, alone and next to a writer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterferenceReference {
    first_alone_s: f64,
    replica_alone_s: f64,
    first_s: f64,
    replica_s: f64,
    pub(crate) mib_per_s: f64,
}

/// Published times of a clustering on a replica next to four writers, for one copy method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyMethodReference {
    method: String,
    pub(crate) replica_s: f64,
    pub(crate) mib_per_s: f64,
}

impl InterferenceReference {
    /// The clustering time next to the writer, divided by the time alone: on the first node, and on the next one.
    pub(crate) fn slowdowns(&self) -> [f64; 2] {
        [self.first_s / self.first_alone_s, self.replica_s / self.replica_alone_s]
    }
}

impl VolumeReference {
    /// Published latencies with this load of the replicas.
    pub(crate) fn latency(&self, load: ReplicaLoad) -> Option<&VolumeLatencyReference> {
        self.latency.iter().find(|reference| reference.load == load.name())
    }

    /// Published time of one LevelDB operation. Only figures for busy replicas were published.
    pub(crate) fn leveldb_us(
        &self,
        system: StorageSystem,
        load: ReplicaLoad,
        workload: LeveldbWorkload,
    ) -> Option<f64> {
        let published = match system {
            StorageSystem::Volume => &self.leveldb_busy_us,
            StorageSystem::Inline => &self.leveldb_inline_busy_us,
            StorageSystem::SocketChain | StorageSystem::Tmpfs | StorageSystem::Disk | StorageSystem::Gluster => {
                return None;
            }
        };
        published.get(workload.name()).copied().filter(|_| load == ReplicaLoad::Busy)
    }

    /// Published times of a clustering next to a writer.
    pub(crate) fn interference(&self, system: StorageSystem) -> &InterferenceReference {
        if system == StorageSystem::Inline { &self.interference_inline } else { &self.interference }
    }

    /// Published times of a clustering next to four writers, with this copy method.
    pub(crate) fn copy_method(&self, method: &str) -> Option<&CopyMethodReference> {
        self.copy_methods.iter().find(|reference| reference.method == method)
    }

    /// Published time of the clustering on a replica with this copy method, divided by the time alone.
    pub(crate) fn copy_slowdown(&self, method: &str) -> Option<f64> {
        Some(self.copy_method(method)?.replica_s / self.interference.replica_alone_s)
    }

    /// The published write rate of this number of processes, in MiB/s.
    pub(crate) fn mib_per_s(&self, load: ReplicaLoad, processes: u64) -> Option<f64> {
        match load {
            ReplicaLoad::Idle => self.idle_mib_per_s.find(processes),
            ReplicaLoad::Busy => self.busy_mib_per_s.find(processes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, PUBLISHED_FIGURES, SIZES_MIB};

    fn find(key: &'static str, mib: u64) -> Option<f64> {
        PUBLISHED_FIGURES.fork.published_ms(Figure::lower(key, "", "ms"), mib)
    }

    #[test]
    fn only_published_sizes_have_reference_figures() {
        assert_eq!((find("checkpoint", 1), find("prepare", 1)), (Some(0.648), Some(0.648)));
        assert_eq!(find("first_resume", 64), Some(3.339));
        assert_eq!(find("execution", 1024), Some(1246.940));
        assert_eq!(find("prepare", 3), None);
        assert_eq!(find("pause", 1), None);
    }

    #[test]
    fn larger_parents_cost_more() {
        for key in ["prepare", "resume", "execution"] {
            assert!(SIZES_MIB.iter().map(|mib| find(key, *mib).unwrap()).is_sorted(), "{key}");
        }
    }
}
