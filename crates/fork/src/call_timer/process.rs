//! The timer's own life: waits for calls to end, and for their ends.

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use farfork_sys::{clock, priority};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::end::{self, Attempt};
use super::watch::{WATCH_BYTES, Watch};

/// Most calls that are watched at a time: threads of a machine. Who comes then has their whole limit.
const WATCHES_MAX: usize = 1 << 16;

/// How long the timer stays when its daemon has ended, for calls that are still to be ended.
const STAY_NS_MAX: u64 = 600_000_000_000;

/// How often a call is tried again whose thread somebody else traces, or that runs just now.
const RETRY_NS: u64 = 500_000;

/// How long a call is tried again: a capture takes less.
const RETRIES_NS_MAX: u64 = 30_000_000_000;

/// Serves until `input` has come to its end and no call is left.
pub fn run(input: &OwnedFd) {
    // A call whose time is over waits for us, and we for a processor. Without the right to, so be it.
    let _ = priority::raise(rustix::thread::gettid().as_raw_nonzero().get());
    let (outcomes, finished) = mpsc::channel();
    let mut timer = Timer { pending: Vec::new(), outcomes, finished, at_work: 0 };
    let mut input_ended_ns = None;
    loop {
        timer.start_due();
        timer.collect();
        let now_ns = clock::monotonic_ns();
        let is_idle = timer.pending.is_empty() && timer.at_work == 0;
        if input_ended_ns.is_some_and(|ended_ns: u64| is_idle || now_ns > ended_ns + STAY_NS_MAX) {
            return;
        }
        let limit = timer.sleep(now_ns);
        if input_ended_ns.is_some() {
            thread::sleep(limit.unwrap_or(Duration::from_millis(1)));
        } else if is_readable(input, limit) && !timer.receive(input) {
            input_ended_ns = Some(clock::monotonic_ns());
        }
    }
}

/// Waits for input, at most so long.
fn is_readable(input: &OwnedFd, limit: Option<Duration>) -> bool {
    let limit =
        limit.map(|limit| Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() });
    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    matches!(poll(&mut fds, limit.as_ref()), Ok(1..))
}

/// A call, and when it is looked at next.
#[derive(Debug, Clone, Copy)]
struct Pending {
    watch: Watch,
    due_ns: u64,
    /// Whether we have made the mark ourselves, in a stop that was in vain.
    is_our_own: bool,
}

struct Timer {
    pending: Vec<Pending>,
    outcomes: Sender<(Pending, Attempt)>,
    finished: Receiver<(Pending, Attempt)>,
    /// Calls that threads are ending.
    at_work: usize,
}

impl Timer {
    /// Until the next is due.
    fn sleep(&self, now_ns: u64) -> Option<Duration> {
        let next = self.pending.iter().map(|one| one.due_ns).min();
        let at_work = (self.at_work > 0).then(|| now_ns + RETRY_NS);
        let next = [next, at_work].into_iter().flatten().min();
        next.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)))
    }

    /// Takes what there is to read; false at the end of the input.
    fn receive(&mut self, input: &OwnedFd) -> bool {
        let mut bytes = [0; WATCH_BYTES];
        match rustix::io::read(input, &mut bytes) {
            Ok(0) => false,
            Ok(WATCH_BYTES) => {
                let watch = Watch::from_bytes(&bytes);
                self.add(Pending { watch, due_ns: watch.end_ns, is_our_own: false });
                true
            }
            // The kernel splits no write of this size.
            Ok(read) => (&bytes[read..]).read(&mut []).is_ok(),
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    /// A thread has one call at a time: the last that is told of.
    fn add(&mut self, pending: Pending) {
        self.pending.retain(|one| one.watch.tid != pending.watch.tid);
        if self.pending.len() < WATCHES_MAX {
            self.pending.push(pending);
        }
    }

    /// Each call is ended in a thread of its own: whatever becomes of the stop, the kernel lets go when that thread ends.
    fn start_due(&mut self) {
        let now_ns = clock::monotonic_ns();
        let is_due = |one: &Pending| one.due_ns <= now_ns;
        for due in self.pending.extract_if(.., |one| is_due(one)) {
            let outcomes = self.outcomes.clone();
            let attempt = move || {
                // The loop is there for as long as this.
                let _ = outcomes.send((due, end::attempt(&due.watch, due.is_our_own)));
            };
            let thread = thread::Builder::new().name(super::THREAD_NAME.to_owned()).spawn(attempt);
            self.at_work += usize::from(thread.is_ok());
        }
    }

    fn collect(&mut self) {
        while let Ok((pending, attempt)) = self.finished.try_recv() {
            self.at_work -= 1;
            let now_ns = clock::monotonic_ns();
            match attempt {
                Attempt::Again if now_ns < pending.watch.end_ns + RETRIES_NS_MAX => {
                    // Another may have been told of meanwhile.
                    if !self.pending.iter().any(|one| one.watch.tid == pending.watch.tid) {
                        self.pending.push(Pending { due_ns: now_ns + RETRY_NS, ..pending });
                    }
                }
                Attempt::Restarted(watch) => self.add(Pending { watch, due_ns: watch.end_ns, is_our_own: true }),
                Attempt::Again | Attempt::Done => {}
            }
        }
    }
}
