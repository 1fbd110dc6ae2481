//! Reads clocks: those that a time namespace shifts, also as another process sees them; the wall clock; the clock of file
//! timestamps; the CPU time of this process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{MemfdFlags, Mode, fchmod, fstat, memfd_create};
use rustix::time::{ClockId, Timespec, clock_gettime};

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// The two clocks that a time namespace shifts, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME.
    pub boottime_ns: i64,
}

impl Clocks {
    /// Reads the clocks, as the calling process sees them.
    pub fn now() -> Self {
        Self {
            monotonic_ns: nanoseconds(clock_gettime(ClockId::Monotonic)),
            boottime_ns: nanoseconds(clock_gettime(ClockId::Boottime)),
        }
    }

    /// Converts these clocks from the caller's time namespace to the time namespace of process `pid`.
    ///
    /// # Errors
    /// If the offsets of either process cannot be read.
    pub fn as_seen_by(self, pid: i32) -> io::Result<Self> {
        let ours = read_offsets("self")?;
        let theirs = read_offsets(&pid.to_string())?;
        Ok(Self {
            monotonic_ns: self.monotonic_ns - ours.monotonic_ns + theirs.monotonic_ns,
            boottime_ns: self.boottime_ns - ours.boottime_ns + theirs.boottime_ns,
        })
    }
}

/// Reads CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic)).cast_unsigned()
}

/// Reads CLOCK_BOOTTIME, in nanoseconds.
pub fn boottime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime)).cast_unsigned()
}

/// Reads CLOCK_REALTIME, in nanoseconds.
pub fn realtime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime)).cast_unsigned()
}

/// Returns the timestamp that the kernel gives to a file that changes now, in nanoseconds since 1970. Files that change
/// later get this timestamp or a later one. Takes two to three microseconds.
///
/// Up to Linux 6.12 the timestamp is CLOCK_REALTIME_COARSE, so a file that changed earlier in the same clock tick has the
/// same timestamp. Later kernels (kernel document `filesystems/multigrain-ts`) give the exact time to a file that changes
/// twice in a tick, if its timestamps were read in between. After that, no file that changes gets an older timestamp. So
/// files that changed before this call have an earlier timestamp.
pub fn file_time_ns() -> i64 {
    static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let file = FILE.get_or_init(|| memfd_create(c"clock of files", MemfdFlags::CLOEXEC).ok());
    let change = |file: &OwnedFd| {
        fchmod(file, Mode::RUSR)?;
        read_change_time(file)?;
        fchmod(file, Mode::RUSR)?;
        read_change_time(file)
    };
    let changed = file.as_ref().and_then(|file| change(file).ok());
    changed.unwrap_or_else(|| nanoseconds(clock_gettime(ClockId::RealtimeCoarse)))
}

fn read_change_time(file: impl AsFd) -> rustix::io::Result<i64> {
    let stat = fstat(file)?;
    Ok(stat.st_ctime * NANOSECONDS_PER_SECOND + stat.st_ctime_nsec as i64)
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec * NANOSECONDS_PER_SECOND + time.tv_nsec
}

/// Reads the CPU time of all threads of this process.
pub fn process_cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Reads the offsets of a process's time namespace; zero on a kernel without time namespaces.
fn read_offsets(process: &str) -> io::Result<Clocks> {
    match fs::read_to_string(format!("/proc/{process}/timens_offsets")) {
        Ok(text) => Ok(parse_offsets(&text)),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(Clocks::default()),
        Err(other) => Err(other),
    }
}

/// Parses lines of the form `CLOCK SECONDS NANOSECONDS` (time_namespaces(7)).
fn parse_offsets(text: &str) -> Clocks {
    let mut clocks = Clocks::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let clock = words.next();
        let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
        let offset = number() * NANOSECONDS_PER_SECOND + number();
        match clock {
            Some("monotonic") => clocks.monotonic_ns = offset,
            Some("boottime") => clocks.boottime_ns = offset,
            _ => {}
        }
    }
    clocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_namespace_offsets_are_parsed() {
        let clocks = parse_offsets("monotonic           1         5\nboottime           -2         0\n");
        let expected = Clocks { monotonic_ns: 1_000_000_005, boottime_ns: -2_000_000_000 };
        assert_eq!(clocks, expected);
    }

    #[test]
    fn files_changed_later_have_this_time_or_a_later_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut before = 0;
        for mode in [0o600, 0o640].repeat(100) {
            let now = file_time_ns();
            assert!(now >= before);
            fchmod(file.as_file(), Mode::from_raw_mode(mode)).unwrap();
            before = read_change_time(file.as_file()).unwrap();
            assert!(before >= now);
        }
    }

    #[test]
    fn the_clocks_of_this_process_are_read() {
        let now = Clocks::now();
        assert_eq!(now.as_seen_by(std::process::id() as i32).unwrap(), now);
    }
}
