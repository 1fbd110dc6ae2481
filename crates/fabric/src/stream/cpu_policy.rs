//! How a worker shares CPUs with those who ask it: on which one it runs, and for how long at a time.
//!
//! *Single pages.* Whoever asks for one page waits for it, and works while the worker waits. On one machine a request is
//! taken from the network where it was sent: there asker and worker hand over to each other by a switch of some 2 µs, while
//! waking another CPU costs 15 to 30. On several machines it is where the network card interrupts, and again nobody else
//! has to be woken. So the worker goes where requests come in, and has the shortest turns that there are.
//!
//! *Streams.* Both ends work at the same time: the asker goes away from there (`farfork_fork`), the worker stays. It has
//! longer turns, for the kernel lets who is woken run at once only before those with longer ones: otherwise a single page
//! would wait until the worker next to it has sent what it is about to.
//!
//! The kernel may move it at any time.

use std::time::{Duration, Instant};

use farfork_sys::{affinity, sched_slice};

/// Replies of a turn up to this size, in bytes, are of single pages.
const SINGLE_PAGE_BYTES_MAX: usize = 8 << 10;

/// Turns of single pages in a row after which the next are taken to be of that kind.
const SINGLE_PAGE_TURNS_MIN: u32 = 3;

/// How often it is looked where requests come in.
const CPU_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How long a worker that sends a stream runs at a time: as long as a few replies take.
const STREAM_TIME_SLICE: Duration = Duration::from_micros(500);

/// What a worker has served lately.
#[derive(Debug, Default)]
pub(super) struct CpuPolicy {
    single_page_turns: u32,
    is_streaming: bool,
    cpu_checked_at: Option<Instant>,
}

impl CpuPolicy {
    /// The worker's thread begins.
    pub(super) fn apply_initial(&mut self) {
        self.is_streaming = false;
        set_time_slice(sched_slice::SLICE_MIN);
    }

    /// A turn has served so many bytes; `incoming_cpu` tells where its requests came in.
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
        tracing::debug!(%error, "a thread of the fabric's server cannot move to CPU {cpu}");
    }
}

fn set_time_slice(length: Duration) {
    if let Err(error) = sched_slice::set_slice(length) {
        tracing::debug!(%error, "a thread of the fabric's server has turns as long as anybody's");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_single_pages_in_a_row_are_worth_a_look() {
        let (mut conduct, mut now, mut looks) = (CpuPolicy::default(), Instant::now(), 0);
        let mut serve = |bytes, now| {
            let look = || {
                looks += 1;
                None
            };
            conduct.record_turn(bytes, look, now);
            (looks, conduct.is_streaming)
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
