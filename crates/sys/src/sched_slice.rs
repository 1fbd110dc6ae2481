//! Time slices on a CPU, for threads that other threads wait for and that never run for long.

use std::io;
use std::time::Duration;

use crate::sched_attr::{CALLING_THREAD, sched_getattr, sched_setattr};

/// The shortest turn that the kernel grants.
pub const SLICE_MIN: Duration = Duration::from_micros(100);

/// Has the kernel give the calling thread its CPU often and for so short a time, rather than seldom and for
/// milliseconds. Its share of the time stays as it is; but once it is woken it runs at once, whoever has longer turns, and
/// when it gives its CPU away it loses no more than one of these turns. What it starts has the same. Kernels before 6.12
/// take it and do nothing.
///
/// # Errors
/// As sched_setattr(2), for a thread of a kind that has no turns: a real-time one.
pub fn set_slice(length: Duration) -> io::Result<()> {
    let mut attributes = sched_getattr(CALLING_THREAD)?;
    if attributes.policy != libc::SCHED_OTHER.cast_unsigned() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    attributes.runtime_ns = length.as_nanos() as u64;
    sched_setattr(CALLING_THREAD, &attributes)
}

#[cfg(test)]
mod tests {
    use super::{CALLING_THREAD, Duration, SLICE_MIN, sched_getattr, set_slice};

    #[test]
    fn turns_become_short_and_nothing_else_changes() {
        let check = || {
            let before = sched_getattr(CALLING_THREAD).unwrap();
            if set_slice(SLICE_MIN).is_err() {
                return assert_ne!(before.policy, 0, "only a real-time thread has no turns");
            }
            let after = sched_getattr(CALLING_THREAD).unwrap();
            assert_eq!((after.policy, after.nice), (before.policy, before.nice));
            let is_known = before.runtime_ns > 0;
            let runtime = |length: Duration| if is_known { length.as_nanos() as u64 } else { 0 };
            assert_eq!(after.runtime_ns, runtime(SLICE_MIN));
            set_slice(3 * SLICE_MIN).unwrap();
            assert_eq!(sched_getattr(CALLING_THREAD).unwrap().runtime_ns, runtime(3 * SLICE_MIN));
        };
        // On a thread of its own: the test runner's keep theirs.
        std::thread::spawn(check).join().unwrap();
    }
}
