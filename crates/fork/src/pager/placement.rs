//! On which CPU the pager runs while it receives a stream.
//!
//! Whoever sends a stream has about as much to do as whoever receives it, and the kernel likes to wake the one where the
//! other runs: side by side on one CPU they take twice as long as on two. Packets are taken from the network where their
//! sender runs, if that is on this machine, or where the network card interrupts. So the pager moves away when it finds
//! itself there. It stays free to be moved again: only the kernel knows who else wants which CPU. Who decides when to look
//! is `server`.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Least time between two moves. One costs some 20 µs, and a sender that the kernel moves, too, is not to be chased.
const MOVE_INTERVAL: Duration = Duration::from_millis(2);

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
        // Where it is not permitted to, it stays.
        let Ok(permitted) = sched_getaffinity(None) else { return };
        if let Some(others) = elsewhere(&permitted, incoming)
            && sched_setaffinity(None, &others).is_ok()
            && let Err(error) = sched_setaffinity(None, &permitted)
        {
            tracing::warn!("the pager stays away from CPU {incoming}: {error}");
        }
    }
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

    use super::{CpuSet, MOVE_INTERVAL, Placement, elsewhere, sched_getaffinity, sched_getcpu};

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
    fn the_thread_leaves_the_senders_cpu_and_may_return() {
        let (mut placement, now, before) = (Placement::default(), Instant::now(), sched_getaffinity(None).unwrap());
        placement.stream_came(None, now);
        placement.stream_came(Some(u32::MAX), now);
        assert_eq!(placement.moved_at, None, "it is not known where packets come from");
        // The kernel may move it back at any time, but not always.
        let mut looks = 0;
        loop {
            let (cpu, later) = (sched_getcpu(), now + looks * MOVE_INTERVAL);
            placement.stream_came(Some(cpu as u32), later);
            assert_eq!(sched_getaffinity(None).unwrap(), before, "it may run wherever it could");
            if placement.moved_at == Some(later) && (sched_getcpu() != cpu || before.count() == 1) {
                break;
            }
            looks += 1;
            assert!(looks < 1000, "it never moves");
        }
        let moved = placement.moved_at;
        placement.stream_came(Some(sched_getcpu() as u32), moved.unwrap());
        assert_eq!(placement.moved_at, moved, "not twice in a row");
    }
}
