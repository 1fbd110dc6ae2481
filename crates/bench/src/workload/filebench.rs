//! The loops of Filebench's varmail and fileserver: a process works on a set of files, one operation after the other,
//! for a given time. Each process is a `farfork bench process`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::RunningProgram;

/// The kind of the process, and its name in errors.
const PROCESS: &str = "filebench";
/// Time between two reports of a process, in seconds.
pub(crate) const INTERVAL_S: f64 = 1.0;
/// Fraction of the files that exist at the beginning.
const PREALLOCATED: f64 = 0.8;
/// Maximum size of an append, in bytes.
const APPEND_BYTES_MAX: usize = 16 << 10;
/// Maximum size of one read(2), in bytes.
const READ_BYTES: usize = 1 << 20;

/// A loop of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum FilebenchLoop {
    /// A mail server: delete, create, append and sync, read and append and sync, read.
    Varmail,
    /// A file server: create and write, append, read, delete, stat. It syncs nothing.
    Fileserver,
}

impl FilebenchLoop {
    /// Mean size of a file.
    fn file_bytes(self) -> usize {
        match self {
            Self::Varmail => 16 << 10,
            Self::Fileserver => 128 << 10,
        }
    }
}

/// The files of a process, and its operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FilebenchSpec {
    pub(crate) operations: FilebenchLoop,
    /// An empty directory.
    pub(crate) directory: PathBuf,
    /// Number of files in the set.
    pub(crate) files: u64,
    /// Time of each run of the loop.
    pub(crate) seconds: f64,
    /// Whether all new files have the same size. Those of appends differ.
    pub(crate) has_constant_sizes: bool,
}

/// Totals of one second of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FilebenchInterval {
    /// Operations per second.
    pub(crate) per_s: f64,
    /// Time of the longest operation, in ms. An operation that lasts several seconds counts in the last of these
    /// seconds.
    pub(crate) longest_ms: f64,
}

/// A process that has created its files. It ends when this value is dropped.
pub(crate) struct FilebenchProcess(RunningProgram);

impl FilebenchProcess {
    /// Starts a process, and waits until its files exist.
    pub(crate) fn start(machine: &dyn Machine, spec: &FilebenchSpec) -> Result<Self, BenchError> {
        Ok(Self(machine.start_process(PROCESS, PROCESS, spec)?.ready()?))
    }

    /// Makes the process run its loop for the time of its specification.
    pub(crate) fn begin(&mut self) -> Result<(), BenchError> {
        self.0.send_message(b'g')
    }

    /// Waits for the end of a run. Then no file is open. Returns the totals of each second: more seconds than specified if an
    /// operation lasted longer.
    ///
    /// # Errors
    /// An operation failed.
    pub(crate) fn finish(&mut self) -> Result<Vec<FilebenchInterval>, BenchError> {
        let [intervals] = self.0.read_answer("ended")?;
        let mut read = || {
            let [operations, longest_us] = self.0.read_answer("ran")?;
            let per_s = operations as f64 / INTERVAL_S;
            Ok(FilebenchInterval { per_s, longest_ms: longest_us as f64 / 1e3 })
        };
        (0..intervals).map(|_| read()).collect()
    }
}

fn interval_count(seconds: f64) -> u32 {
    (seconds / INTERVAL_S).floor().max(1.0) as u32
}

/// Runs the process of a specification, which is JSON. It prints `ready`. After each letter, it runs the loop, and prints `ended
/// SECONDS`, and for each of these seconds `ran OPERATIONS LONGEST_US`; or `failed REASON`. It ends when its input ends.
///
/// # Errors
/// The specification is invalid, or the failure cannot be printed.
pub(crate) fn run_filebench(spec: &str) -> io::Result<()> {
    let spec: FilebenchSpec = serde_json::from_str(spec)?;
    match work(&spec) {
        Err(error) => print_line(&format!("failed {error}")),
        Ok(()) => Ok(()),
    }
}

fn work(spec: &FilebenchSpec) -> io::Result<()> {
    let mut set = FileSet::create(spec)?;
    print_line("ready")?;
    while io::stdin().read(&mut [0])? == 1 {
        set.times = OperationTimes::start();
        while set.times.count < interval_count(spec.seconds) {
            set.run_loop(spec.operations)?;
        }
        print_line(&format!("ended {}", set.times.ended.len()))?;
        for interval in &set.times.ended {
            print_line(&format!("ran {} {}", interval.operations, interval.longest.as_micros()))?;
        }
    }
    Ok(())
}

/// Operations of each interval. An operation belongs to the interval in which it ends.
#[derive(Debug)]
struct OperationTimes {
    started: Instant,
    /// Number of completed intervals.
    count: u32,
    ended: Vec<OperationCount>,
    present: OperationCount,
}

#[derive(Debug, Default)]
struct OperationCount {
    operations: u64,
    longest: Duration,
}

impl OperationTimes {
    fn start() -> Self {
        Self { started: Instant::now(), count: 0, ended: Vec::new(), present: OperationCount::default() }
    }

    fn measure<T>(&mut self, name: &str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let began = Instant::now();
        let result = operation().map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")));
        self.add(began, Instant::now());
        result
    }

    fn add(&mut self, began: Instant, ended: Instant) {
        let passed = ended.duration_since(self.started).as_secs_f64();
        while passed >= f64::from(self.count + 1) * INTERVAL_S {
            self.ended.push(std::mem::take(&mut self.present));
            self.count += 1;
        }
        self.present.operations += 1;
        self.present.longest = self.present.longest.max(ended.duration_since(began));
    }
}

/// The files, by number. Each loop deletes one file and creates one.
struct FileSet {
    directory: PathBuf,
    existing: Vec<u64>,
    missing: Vec<u64>,
    file_bytes: usize,
    has_constant_sizes: bool,
    data: Vec<u8>,
    random: Rng,
    times: OperationTimes,
}

impl FileSet {
    fn create(spec: &FilebenchSpec) -> io::Result<Self> {
        let file_bytes = spec.operations.file_bytes();
        let existing = ((spec.files as f64 * PREALLOCATED) as u64).max(2);
        let mut set = Self {
            directory: spec.directory.clone(),
            existing: (0..existing).collect(),
            missing: (existing..spec.files.max(existing + 1)).collect(),
            file_bytes,
            has_constant_sizes: spec.has_constant_sizes,
            data: vec![b'x'; 2 * file_bytes.max(APPEND_BYTES_MAX)],
            random: Rng::with_seed(spec.files),
            times: OperationTimes::start(),
        };
        for number in 0..existing {
            let bytes = set.size();
            File::create(set.path(number))?.write_all(&set.data[..bytes])?;
        }
        Ok(set)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:08}"))
    }

    /// The mean size, or a random size between half of the mean size and one and a half times the mean.
    fn size(&mut self) -> usize {
        if self.has_constant_sizes {
            return self.file_bytes;
        }
        self.file_bytes / 2 + self.random.usize(0..=self.file_bytes)
    }

    fn existing_path(&mut self) -> PathBuf {
        let index = self.random.usize(..self.existing.len());
        self.path(self.existing[index])
    }

    fn delete(&mut self) -> io::Result<()> {
        let number = self.existing.swap_remove(self.random.usize(..self.existing.len()));
        let path = self.path(number);
        self.times.measure("unlink", || fs::remove_file(path))?;
        self.missing.push(number);
        Ok(())
    }

    fn create_one(&mut self) -> io::Result<File> {
        let number = self.missing.swap_remove(self.random.usize(..self.missing.len()));
        let path = self.path(number);
        let file = self.times.measure("create", || File::create_new(path))?;
        self.existing.push(number);
        Ok(file)
    }

    fn open(&mut self) -> io::Result<File> {
        let path = self.existing_path();
        self.times.measure("open", || OpenOptions::new().read(true).append(true).open(path))
    }

    fn append(&mut self, file: &mut File) -> io::Result<()> {
        let bytes = self.random.usize(1..=APPEND_BYTES_MAX);
        self.times.measure("append", || file.write_all(&self.data[..bytes]))
    }

    fn read(&mut self, file: &mut File) -> io::Result<()> {
        self.times.measure("read", || {
            let mut buffer = vec![0; READ_BYTES];
            while file.read(&mut buffer)? > 0 {}
            Ok(())
        })
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.times.measure("fsync", || file.sync_all())
    }

    fn close(&mut self, file: File) -> io::Result<()> {
        self.times.measure("close", || {
            drop(file);
            Ok(())
        })
    }

    fn run_loop(&mut self, operations: FilebenchLoop) -> io::Result<()> {
        match operations {
            FilebenchLoop::Varmail => self.varmail(),
            FilebenchLoop::Fileserver => self.fileserver(),
        }
    }

    fn varmail(&mut self) -> io::Result<()> {
        self.delete()?;
        let mut file = self.create_one()?;
        self.append(&mut file)?;
        self.sync(&file)?;
        self.close(file)?;
        let mut file = self.open()?;
        self.read(&mut file)?;
        self.append(&mut file)?;
        self.sync(&file)?;
        self.close(file)?;
        let mut file = self.open()?;
        self.read(&mut file)?;
        self.close(file)
    }

    fn fileserver(&mut self) -> io::Result<()> {
        let mut file = self.create_one()?;
        let bytes = self.size();
        self.times.measure("write", || file.write_all(&self.data[..bytes]))?;
        self.close(file)?;
        let mut file = self.open()?;
        self.append(&mut file)?;
        self.close(file)?;
        let mut file = self.open()?;
        self.read(&mut file)?;
        self.close(file)?;
        self.delete()?;
        let path = self.existing_path();
        self.times.measure("stat", || fs::metadata(path)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_keep_their_file_count_and_count_operations() {
        for (operations, count) in [(FilebenchLoop::Varmail, 13), (FilebenchLoop::Fileserver, 11)] {
            let directory = tempfile::tempdir().unwrap();
            let spec = FilebenchSpec {
                operations,
                directory: directory.path().to_owned(),
                files: 20,
                seconds: 1.0,
                has_constant_sizes: false,
            };
            let mut set = FileSet::create(&spec).unwrap();
            for _ in 0..10 {
                set.run_loop(operations).unwrap();
            }
            let intervals = set.times.ended.iter().chain([&set.times.present]);
            assert_eq!(intervals.map(|interval| interval.operations).sum::<u64>(), 10 * count);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 16, "{operations:?}");
            let error = set.times.measure("unlink", || fs::remove_file(directory.path().join("none"))).unwrap_err();
            assert!(error.to_string().starts_with("unlink: "), "{error}");
        }
    }

    #[test]
    fn an_operation_counts_when_it_ends() {
        let mut times = OperationTimes::start();
        let at = |ms| times.started + Duration::from_millis(ms);
        for (began, ended) in [(at(0), at(10)), (at(900), at(2100)), (at(2100), at(2101)), (at(2101), at(3500))] {
            times.add(began, ended);
        }
        let counts: Vec<_> = times.ended.iter().map(|interval| (interval.operations, interval.longest)).collect();
        let ms = Duration::from_millis;
        assert_eq!(counts, [(1, ms(10)), (0, ms(0)), (2, ms(1200))]);
        assert_eq!((times.present.operations, times.present.longest), (1, ms(1399)));
    }
}
