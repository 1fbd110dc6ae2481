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

use farfork_sys::{affinity, turn};

/// Replies of a turn up to this size, in bytes, are of single pages.
const SINGLE_BYTES_MAX: usize = 8 << 10;

/// Turns of single pages in a row after which the next are taken to be of that kind.
const SINGLE_TURNS: u32 = 3;

/// How often it is looked where requests come in.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// How long a worker that sends a stream runs at a time: as long as a few replies take.
const STREAM_TURN: Duration = Duration::from_micros(500);

/// What a worker has served lately.
#[derive(Debug, Default)]
pub(super) struct Conduct {
    single_turns: u32,
    streams: bool,
    looked_at: Option<Instant>,
}

impl Conduct {
    /// The worker's thread begins.
    pub(super) fn begin(&mut self) {
        self.streams = false;
        take_turns(turn::SHORTEST);
    }

    /// A turn has served so many bytes; `incoming_cpu` tells where its requests came in.
    pub(super) fn served(&mut self, bytes: usize, incoming_cpu: impl FnOnce() -> Option<u32>, now: Instant) {
        match bytes {
            0 => return,
            1..=SINGLE_BYTES_MAX => self.single_turns = self.single_turns.saturating_add(1),
            _ => self.single_turns = 0,
        }
        let singles = self.single_turns > SINGLE_TURNS;
        if singles == self.streams && (singles || bytes > SINGLE_BYTES_MAX) {
            self.streams = !singles;
            take_turns(if singles { turn::SHORTEST } else { STREAM_TURN });
        }
        let is_early = self.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK_INTERVAL);
        if singles && !is_early {
            self.looked_at = Some(now);
            go_to(incoming_cpu());
        }
    }
}

fn go_to(cpu: Option<u32>) {
    if let Some(cpu) = cpu.map(|cpu| cpu as usize).filter(|cpu| *cpu != affinity::current())
        && let Err(error) = affinity::join(cpu)
    {
        tracing::debug!(%error, "a thread of the fabric's server cannot move to CPU {cpu}");
    }
}

fn take_turns(length: Duration) {
    if let Err(error) = turn::set(length) {
        tracing::debug!(%error, "a thread of the fabric's server has turns as long as anybody's");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_single_pages_in_a_row_are_worth_a_look() {
        let (mut conduct, mut now, mut looks) = (Conduct::default(), Instant::now(), 0);
        let mut serve = |bytes, now| {
            let look = || {
                looks += 1;
                None
            };
            conduct.served(bytes, look, now);
            (looks, conduct.streams)
        };
        for (bytes, streams) in [(4096, false), (0, false), (4096, false), (SINGLE_BYTES_MAX + 1, true), (4096, true)] {
            assert_eq!(serve(bytes, now), (0, streams));
        }
        assert_eq!([serve(4096, now), serve(4096, now), serve(4096, now)], [(0, true), (0, true), (1, false)]);
        assert_eq!([serve(4096, now), serve(0, now + LOOK_INTERVAL)], [(1, false); 2]);
        now += LOOK_INTERVAL;
        assert_eq!(serve(4096, now), (2, false));
        assert_eq!(serve(1 << 20, now), (2, true));
    }
}
