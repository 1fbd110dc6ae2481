//! Chooses the CPU on which the pager runs: the child's CPU for single pages, and not the sender's CPU for streams.
//! `server` calls it. The pager's CPU affinity stays unrestricted, so the kernel may still move the pager.

use std::fs;
use std::time::{Duration, Instant};

use farfork_sys::affinity;

/// Shortest time between two moves. A move costs about 20 µs, and the kernel may move the sender at the same time: the
/// pager must not follow each move.
const MOVE_INTERVAL: Duration = Duration::from_millis(2);

/// Longest time between two checks of a child's CPU, if the child stays on the pager's CPU. A check costs as much as a
/// fault.
const CPU_CHECK_INTERVAL_MAX: Duration = Duration::from_millis(16);

/// Faults for single pages in a row, without stream data between them, after which more of them are expected.
const SINGLE_FAULTS_MIN: u32 = 3;

/// The pager moves only if at most this many more threads are runnable than there are CPUs. One such thread is the
/// child's, which never runs for long; more belong to other processes that need the CPUs.
const SPARE_THREADS: usize = 1;

/// The kernel's load averages. The number of runnable threads is before the slash of the fourth word.
const LOAD_FILE: &str = "/proc/loadavg";

/// The time of the last move of the pager's thread, and the observations for the next one.
///
/// *Single pages.* Child, pager and owner work in turn, and each waits for the previous one. On one CPU a switch to the
/// next takes about 2 µs; to wake another CPU takes 15 to 30 µs. So the pager moves to the child's CPU (and an owner to
/// the CPU where requests arrive: `farfork_fabric`).
///
/// *Streams.* The sender of a stream has about as much work as its receiver, and the kernel tends to wake one on the
/// CPU of the other. On one CPU both take twice as long as on two. Packets are received on the sender's CPU if the
/// sender is on this machine, and otherwise on the CPU that the network card interrupts. If the pager runs on the
/// receiving CPU, it moves to another. It stays if other threads need the CPUs, too: moving to a busy CPU costs more
/// than it gains.
#[derive(Debug)]
pub(super) struct CpuPlacement {
    moved_at: Option<Instant>,
    /// When the CPU of a child was last checked.
    checked_at: Option<Instant>,
    /// Time from the last check to the next one.
    check_interval: Duration,
    /// The child's process at the last check, and the pager's CPU.
    checked_process: Option<(i32, usize)>,
    /// Faults for single pages since the last stream data.
    single_faults: u32,
}

impl Default for CpuPlacement {
    fn default() -> Self {
        Self {
            moved_at: None,
            checked_at: None,
            check_interval: MOVE_INTERVAL,
            checked_process: None,
            single_faults: 0,
        }
    }
}

impl CpuPlacement {
    /// Handles a fault for a single page while no stream is active: may move the pager to the child's CPU. `pid` is the
    /// child's process, if known.
    pub(super) fn on_single_fault(&mut self, pid: Option<i32>, now: Instant) {
        self.single_faults = self.single_faults.saturating_add(1);
        let Some(pid) = pid.filter(|_| self.single_faults > SINGLE_FAULTS_MIN) else { return };
        let own = affinity::current();
        if self.checked_process != Some((pid, own)) {
            self.check_interval = MOVE_INTERVAL;
        }
        if is_within(self.checked_at, self.check_interval, now) {
            return;
        }
        (self.checked_at, self.checked_process) = (Some(now), Some((pid, own)));
        let elsewhere = affinity::cpu_of_process(pid).filter(|cpu| *cpu != own);
        self.adjust_check_interval(elsewhere.is_some());
        if let Some(cpu) = elsewhere {
            log_move_error(affinity::migrate_to_cpu(cpu));
        }
    }

    /// Adjusts the time to the next check: a child on the pager's CPU is likely to stay there.
    fn adjust_check_interval(&mut self, was_elsewhere: bool) {
        let longer = (self.check_interval * 2).min(CPU_CHECK_INTERVAL_MAX);
        self.check_interval = if was_elsewhere { MOVE_INTERVAL } else { longer };
    }

    /// Handles stream data that was received on `incoming_cpu`. If the pager runs on this CPU, moves it to another one.
    pub(super) fn on_stream_data(&mut self, incoming_cpu: Option<u32>, now: Instant) {
        self.single_faults = 0;
        self.check_interval = MOVE_INTERVAL;
        let Some(incoming) = incoming_cpu.map(|cpu| cpu as usize) else { return };
        if is_within(self.moved_at, MOVE_INTERVAL, now) || affinity::current() != incoming {
            return;
        }
        self.moved_at = Some(now);
        let load = fs::read_to_string(LOAD_FILE).unwrap_or_default();
        // Without the number of permitted CPUs, do not move.
        let Ok(permitted) = affinity::allowed_cpu_count() else { return };
        if parse_runnable_threads(&load).is_some_and(|threads| threads <= permitted + SPARE_THREADS) {
            log_move_error(affinity::migrate_from_cpu(incoming));
        }
    }
}

/// Whether something happened less than an interval ago.
fn is_within(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_some_and(|last| now.saturating_duration_since(last) < interval)
}

fn log_move_error(moved: std::io::Result<()>) {
    if let Err(error) = moved {
        tracing::warn!("the pager's CPU affinity may stay restricted: {error}");
    }
}

/// The number of runnable threads, from the text of [`LOAD_FILE`].
fn parse_runnable_threads(load: &str) -> Option<usize> {
    load.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{
        CPU_CHECK_INTERVAL_MAX, CpuPlacement, LOAD_FILE, MOVE_INTERVAL, SINGLE_FAULTS_MIN, affinity,
        parse_runnable_threads,
    };

    #[test]
    fn the_number_of_runnable_threads_is_parsed() {
        assert_eq!(parse_runnable_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(
            [
                parse_runnable_threads(""),
                parse_runnable_threads("0.20 0.18 0.12"),
                parse_runnable_threads("1 2 3 x/4 5")
            ],
            [None; 3]
        );
        let now = std::fs::read_to_string(LOAD_FILE).unwrap();
        assert!(parse_runnable_threads(&now).is_some_and(|threads| threads > 0), "this thread is running: {now}");
    }

    #[test]
    fn a_stream_moves_the_pager_once_per_interval_to_a_known_cpu() {
        let (mut placement, now) = (CpuPlacement::default(), Instant::now());
        placement.on_stream_data(None, now);
        placement.on_stream_data(Some(u32::MAX), now);
        assert_eq!(placement.moved_at, None, "the receiving CPU is not known");
        // The kernel may move the thread at any time, but not each time.
        let looked = (0..1000).any(|_| {
            placement.on_stream_data(Some(affinity::current() as u32), now);
            placement.moved_at.is_some()
        });
        assert!(looked);
        placement.on_stream_data(Some(affinity::current() as u32), now + MOVE_INTERVAL / 2);
        assert_eq!(placement.moved_at, Some(now));
    }

    #[test]
    fn single_page_faults_without_a_stream_check_the_cpu_of_the_child() {
        let (mut placement, now, own) = (CpuPlacement::default(), Instant::now(), Some(std::process::id() as i32));
        let faults = |placement: &mut CpuPlacement, pid, count, now| {
            (0..count).for_each(|_| placement.on_single_fault(pid, now));
            placement.checked_at
        };
        assert_eq!(faults(&mut placement, own, SINGLE_FAULTS_MIN, now), None);
        placement.on_stream_data(None, now);
        assert_eq!(
            faults(&mut placement, own, SINGLE_FAULTS_MIN, now),
            None,
            "the count of single faults starts again"
        );
        assert_eq!(faults(&mut placement, None, 9, now), None, "the child's process is not known");
        assert_eq!(faults(&mut placement, own, 1, now), Some(now));
        assert_eq!(faults(&mut placement, own, 9, now + MOVE_INTERVAL / 2), Some(now), "not twice in a row");
        let later = now + CPU_CHECK_INTERVAL_MAX;
        assert_eq!(faults(&mut placement, own, 1, later), Some(later));
    }

    #[test]
    fn the_cpu_of_a_child_that_stays_is_checked_less_often() {
        let (mut placement, now) = (CpuPlacement::default(), Instant::now());
        let mut looks = |elsewhere: &[bool]| {
            elsewhere.iter().for_each(|elsewhere| placement.adjust_check_interval(*elsewhere));
            placement.check_interval
        };
        assert_eq!(looks(&[false]), 2 * MOVE_INTERVAL);
        assert_eq!(looks(&[false; 9]), CPU_CHECK_INTERVAL_MAX);
        assert_eq!(looks(&[true]), MOVE_INTERVAL);
        assert_eq!(looks(&[false; 9]), CPU_CHECK_INTERVAL_MAX);
        placement.on_stream_data(None, now);
        assert_eq!(placement.check_interval, MOVE_INTERVAL, "a stream resets the interval");
    }
}
