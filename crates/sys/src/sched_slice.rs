//! Turns on a CPU, for threads that others wait for and that never work for long.

use std::io;
use std::mem;
use std::time::Duration;

/// The shortest turn that the kernel grants.
pub const SLICE_MIN: Duration = Duration::from_micros(100);

/// sched_setattr(2)'s name for the calling thread.
const CALLER: libc::pid_t = 0;

/// Has the kernel give the calling thread its CPU often and for so short a time, rather than seldom and for
/// milliseconds. Its share of the time stays as it is; but once it is woken it runs at once, whoever has longer turns, and
/// when it gives its CPU away it loses no more than one of these turns. What it starts has the same. Kernels before 6.12
/// take it and do nothing.
///
/// # Errors
/// As sched_setattr(2), for a thread of a kind that has no turns: a real-time one.
pub fn set_slice(length: Duration) -> io::Result<()> {
    let mut attributes = read_attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    attributes.sched_runtime = length.as_nanos() as u64;
    // SAFETY: the kernel reads `attributes`, which says how long it is.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, CALLER, &raw const attributes, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn read_attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: it has numbers only, of which all zeroes are valid.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let bytes = mem::size_of_val(&attributes);
    // SAFETY: the kernel writes at most `bytes` bytes to `attributes`.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_getattr, CALLER, &raw mut attributes, bytes, 0) };
    if outcome == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::{Duration, SLICE_MIN, read_attributes, set_slice};

    #[test]
    fn turns_become_short_and_nothing_else_changes() {
        let check = || {
            let before = read_attributes().unwrap();
            if set_slice(SLICE_MIN).is_err() {
                return assert_ne!(before.sched_policy, 0, "only a real-time thread has no turns");
            }
            let after = read_attributes().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            let is_known = before.sched_runtime > 0;
            let runtime = |length: Duration| if is_known { length.as_nanos() as u64 } else { 0 };
            assert_eq!(after.sched_runtime, runtime(SLICE_MIN));
            set_slice(3 * SLICE_MIN).unwrap();
            assert_eq!(read_attributes().unwrap().sched_runtime, runtime(3 * SLICE_MIN));
        };
        // On a thread of its own: the test runner's keep theirs.
        std::thread::spawn(check).join().unwrap();
    }
}
