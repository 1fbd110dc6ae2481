//! The C++ micro-benchmark: a process with private memory that its children touch. `micro.cpp` is the program, and
//! lists its commands and answers.

use std::fmt::{self, Display};
use std::path::Path;

use serde::Serialize;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram, parse_numbers};

/// The program.
pub(crate) const MICRO: EmbeddedProgram =
    EmbeddedProgram { name: "micro", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/micro")) };

/// The path of the payload in a child of farfork.
pub(crate) const PAYLOAD_PATH: &str = "/run/farfork/payload";

/// The payload of a child that touches its pages. With any other payload it only reports timestamps.
pub(crate) const PAYLOAD_TOUCH: &str = "touch";

/// The payload of a child that does not touch its pages.
pub(crate) const PAYLOAD_STAMP: &str = "stamp";

/// Memory per touch, in bytes: a small page, or the same amount of a huge page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The order in which pages are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TouchOrder {
    /// Each page once, in an order that readahead cannot predict.
    Random,
    /// From the first to the last.
    Sequential,
}

/// The kind of access in a touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TouchAccess {
    /// Reads a word of the page.
    Read,
    /// Changes a word of the page.
    Write,
}

/// The page size of the memory, if the machine supports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PageSize {
    /// Small pages, of 4 KiB.
    Small,
    /// Huge pages, of 2 MiB.
    Huge,
}

/// The memory accesses of a child, and the properties of its parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroOptions {
    pub(crate) order: TouchOrder,
    pub(crate) access: TouchAccess,
    pub(crate) page_size: PageSize,
    /// Number of threads, including the first.
    pub(crate) threads: u64,
    /// Number of mappings in addition to the touched memory and to the mappings of every program.
    pub(crate) mappings: u64,
}

impl Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "small",
            Self::Huge => "huge",
        })
    }
}

impl Display for TouchOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        })
    }
}

impl Display for TouchAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// The report of a child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildReport {
    /// Time at which the child's first instruction ran, by CLOCK_REALTIME.
    pub(crate) first_unix_ns: i64,
    /// Time at which the child could have reported, by CLOCK_REALTIME.
    pub(crate) reported_unix_ns: i64,
    /// Duration of the child's touches; 0 if it did not touch its pages.
    pub(crate) touch_ns: i64,
    /// Resident memory at the child's end that is shared with other processes.
    pub(crate) shared_bytes: u64,
    /// Resident memory at the child's end that is private.
    pub(crate) private_bytes: u64,
}

impl ChildReport {
    /// Parses a child's line.
    ///
    /// # Errors
    /// The line has another form, or pages were wrong.
    pub(crate) fn parse(line: &str) -> Result<Self, BenchError> {
        let [first_unix_ns, spoke_unix_ns, touch_ns, _faults, wrong, shared_kib, private_kib] =
            parse_numbers(MICRO.name, line, "child")?;
        require_no_wrong_pages(wrong, "pages of a child")?;
        let bytes = |kib: i64| kib.cast_unsigned() << 10;
        let (shared_bytes, private_bytes) = (bytes(shared_kib), bytes(private_kib));
        Ok(Self { first_unix_ns, reported_unix_ns: spoke_unix_ns, touch_ns, shared_bytes, private_bytes })
    }
}

/// A seed from a checkpoint that a program has requested of itself.
#[derive(Debug)]
pub(crate) struct CheckpointedSeed {
    /// The seed's name.
    pub(crate) seed: String,
    /// Time from the call of the library function to its return, in ms.
    pub(crate) call_ms: f64,
    /// The pause of the program, in ms.
    pub(crate) pause_ms: f64,
}

/// A running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Micro {
    program: RunningProgram,
    pages: u64,
}

impl Micro {
    /// Starts the installed program with `mib` of private memory, all of it written. A child reads the file `payload`.
    /// The program requests checkpoints from the node whose API is at `node`.
    pub(crate) fn start(
        machine: &dyn Machine,
        mib: u64,
        micro_options: MicroOptions,
        payload: &Path,
        node: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let mut command = MICRO.command(machine);
        let MicroOptions { order, access, page_size, threads, mappings } = micro_options;
        command.args([&mib.to_string(), &order.to_string(), &access.to_string()]).arg(payload);
        command.args([page_size.to_string(), threads.to_string(), mappings.to_string()]);
        command.envs(node.map(|socket| ("FARFORK_SOCKET", socket)));
        let mut program = machine.start(MICRO.name, &command)?;
        let [_pid] = program.read_answer("ready")?;
        Ok(Self { program, pages: (mib << 20) / PAGE_BYTES })
    }

    /// The process id of the parent.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Makes the program write to every page, so that the next fork finds the pages as a busy program leaves them.
    pub(crate) fn write_all(&mut self) -> Result<(), BenchError> {
        let [_ns] = self.program.request(b'w', "written")?;
        Ok(())
    }

    /// Measures the time of fork(2) in the program, in ms.
    pub(crate) fn measure_fork_ms(&mut self) -> Result<f64, BenchError> {
        let [ns] = self.program.request(b'f', "forked")?;
        Ok(ns_to_ms(ns))
    }

    /// The name of the seed that [`Self::checkpoint`] makes.
    pub(crate) fn checkpoint_name(&self) -> String {
        format!("micro-{}", self.pid())
    }

    /// Makes the program request a checkpoint of itself.
    pub(crate) fn checkpoint(&mut self) -> Result<CheckpointedSeed, BenchError> {
        let [ns, pause_us] = self.program.request(b's', "seeded")?;
        Ok(CheckpointedSeed { seed: self.checkpoint_name(), call_ms: ns_to_ms(ns), pause_ms: pause_us as f64 / 1e3 })
    }

    /// Measures the time in which a local fork touches every page as a child does, in ms.
    pub(crate) fn measure_touch_ms(&mut self) -> Result<f64, BenchError> {
        let [ns, _faults, wrong] = self.program.request(b't', "touched")?;
        require_no_wrong_pages(wrong, "pages of a local fork")?;
        Ok(ns_to_ms(ns))
    }

    /// Measures the time in which a local fork writes to every page, in ms. `None` if there were fewer faults than
    /// pages: then the kernel did not copy page by page, and the time is not a floor.
    pub(crate) fn measure_copy_ms(&mut self) -> Result<Option<f64>, BenchError> {
        let [ns, faults, wrong] = self.program.request(b'c', "copied")?;
        require_no_wrong_pages(wrong, "pages of a local fork")?;
        Ok((faults >= self.pages as i64).then(|| ns_to_ms(ns)))
    }
}

fn require_no_wrong_pages(wrong: i64, what: &'static str) -> Result<(), BenchError> {
    match u64::try_from(wrong) {
        Ok(0) => Ok(()),
        wrong => Err(BenchError::WrongMemory { count: wrong.unwrap_or(u64::MAX), what }),
    }
}

/// Converts nanoseconds to milliseconds.
pub(crate) fn ns_to_ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ChildReport, MICRO, Micro, MicroOptions, PAYLOAD_PATH, PageSize, TouchAccess, TouchOrder};
    use crate::machine::namespace::NamespaceMachine;

    #[test]
    fn a_wrong_page_is_an_error() {
        let report = ChildReport::parse("child 10 20 30 4 0 8 12\n").unwrap();
        assert_eq!((report.first_unix_ns, report.reported_unix_ns, report.touch_ns), (10, 20, 30));
        assert_eq!((report.shared_bytes, report.private_bytes), (8 << 10, 12 << 10));
        let error = ChildReport::parse("child 10 20 30 4 1 8 12\n").unwrap_err();
        assert!(error.to_string().starts_with("1 pages of a child"), "{error}");
    }

    /// Covers each page size, order and access. The program itself verifies every byte in its forks.
    #[test]
    fn the_program_touches_every_page_of_its_forks() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = NamespaceMachine::own(scratch.path());
        MICRO.install(&machine).unwrap();
        for (mib, order, access, page_size, threads, mappings) in [
            (1, TouchOrder::Random, TouchAccess::Read, PageSize::Small, 1, 0),
            (3, TouchOrder::Random, TouchAccess::Write, PageSize::Small, 4, 150),
            (5, TouchOrder::Sequential, TouchAccess::Write, PageSize::Huge, 1, 0),
        ] {
            let micro_options = MicroOptions { order, access, page_size, threads, mappings };
            let mut micro = Micro::start(&machine, mib, micro_options, PAYLOAD_PATH.as_ref(), None).unwrap();
            assert!(micro.measure_fork_ms().unwrap() > 0.0);
            assert!(micro.measure_touch_ms().unwrap() > 0.0);
            micro.write_all().unwrap();
            assert!(micro.measure_copy_ms().unwrap().is_some(), "every page is copied");
            let of_process = |what| format!("/proc/{}/{what}", micro.pid());
            assert_eq!(fs::read_dir(of_process("task")).unwrap().count() as u64, threads);
            let maps = fs::read_to_string(of_process("maps")).unwrap();
            assert!(maps.lines().count() as u64 > mappings, "the additional mappings are in /proc/PID/maps");
        }
    }
}
