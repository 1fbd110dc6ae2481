//! When a thread has entered the system call that it sleeps in.
//!
//! The kernel tells nobody. It tells when a thread was last on a processor, by the clock that the scheduler has for that processor:
//! the thread has entered the call then, or has been woken in it since, for nothing. So a wait may be taken for younger than
//! it is, and never for older.

use farfork_sys::clock;
use farfork_sys::process::{self, Stat, Status, SystemCall};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::limits::LimitedCall;

/// A clock is looked at so often: each look may be late, and never early.
const LOOKS: usize = 3;

/// A thread that sleeps in a call with a time limit, as it looked before it was stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenCall {
    call: SystemCall,
    last_run_ns: u64,
    processor: u32,
    times_run: u64,
    /// How often it had gone to sleep by itself.
    sleeps: u64,
}

impl SeenCall {
    /// Looks at a thread; `None` where it sleeps in no such call.
    pub(crate) fn look(tid: i32) -> Option<Self> {
        let first = SystemCall::of(tid).ok()??;
        LimitedCall::of(first.number, &first.arguments)?;
        // The counts before all that they vouch for: whoever leaves the call from here on is found by them.
        let sleeps = Status::read(tid).ok()?.voluntary_switches;
        let times_run = process::times_run(tid).ok()?;
        let call = SystemCall::of(tid).ok()??;
        LimitedCall::of(call.number, &call.arguments)?;
        let last_run_ns = process::last_run_ns(tid).ok()?;
        let processor = Stat::read(tid).ok()?.processor;
        Some(Self { call, last_run_ns, processor, times_run, sleeps })
    }

    /// Whether the thread, which now stands, has been in the same call since: it has had a processor once, to stop; or several times,
    /// where others took that from it, and has gone to sleep once.
    pub(crate) fn is_still(&self, tid: i32, stack_pointer: u64, instruction_pointer: u64) -> bool {
        const TO_STOP: u64 = 1;
        let place = (self.call.stack_pointer, self.call.instruction_pointer);
        let has_run_once = || process::times_run(tid).is_ok_and(|times| times == self.times_run + TO_STOP);
        let has_slept_once =
            || Status::read(tid).is_ok_and(|status| status.voluntary_switches <= self.sleeps + TO_STOP);
        place == (stack_pointer, instruction_pointer) && (has_run_once() || has_slept_once())
    }

    /// When it has entered the call, by CLOCK_MONOTONIC: not earlier than it has.
    pub(crate) fn entered_at_ns(&self) -> Option<u64> {
        let difference = clock_difference(self.processor)?;
        self.last_run_ns.checked_add_signed(difference)
    }
}

/// By how much CLOCK_MONOTONIC is ahead of the scheduler's clock of a processor, in nanoseconds, or a little more. The calling
/// thread looks for itself, on that processor.
fn clock_difference(processor: u32) -> Option<i64> {
    let before = sched_getaffinity(None).ok()?;
    let mut only = CpuSet::new();
    if processor as usize >= CpuSet::MAX_CPU || !before.is_set(processor as usize) {
        return None;
    }
    only.set(processor as usize);
    sched_setaffinity(None, &only).ok()?;
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let look = || {
        // The kernel notes the time when a thread is given the processor.
        rustix::thread::sched_yield();
        let last_run_ns = process::last_run_ns(own).ok()?;
        Some(clock::monotonic_ns().cast_signed() - last_run_ns.cast_signed())
    };
    let least = (0..LOOKS).filter_map(|_| look()).min();
    // It was allowed there before.
    let _ = sched_setaffinity(None, &before);
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use std::time::{Duration, Instant};

    /// A machine may be busy, so that a thread is late between two of its steps: the wait is held against the times around its begin.
    #[test]
    fn a_wait_is_no_older_than_it_is_and_hardly_younger() {
        const LATE_NS_MAX: u64 = 50_000_000;
        const ROUNDING_NS: u64 = 1_000_000;
        let end = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let waited_for = end.try_clone().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            sender.send((rustix::thread::gettid().as_raw_nonzero().get(), clock::monotonic_ns())).unwrap();
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            poll(&mut [PollFd::new(&waited_for, PollFlags::IN)], Some(&limit)).unwrap()
        });
        let (tid, begun_ns) = receiver.recv().unwrap();
        let end_of_patience = Instant::now() + Duration::from_secs(30);
        while SeenCall::look(tid).is_none() {
            assert!(Instant::now() < end_of_patience, "it does not wait");
            std::thread::sleep(Duration::from_millis(1));
        }
        let waits_ns = clock::monotonic_ns();
        std::thread::sleep(Duration::from_millis(200));
        let seen = SeenCall::look(tid).expect("it waits");
        let entered_ns = seen.entered_at_ns().expect("the clock is told");
        rustix::io::write(&end, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
        assert!(entered_ns + ROUNDING_NS >= begun_ns, "begun at {begun_ns}, entered at {entered_ns}");
        assert!(entered_ns <= waits_ns + LATE_NS_MAX, "entered at {entered_ns}, seen at {waits_ns}");
    }
}
