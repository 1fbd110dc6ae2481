//! Reads when a thread last ran on a processor, and how often it has run.

use std::io;

use super::{malformed, read_line};

/// Returns the time at which a thread last ran, in nanoseconds of its processor's scheduler clock. For a running thread,
/// this is shortly before the call. The scheduler clock is not a clock of clock_gettime(2), and differs between processors.
///
/// # Errors
/// NotFound or ESRCH if the thread has ended, or if the kernel does not report the time (it was built without
/// CONFIG_SCHED_DEBUG).
pub fn read_last_run_ns(tid: i32) -> io::Result<u64> {
    let file = format!("/proc/{tid}/sched");
    let text = std::fs::read_to_string(&file)?;
    parse_last_run(&text).ok_or_else(|| malformed(&file))
}

/// Parses the line `se.exec_start`, whose value is in milliseconds with six decimal places.
fn parse_last_run(text: &str) -> Option<u64> {
    const NS_PER_MS: u64 = 1_000_000;
    let line = text.lines().find(|line| line.starts_with("se.exec_start"))?;
    let (ms, ns) = line.split_once(':')?.1.trim().split_once('.')?;
    let (ms, ns): (u64, u64) = (ms.parse().ok()?, ns.parse().ok()?);
    (ns < NS_PER_MS).then(|| ms * NS_PER_MS + ns)
}

/// The use of processors by a thread since it was started. Does not change on a kernel that was built without
/// CONFIG_SCHED_INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a processor, in nanoseconds.
    pub ran_ns: u64,
    /// Time waiting for a processor, in nanoseconds.
    pub waited_ns: u64,
    /// Number of time slices.
    pub timeslices: u64,
}

impl SchedStat {
    /// Reads `/proc/TID/schedstat`.
    ///
    /// # Errors
    /// NotFound or ESRCH if the thread has ended.
    pub fn read(tid: i32) -> io::Result<Self> {
        let file = format!("/proc/{tid}/schedstat");
        Self::parse(&read_line(&file)?).ok_or_else(|| malformed(&file))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { ran_ns: next()?, waited_ns: next()?, timeslices: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_time_is_parsed() {
        let text = "cat (14304, #threads: 1)\n----\nse.exec_start    :       1528109.680112\nse.vruntime : 147.3\n";
        assert_eq!(parse_last_run(text), Some(1_528_109_680_112));
        assert_eq!(parse_last_run("se.vruntime : 147.3"), None);
    }

    #[test]
    fn the_cpu_time_is_parsed() {
        let expected = SchedStat { ran_ns: 981_109, waited_ns: 1_825_105, timeslices: 14 };
        assert_eq!(SchedStat::parse("981109 1825105 14\n"), Some(expected));
        assert_eq!(SchedStat::parse("981109 1825105"), None);
    }

    #[test]
    fn a_sleeping_thread_has_run_before() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let tid = child.id().cast_signed();
        while super::super::SystemCall::read(tid).unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        let look = || (read_last_run_ns(tid).unwrap(), SchedStat::read(tid).unwrap());
        let before = look();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(look(), before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
