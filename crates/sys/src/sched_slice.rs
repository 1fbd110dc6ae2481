//! Time slices on a CPU, for threads that other threads wait for and that never run long.

use std::io;
use std::time::Duration;

use crate::sched_attr::{CALLING_THREAD, sched_getattr, sched_setattr};

/// The shortest time slice that the kernel grants.
pub const SLICE_MIN: Duration = Duration::from_micros(100);

/// Sets the length of the calling thread's time slices. By default they take milliseconds.
///
/// The thread's share of CPU time is unchanged. With short slices, the thread runs at once after a wakeup, before threads
/// with longer slices. When the thread yields the CPU, it loses at most one slice. Threads and processes that it starts
/// inherit the setting. Kernels before 6.12 accept the call and ignore it.
///
/// # Errors
/// As sched_setattr(2); `Unsupported` for a thread without time slices, such as a real-time thread.
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
    fn a_short_slice_changes_no_other_attribute() {
        let check = || {
            let before = sched_getattr(CALLING_THREAD).unwrap();
            if set_slice(SLICE_MIN).is_err() {
                return assert_ne!(before.policy, 0, "only a real-time thread has no time slices");
            }
            let after = sched_getattr(CALLING_THREAD).unwrap();
            assert_eq!((after.policy, after.nice), (before.policy, before.nice));
            let is_known = before.runtime_ns > 0;
            let runtime = |length: Duration| if is_known { length.as_nanos() as u64 } else { 0 };
            assert_eq!(after.runtime_ns, runtime(SLICE_MIN));
            set_slice(3 * SLICE_MIN).unwrap();
            assert_eq!(sched_getattr(CALLING_THREAD).unwrap().runtime_ns, runtime(3 * SLICE_MIN));
        };
        // On a new thread, so that the thread of the test runner is unchanged.
        std::thread::spawn(check).join().unwrap();
    }
}
