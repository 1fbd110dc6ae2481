//! On which CPU the pager runs while it receives a stream.
//!
//! Whoever sends a stream has about as much to do as whoever receives it, and the kernel likes to wake the one where the
//! other runs: side by side on one CPU they take twice as long as on two. Packets are taken from the network where their
//! sender runs, if that is on this machine, or where the network card interrupts. So the pager moves away when it finds
//! itself there, unless others want the CPUs, too: moving onto a CPU that somebody else uses costs more than it brings. It
//! stays free to be moved again by the kernel. Who decides when to look is `server`.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Least time between two moves. One costs some 20 µs, and a sender that the kernel moves, too, is not to be chased.
const MOVE_INTERVAL: Duration = Duration::from_millis(2);

/// Threads that may want to run beyond one for each CPU: the child's, which never runs for long. With more of them,
/// somebody else wants the CPUs.
const SPARE_THREADS: u32 = 1;

/// The kernel's averages, with the number of threads that would run now before the slash of the fourth word.
const LOAD_FILE: &str = "/proc/loadavg";

/// When the pager's thread moved.
#[derive(Debug, Default)]
pub(super) struct Placement {
    moved_at: Option<Instant>,
}

impl Placement {
    /// Part of a stream has come, taken from the network on the CPU of this number: leaves it, if it is the own one.
    pub(super) fn stream_came(&mut self, incoming_cpu: Option<u32>, now: Instant) {
        let Some(incoming) = incoming_cpu.map(|cpu| cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) else { return };
        let is_early = self.moved_at.is_some_and(|moved| now.saturating_duration_since(moved) < MOVE_INTERVAL);
        if is_early || sched_getcpu() != incoming {
            return;
        }
        self.moved_at = Some(now);
        let load = fs::read_to_string(LOAD_FILE).unwrap_or_default();
        // Where it cannot be asked what it may use, it stays.
        let Ok(permitted) = sched_getaffinity(None) else { return };
        if runnable(&load).is_some_and(|threads| threads <= permitted.count() + SPARE_THREADS) {
            leave(incoming, &permitted);
        }
    }
}

/// Moves the calling thread to any other CPU that it may use.
fn leave(avoided: usize, permitted: &CpuSet) {
    if let Some(others) = elsewhere(permitted, avoided)
        && sched_setaffinity(None, &others).is_ok()
        && let Err(error) = sched_setaffinity(None, permitted)
    {
        tracing::warn!("the pager stays away from CPU {avoided}: {error}");
    }
}

/// How many threads would run now, by the text of [`LOAD_FILE`].
fn runnable(load: &str) -> Option<u32> {
    load.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// All CPUs of a set but one, if any are left.
fn elsewhere(set: &CpuSet, avoided: usize) -> Option<CpuSet> {
    let mut rest = *set;
    rest.unset(avoided);
    (rest.count() > 0).then_some(rest)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{
        CpuSet, LOAD_FILE, MOVE_INTERVAL, Placement, elsewhere, leave, runnable, sched_getaffinity, sched_getcpu,
    };

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    }

    #[test]
    fn the_last_cpu_is_kept() {
        assert_eq!(elsewhere(&set(&[0, 3]), 0), Some(set(&[3])));
        assert_eq!(elsewhere(&set(&[3]), 0), Some(set(&[3])));
        assert_eq!(elsewhere(&set(&[3]), 3), None);
    }

    #[test]
    fn what_would_run_is_read() {
        assert_eq!(runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!([runnable(""), runnable("0.20 0.18 0.12"), runnable("1 2 3 x/4 5")], [None; 3]);
        let now = std::fs::read_to_string(LOAD_FILE).unwrap();
        assert!(runnable(&now).is_some_and(|threads| threads > 0), "this one runs: {now}");
    }

    #[test]
    fn only_who_knows_where_packets_come_from_looks_and_not_twice_in_a_row() {
        let (mut placement, now, before) = (Placement::default(), Instant::now(), sched_getaffinity(None).unwrap());
        placement.stream_came(None, now);
        placement.stream_came(Some(u32::MAX), now);
        assert_eq!(placement.moved_at, None, "it is not known where packets come from");
        // The kernel may move it at any time, but not always.
        let looked = (0..1000).any(|_| {
            placement.stream_came(Some(sched_getcpu() as u32), now);
            placement.moved_at.is_some()
        });
        assert!(looked && sched_getaffinity(None).unwrap() == before, "it may run wherever it could");
        placement.stream_came(Some(sched_getcpu() as u32), now + MOVE_INTERVAL / 2);
        assert_eq!(placement.moved_at, Some(now));
    }

    #[test]
    fn the_thread_leaves_a_cpu_and_may_return() {
        let before = sched_getaffinity(None).unwrap();
        // The kernel may move it back at any time, but not always.
        let left = (0..1000).any(|_| {
            let cpu = sched_getcpu();
            leave(cpu, &before);
            sched_getcpu() != cpu || before.count() == 1
        });
        assert!(left, "it never moves");
        assert_eq!(sched_getaffinity(None).unwrap(), before, "it may run wherever it could");
    }
}
