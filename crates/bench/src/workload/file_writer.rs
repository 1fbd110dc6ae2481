//! Processes that write files: one write(2) after the other, synced after each or once at the end. They start together.
//! Each writer is a process `farfork bench process`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::RunningProgram;

/// The kind of the process, and its name in errors.
const WRITER: &str = "file-writer";

/// The operations on a file, by their names in the program that published the reference figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileAccess {
    /// Sequential writes.
    #[value(name = "sw")]
    SequentialWrite,
    /// Sequential reads.
    #[value(name = "sr")]
    SequentialRead,
    /// Reads at random offsets.
    #[value(name = "rr")]
    RandomRead,
    /// Writes at random offsets.
    #[value(name = "rw")]
    RandomWrite,
}

impl FileAccess {
    /// The text for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SequentialWrite => "sequential writes",
            Self::SequentialRead => "sequential reads",
            Self::RandomRead => "random reads",
            Self::RandomWrite => "random writes",
        }
    }
}

/// The file of a writer, and its operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileWriterSpec {
    /// The file. An existing file is truncated.
    pub(crate) path: PathBuf,
    pub(crate) operation_bytes: u64,
    pub(crate) operations: u64,
    pub(crate) access: FileAccess,
    /// Whether to call fsync(2) after each write, or only at the end.
    pub(crate) syncs_each: bool,
}

/// Random offsets are multiples of this number of bytes.
const OFFSET_BYTES: u64 = 4096;

/// The times of a writer, in ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileWriterResult {
    /// Time from the first write to the end of the last sync.
    pub(crate) total: u64,
    /// Time of a write, and of its sync if each write is synced.
    pub(crate) operation: OperationLatency,
    /// Mean time of the sync alone; 0 if the file is only synced at the end.
    pub(crate) sync_mean: u64,
}

/// The times of many operations, in ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationLatency {
    pub(crate) mean: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) p9999: u64,
}

impl OperationLatency {
    /// Computes mean and percentiles. A percentile is computed as by the program that published the reference figures.
    pub(crate) fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at = |part: f64| times.get((times.len() as f64 * part) as usize).or(times.last()).copied().unwrap_or(0);
        let mean = times.iter().sum::<u64>() / times.len().max(1) as u64;
        Self { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999), p9999: at(0.9999) }
    }
}

/// Writers that have opened their files.
pub(crate) struct FileWriters(Vec<RunningProgram>);

impl FileWriters {
    /// Starts a writer for each specification.
    pub(crate) fn start(machine: &dyn Machine, specs: &[FileWriterSpec]) -> Result<Self, BenchError> {
        let start = |spec| machine.start_process(WRITER, WRITER, spec)?.ready();
        Ok(Self(specs.iter().map(start).collect::<Result<_, _>>()?))
    }

    /// Makes all of them begin at the same time, and waits for their ends.
    ///
    /// # Errors
    /// A writer fails.
    pub(crate) fn run(mut self) -> Result<Vec<FileWriterResult>, BenchError> {
        for writer in &mut self.0 {
            writer.send_message(b'g')?;
        }
        self.0.iter_mut().map(read_result).collect()
    }
}

fn read_result(writer: &mut RunningProgram) -> Result<FileWriterResult, BenchError> {
    let numbers: [i64; 7] = writer.read_answer("written")?;
    let [total, mean, p50, p99, p999, p9999, sync_mean] = numbers.map(i64::unsigned_abs);
    Ok(FileWriterResult { total, operation: OperationLatency { mean, p50, p99, p999, p9999 }, sync_mean })
}

/// Runs the writer of a specification, which is JSON.
///
/// # Errors
/// The specification is invalid, or the result cannot be printed. Any other failure is printed.
pub(crate) fn run_file_writer(spec: &str) -> io::Result<()> {
    let spec: FileWriterSpec = serde_json::from_str(spec)?;
    match write_file(&spec) {
        Err(error) => print_line(&format!("failed {}: {error}", spec.path.display())),
        Ok(FileWriterResult { total, operation, sync_mean }) => {
            let OperationLatency { mean, p50, p99, p999, p9999 } = operation;
            print_line(&format!("written {total} {mean} {p50} {p99} {p999} {p9999} {sync_mean}"))
        }
    }
}

fn write_file(spec: &FileWriterSpec) -> io::Result<FileWriterResult> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&spec.path)?;
    if spec.access != FileAccess::SequentialWrite {
        let data = vec![b'0'; spec.operation_bytes as usize];
        (0..spec.operations).try_for_each(|_| file.write_all(&data))?;
        file.sync_all()?;
    }
    print_line("ready")?;
    io::stdin().read_exact(&mut [0])?;
    write_operations(file, spec)
}

fn write_operations(mut file: File, spec: &FileWriterSpec) -> io::Result<FileWriterResult> {
    // Digits, as in the program that published the reference figures. They are compressible.
    let mut data: Vec<u8> = (0..spec.operation_bytes).map(|index| b'0' + (index % 10) as u8).collect();
    let mut times = Vec::with_capacity(spec.operations as usize);
    let mut sync_total = 0;
    let started = Instant::now();
    let mut random = Rng::with_seed(spec.operations);
    let pages = (spec.operations * spec.operation_bytes).saturating_sub(spec.operation_bytes) / OFFSET_BYTES;
    for index in 0..spec.operations {
        let began = Instant::now();
        match spec.access {
            FileAccess::SequentialWrite => file.write_all(&data)?,
            FileAccess::SequentialRead => file.read_exact_at(&mut data, index * spec.operation_bytes)?,
            FileAccess::RandomRead => file.read_exact_at(&mut data, random.u64(0..=pages) * OFFSET_BYTES)?,
            FileAccess::RandomWrite => file.write_all_at(&data, random.u64(0..=pages) * OFFSET_BYTES)?,
        }
        let writes = matches!(spec.access, FileAccess::SequentialWrite | FileAccess::RandomWrite);
        if spec.syncs_each && writes {
            let written = Instant::now();
            file.sync_all()?;
            sync_total += written.elapsed().as_nanos() as u64;
        }
        times.push(began.elapsed().as_nanos() as u64);
    }
    file.sync_all()?;
    let total = started.elapsed().as_nanos() as u64;
    let sync_mean = sync_total / spec.operations.max(1);
    Ok(FileWriterResult { total, operation: OperationLatency::of(times), sync_mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_mean_cover_all_operations() {
        let latency = OperationLatency::of((1..=100).rev().collect());
        assert_eq!((latency.mean, latency.p50, latency.p99, latency.p9999), (50, 51, 100, 100));
        assert_eq!(OperationLatency::of(Vec::new()).p99, 0);
    }

    #[test]
    fn each_operation_is_written_and_timed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let spec = FileWriterSpec {
            path: file.path().to_owned(),
            operation_bytes: 25,
            operations: 4,
            access: FileAccess::SequentialWrite,
            syncs_each: true,
        };
        let result = write_operations(file.reopen().unwrap(), &spec).unwrap();
        let written = std::fs::read(file.path()).unwrap();
        assert_eq!((written.len(), &written[..25]), (100, &b"0123456789012345678901234"[..]));
        let mean = result.operation.mean;
        assert!(0 < result.sync_mean && result.sync_mean <= mean && mean <= result.total, "{result:?}");
        for access in [FileAccess::SequentialRead, FileAccess::RandomRead, FileAccess::RandomWrite] {
            let result = write_operations(file.reopen().unwrap(), &FileWriterSpec { access, ..spec.clone() }).unwrap();
            assert_eq!(result.sync_mean > 0, access == FileAccess::RandomWrite, "{access:?}: {result:?}");
            assert_eq!(std::fs::read(file.path()).unwrap().len(), 100, "{access:?}");
        }
    }
}
