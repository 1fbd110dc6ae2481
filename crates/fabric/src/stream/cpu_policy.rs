//! Chooses the CPU and the time slice of a worker, depending on its recent replies: single pages or streams.

use std::time::{Duration, Instant};

use farfork_sys::{affinity, sched_slice};

/// A turn with at most this many reply bytes counts as a turn with single pages.
const SINGLE_PAGE_BYTES_MAX: usize = 8 << 10;

/// Number of consecutive turns with single pages after which the next turns are expected to have single pages too.
const SINGLE_PAGE_TURNS_MIN: u32 = 3;

/// Interval between checks of the CPU that receives the requests.
const CPU_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Time slice of a worker that sends a stream: the time for a few replies.
const STREAM_TIME_SLICE: Duration = Duration::from_micros(500);

// Single pages: requester and worker run alternately, because the requester waits for each page. On one machine, a
// request is received on the CPU that sent it. If the worker runs on that CPU too, each hand-over is a switch of about
// 2 us, while waking another CPU costs 15 to 30 us. Between machines, the request is received on the CPU that the
// network card interrupts; a worker on that CPU is woken without waking another CPU. So the worker moves to the CPU
// that receives the requests, and has the shortest time slice.
//
// Streams: both ends work at the same time. The requester moves to another CPU (`farfork_fork`), and the worker stays.
// The worker gets a longer time slice, because a woken thread preempts at once only a thread with a longer slice. With
// equal slices, a worker with a single page would wait until the streaming worker on its CPU has sent its current data.
//
// The worker is not pinned: the kernel may move it at any time.

/// The kind of a worker's recent turns: single pages or streams.
#[derive(Debug, Default)]
pub(super) struct CpuPolicy {
    single_page_turns: u32,
    is_streaming: bool,
    cpu_checked_at: Option<Instant>,
}

impl CpuPolicy {
    /// Sets the initial time slice. Called by the worker's thread.
    pub(super) fn apply_initial(&mut self) {
        self.is_streaming = false;
        set_time_slice(sched_slice::SLICE_MIN);
    }

    /// Records that a turn served this many bytes. `incoming_cpu` returns the CPU that received the requests.
    pub(super) fn record_turn(&mut self, bytes: usize, incoming_cpu: impl FnOnce() -> Option<u32>, now: Instant) {
        match bytes {
            0 => return,
            1..=SINGLE_PAGE_BYTES_MAX => self.single_page_turns = self.single_page_turns.saturating_add(1),
            _ => self.single_page_turns = 0,
        }
        let singles = self.single_page_turns > SINGLE_PAGE_TURNS_MIN;
        if singles == self.is_streaming && (singles || bytes > SINGLE_PAGE_BYTES_MAX) {
            self.is_streaming = !singles;
            set_time_slice(if singles { sched_slice::SLICE_MIN } else { STREAM_TIME_SLICE });
        }
        let is_early = self.cpu_checked_at.is_some_and(|at| now.saturating_duration_since(at) < CPU_CHECK_INTERVAL);
        if singles && !is_early {
            self.cpu_checked_at = Some(now);
            move_to_cpu(incoming_cpu());
        }
    }
}

fn move_to_cpu(cpu: Option<u32>) {
    if let Some(cpu) = cpu.map(|cpu| cpu as usize).filter(|cpu| *cpu != affinity::current())
        && let Err(error) = affinity::migrate_to_cpu(cpu)
    {
        tracing::debug!(%error, "cannot move a fabric server thread to CPU {cpu}");
    }
}

fn set_time_slice(length: Duration) {
    if let Err(error) = sched_slice::set_slice(length) {
        tracing::debug!(%error, "cannot set the time slice of a fabric server thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_checked_only_after_many_single_page_reads() {
        let (mut policy, mut now, mut looks) = (CpuPolicy::default(), Instant::now(), 0);
        let mut serve = |bytes, now| {
            let look = || {
                looks += 1;
                None
            };
            policy.record_turn(bytes, look, now);
            (looks, policy.is_streaming)
        };
        for (bytes, streams) in
            [(4096, false), (0, false), (4096, false), (SINGLE_PAGE_BYTES_MAX + 1, true), (4096, true)]
        {
            assert_eq!(serve(bytes, now), (0, streams));
        }
        assert_eq!([serve(4096, now), serve(4096, now), serve(4096, now)], [(0, true), (0, true), (1, false)]);
        assert_eq!([serve(4096, now), serve(0, now + CPU_CHECK_INTERVAL)], [(1, false); 2]);
        now += CPU_CHECK_INTERVAL;
        assert_eq!(serve(4096, now), (2, false));
        assert_eq!(serve(1 << 20, now), (2, true));
    }
}
