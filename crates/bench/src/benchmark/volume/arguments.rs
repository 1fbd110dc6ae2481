//! The arguments of `farfork bench volume`, and the sizes that they select.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::case::{COPY_METHODS, OffloadVariant, ReplicaLoad, StorageSystem, VolumeExperiment};
use crate::options::{SamplesOption, count, parse_on_off, parse_seconds, size};
use crate::workload::file_writer::FileAccess;
use crate::workload::filebench::FilebenchLoop;
use crate::workload::leveldb::LeveldbWorkload;

/// Number of files of a mail server in the document.
const DOCUMENT_MAILS: u64 = 500;

/// Measure writing to a volume with three replicas, next to sockets and to local file systems.
///
/// Starts three nodes with their files in memory. Each row has a new volume, which the first node has mounted. The floor
/// sends the same bytes over sockets along the nodes, and stores nothing. A tmpfs and the file system of --disk keep one
/// copy. GlusterFS, if it is installed, keeps three replicas in memory on the same nodes, with its default options.
///
/// The published sizes, 1 GiB for latency and 12 GiB for throughput, are scaled down by default, because three replicas are
/// in memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Experiments:
  latency      one process: write(2) and fsync(2), again and again
  throughput   1, 2, 4 and 8 processes that start together, and sync once at the end
  interference a process on each node that clusters points, alone and next to a writer
  filebench    the loops of a mail server and of a file server, as Filebench has them
  copy-methods 4 processes that write, and a process on each replica that clusters points, for each copy method
  leveldb      LevelDB with the workloads of its db_bench; synced writes are a tenth of the entries
  availability a mail server, while processes of each node in turn are stopped or killed

Examples:
  farfork bench volume latency --replicas idle
  farfork bench volume throughput --mib 12288 --runs 1     the published size; needs 40 GiB of memory
  farfork bench volume latency throughput --quick --gluster on
  farfork bench volume latency --access sr,rr,rw --quick   reads, and writes at random offsets
  farfork bench volume leveldb --workloads fillsync,readrandom
  farfork bench volume filebench --loops varmail --like-the-document
  farfork bench volume all --quick

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchVolume {
    /// Experiments to run.
    #[arg(value_name = "EXPERIMENT", value_enum, default_value = "all")]
    experiments: Vec<ExperimentName>,
    /// Operations of the latency runs: sequential writes and reads, and reads and writes at random offsets of 4 KiB. Reads
    /// are of a file that was written and synced before; writes are synced.
    #[arg(long, value_name = "sw,sr,rr,rw", value_delimiter = ',', default_value = "sw")]
    pub(super) access: Vec<FileAccess>,
    /// Bytes of each write or read.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10, value_parser = size(1..=4 << 20))]
    pub(super) bytes: u64,
    /// Number of operations of a latency run [default: 65536, or 4096 with --quick].
    #[arg(long, value_name = "N", value_parser = size(1..=10_000_000))]
    operations: Option<u64>,
    /// Size of all files of a throughput run together, in MiB [default: 1024, or 256 with --quick].
    #[arg(long, value_name = "MIB", value_parser = size(1..=1 << 20))]
    mib: Option<u64>,
    /// Numbers of processes of the throughput runs.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8", value_parser = size(1..=64))]
    pub(super) processes: Vec<u64>,
    /// Number of points that each process clusters next to a writer [default: 60000, or 6000 with --quick].
    #[arg(long, value_name = "N", value_parser = size(100..=100_000_000))]
    points: Option<u64>,
    /// Number of files of the file server; the mail server has a tenth [default: 5000, or 500 with --quick].
    #[arg(long, value_name = "N", value_parser = size(50..=1_000_000))]
    files: Option<u64>,
    /// Number of entries of 1 KiB of a LevelDB [default: 100000, or 5000 with --quick].
    #[arg(long, value_name = "N", value_parser = size(100..=100_000_000))]
    entries: Option<u64>,
    /// Workloads of LevelDB, by their names in db_bench. Reads use the database of `fillseq`, which is not reported unless it
    /// is named.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum, default_values_t = LeveldbWorkload::ALL)]
    pub(super) workloads: Vec<LeveldbWorkload>,
    /// Loops of `filebench`: of a mail server, and of a file server.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["varmail", "fileserver"])]
    loops: Vec<FilebenchLoop>,
    /// Time for which the mail server and the file server work, in seconds [default: 20, or 3 with --quick].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Time of each fault and of the recovery from it, in seconds. A process is stopped, or a daemon does not run, for half
    /// of this time [default: 10, or 4 with --quick].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    period: Option<f64>,
    /// Load of the replicas during a run: none, or a program that computes on each replica.
    #[arg(long, value_name = "idle|busy|both", default_value = "both")]
    replicas: LoadChoice,
    /// Place of the replication work: a separate process, the daemon, or both in one run.
    ///
    /// See `farfork node --volume-offload`.
    #[arg(long, value_name = "on|inline|both", default_value = "both")]
    offload: OffloadChoice,
    /// Copy methods of the host workers to compare; see `farfork node --volume-copy`. `none` needs mkfs.xfs.
    #[arg(long, value_name = "METHOD,…", value_delimiter = ',', default_values = COPY_METHODS, value_parser = PossibleValuesParser::new(COPY_METHODS))]
    copy_methods: Vec<String>,
    /// Give the last CPU to the offload processes, and the other CPUs to everything else. With inline replication, the
    /// daemons have all CPUs: as many in all as with offload processes.
    ///
    /// In the published runs, the processors of a SmartNIC do this work. On a machine with two CPUs, one CPU takes the place of the
    /// SmartNICs of three machines, and the other CPU the place of their processors.
    #[arg(long)]
    pub(super) pin: bool,
    /// Size of the log of each volume, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = size(8..=2048))]
    pub(super) log_mib: u64,
    /// A directory on the disk that is compared.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) disk: PathBuf,
    /// Measure GlusterFS with three replicas: on or off [default: on, or off with --quick].
    ///
    /// Without Debian's package glusterfs-server, the run reports that it is not installed. The servers run in the nodes'
    /// network namespaces and use no directory of the machine.
    #[arg(long, value_name = "on|off", value_parser = parse_on_off())]
    gluster: Option<bool>,
    /// Number of runs of each row [default: 5, or 1 with --quick].
    #[arg(long, value_name = "N", value_parser = count(1..=1000))]
    runs: Option<usize>,
    /// Write less, and make one run of each row.
    #[arg(long)]
    quick: bool,
    /// The sizes of LineFS's document: 12 GiB of throughput, 600,000 points, 10,000 files, constant mails of 16 KiB, a
    /// million entries, and one run of each row. Needs 40 GiB of memory.
    #[arg(long, conflicts_with = "quick")]
    pub(super) like_the_document: bool,
    #[command(flatten)]
    pub(super) samples: SamplesOption,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExperimentName {
    All,
    Latency,
    Throughput,
    Interference,
    CopyMethods,
    Filebench,
    Leveldb,
    Availability,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OffloadChoice {
    On,
    Inline,
    Both,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadChoice {
    Idle,
    Busy,
    Both,
}

impl ExperimentName {
    fn experiments(self, loops: &[FilebenchLoop]) -> Vec<VolumeExperiment> {
        match self {
            Self::All => {
                let others = Self::value_variants().iter().filter(|name| **name != Self::All);
                others.flat_map(|name| name.experiments(loops)).collect()
            }
            Self::CopyMethods => vec![VolumeExperiment::CopyMethods],
            Self::Interference => vec![VolumeExperiment::Interference],
            Self::Filebench => loops.iter().copied().map(VolumeExperiment::of_loop).collect(),
            Self::Leveldb => vec![VolumeExperiment::Leveldb],
            Self::Availability => vec![VolumeExperiment::Availability],
            Self::Latency => vec![VolumeExperiment::Latency],
            Self::Throughput => vec![VolumeExperiment::Throughput],
        }
    }
}

impl BenchVolume {
    pub(super) fn experiments(&self) -> Vec<VolumeExperiment> {
        self.experiments.iter().flat_map(|name| name.experiments(&self.loops)).collect()
    }

    pub(super) fn has_experiment(&self, experiment: VolumeExperiment) -> bool {
        self.experiments().contains(&experiment)
    }

    /// The value of an option, or its default: without an option, with `--quick`, or with `--like-the-document`.
    fn sized<T>(&self, option: Option<T>, [full, quick, document]: [T; 3]) -> T {
        option.unwrap_or(match (self.quick, self.like_the_document) {
            (true, _) => quick,
            (_, true) => document,
            _ => full,
        })
    }

    pub(super) fn operations(&self) -> u64 {
        self.sized(self.operations, [65_536, 4096, 65_536])
    }

    pub(super) fn mib(&self) -> u64 {
        self.sized(self.mib, [1024, 256, 12_288])
    }

    pub(super) fn points(&self) -> u64 {
        self.sized(self.points, [60_000, 6_000, 600_000])
    }

    /// Number of files of a mail server or of a file server.
    pub(super) fn files_of(&self, experiment: VolumeExperiment) -> u64 {
        let server_files = self.sized(self.files, [5000, 500, 10_000]);
        match experiment {
            VolumeExperiment::Fileserver => server_files,
            _ if self.like_the_document && self.files.is_none() => DOCUMENT_MAILS,
            _ => server_files / 10,
        }
    }

    pub(super) fn entries(&self) -> u64 {
        self.sized(self.entries, [100_000, 5_000, 1_000_000])
    }

    pub(super) fn seconds(&self) -> f64 {
        self.sized(self.seconds, [20.0, 3.0, 20.0])
    }

    /// Time of a fault and of the recovery from it, in seconds.
    pub(super) fn period_s(&self) -> f64 {
        self.sized(self.period, [10.0, 4.0, 10.0])
    }

    pub(super) fn runs(&self) -> usize {
        self.sized(self.runs, [5, 1, 1])
    }

    pub(super) fn with_gluster(&self) -> bool {
        self.sized(self.gluster, [true, false, true])
    }

    pub(super) fn loads(&self) -> &'static [ReplicaLoad] {
        match self.replicas {
            LoadChoice::Idle => &[ReplicaLoad::Idle],
            LoadChoice::Busy => &[ReplicaLoad::Busy],
            LoadChoice::Both => &[ReplicaLoad::Idle, ReplicaLoad::Busy],
        }
    }

    pub(super) fn offload(&self) -> &'static [OffloadVariant] {
        match self.offload {
            OffloadChoice::On => &[OffloadVariant::On],
            OffloadChoice::Inline => &[OffloadVariant::Inline],
            OffloadChoice::Both => &[OffloadVariant::On, OffloadVariant::Inline],
        }
    }

    pub(super) fn copy_methods(&self) -> Vec<&'static str> {
        COPY_METHODS.into_iter().filter(|method| self.copy_methods.iter().any(|name| name == method)).collect()
    }

    pub(super) fn to_json(&self, with_gluster: bool) -> Value {
        json!({
            "experiments": self.experiments(),
            "operation_bytes": self.bytes,
            "operations": self.operations(),
            "mib": self.mib(),
            "processes": self.processes,
            "points": self.points(),
            "mail_files": self.files_of(VolumeExperiment::Varmail),
            "server_files": self.files_of(VolumeExperiment::Fileserver),
            "entries": self.entries(),
            "seconds": self.seconds(),
            "period_s": self.period_s(),
            "loads": self.loads(),
            "offload": self.offload(),
            "copy_methods": self.copy_methods(),
            "pins_cpus": self.pin,
            "log_mib": self.log_mib,
            "runs": self.runs(),
            "disk": self.disk,
            "with_gluster": with_gluster,
            "access": self.access,
            "workloads": self.workloads.iter().map(|workload| workload.name()).collect::<Vec<_>>(),
            "constant_mails": self.like_the_document,
        })
    }

    /// Volumes that are measured: with offload processes, inline, or both.
    pub(super) fn volume_systems(&self) -> impl Iterator<Item = StorageSystem> {
        self.offload().iter().map(|variant| match variant {
            OffloadVariant::On => StorageSystem::Volume,
            OffloadVariant::Inline => StorageSystem::Inline,
        })
    }
}
