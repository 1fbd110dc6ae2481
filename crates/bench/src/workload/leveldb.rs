//! LevelDB in a directory, with the workloads of its db_bench. `leveldb.cpp` is the program.

use std::path::Path;

use clap::ValueEnum;

use crate::error::BenchError;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::machine::program::EmbeddedProgram;

/// The program.
const LEVELDB: EmbeddedProgram =
    EmbeddedProgram { name: "leveldb", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/leveldb")) };

/// Size of a value, in bytes. Snappy halves it.
pub(crate) const VALUE_BYTES: u64 = 1024;

/// A workload. Reads use the database of the sequential fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeveldbWorkload {
    /// Writes keys in order.
    #[value(name = "fillseq")]
    FillSequential,
    /// Reads all keys in order.
    #[value(name = "readseq")]
    ReadSequential,
    /// Reads random keys.
    #[value(name = "readrandom")]
    ReadRandom,
    /// Reads random keys of the first hundredth.
    #[value(name = "readhot")]
    ReadHot,
    /// Writes random keys.
    #[value(name = "fillrandom")]
    FillRandom,
    /// Writes random keys, each synced.
    #[value(name = "fillsync")]
    FillSync,
}

impl LeveldbWorkload {
    /// All workloads, in the order in which they run.
    pub(crate) const ALL: [Self; 6] =
        [Self::FillSequential, Self::ReadSequential, Self::ReadRandom, Self::ReadHot, Self::FillRandom, Self::FillSync];

    /// The name in db_bench and in the program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FillSequential => "fillseq",
            Self::ReadSequential => "readseq",
            Self::ReadRandom => "readrandom",
            Self::ReadHot => "readhot",
            Self::FillRandom => "fillrandom",
            Self::FillSync => "fillsync",
        }
    }

    /// The figure for the mean time of the workload's operations.
    pub(crate) fn figure(self) -> Figure {
        let key = match self {
            Self::FillSequential => "fillseq_us",
            Self::ReadSequential => "readseq_us",
            Self::ReadRandom => "readrandom_us",
            Self::ReadHot => "readhot_us",
            Self::FillRandom => "fillrandom_us",
            Self::FillSync => "fillsync_us",
        };
        Figure::lower(key, self.name(), "µs")
    }
}

/// Runs these workloads in an empty directory of a machine, after the sequential fill. Returns the mean time of an operation
/// of each, in µs.
///
/// # Errors
/// LevelDB failed, or read a value that was not written.
pub(crate) fn run_leveldb(
    machine: &dyn Machine,
    directory: &Path,
    entries: u64,
    synced_entries: u64,
    workloads: &[LeveldbWorkload],
) -> Result<Vec<(Figure, f64)>, BenchError> {
    LEVELDB.install(machine)?;
    let mut command = LEVELDB.command(machine);
    command.arg(directory).args([entries.to_string(), synced_entries.to_string()]);
    let mut process = machine.start(LEVELDB.name, &command)?.ready()?;
    let mut measure = |workload: LeveldbWorkload| -> Result<(Figure, f64), BenchError> {
        process.send_text(&format!("{}\n", workload.name()))?;
        let [ns, operations] = process.read_answer("took")?;
        Ok((workload.figure(), ns as f64 / 1e3 / operations as f64))
    };
    let all = LeveldbWorkload::ALL.into_iter();
    let is_run =
        |workload: &LeveldbWorkload| *workload == LeveldbWorkload::FillSequential || workloads.contains(workload);
    let figures = all.filter(is_run).map(|workload| Ok((workload, measure(workload)?)));
    let figures = figures.collect::<Result<Vec<_>, BenchError>>()?.into_iter();
    Ok(figures.filter(|(workload, _)| workloads.contains(workload)).map(|(_, figure)| figure).collect())
}
