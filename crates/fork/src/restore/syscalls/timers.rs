//! Interval timers and POSIX timers: they continue with the time that remained at capture.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{PosixTimer, TimerSpec};

use super::super::RestoreError;
use super::super::plan_layout::STEP_TIMER;
use super::{SyscallBuilder, abi, value};

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1000;

/// Maximum timer id that is reached by creating timers with all lower ids, which works on any kernel. Higher ids are
/// requested from the kernel, which requires Linux 6.15.
const SEQUENTIAL_ID_MAX: u32 = 1000;

/// Creates all timers. If one expires before the child runs, its signal is blocked and stays pending.
pub(super) fn create_timers(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    create_posix_timers(&descriptor.process.posix_timers, syscall_builder)?;
    for timer in &descriptor.process.interval_timers {
        syscall_builder.set_step(STEP_TIMER, timer.which);
        let TimerSpec { remaining_ns: left_ns, interval_ns } = timer.time;
        let [seconds, us, interval_seconds, interval_us] = split_times(left_ns, interval_ns, NS_PER_US);
        let time = syscall_builder.words_argument(&[interval_seconds, interval_us, seconds, us])?;
        syscall_builder.call_expecting(0, abi::SETITIMER, &[value(timer.which), time, value(0_u32)]);
    }
    Ok(())
}

fn create_posix_timers(timers: &[PosixTimer], syscall_builder: &mut SyscallBuilder<'_>) -> Result<(), RestoreError> {
    const PR_TIMER_CREATE_RESTORE_IDS: u32 = 77;
    let by_asking = timers.last().is_some_and(|timer| timer.id > SEQUENTIAL_ID_MAX);
    if by_asking {
        syscall_builder.set_step(STEP_TIMER, timers.last().map_or(0, |timer| timer.id));
        syscall_builder.call_expecting(0, abi::PRCTL, &[value(PR_TIMER_CREATE_RESTORE_IDS), value(1_u32)]);
    }
    let mut next = 0;
    for timer in timers {
        syscall_builder.set_step(STEP_TIMER, timer.id);
        while !by_asking && next < timer.id {
            let id = syscall_builder.words_argument(&[0])?;
            let event = syscall_builder.words_argument(&encode_sigevent(None))?;
            syscall_builder.call_expecting(0, abi::TIMER_CREATE, &[value(0_u32), event, id]);
            syscall_builder.call_expecting(0, abi::TIMER_DELETE, &[value(next)]);
            next += 1;
        }
        let (id, sigevent) = (
            syscall_builder.words_argument(&[timer.id.into()])?,
            syscall_builder.words_argument(&encode_sigevent(Some(timer)))?,
        );
        syscall_builder.call_expecting(0, abi::TIMER_CREATE, &[value(timer.clock), sigevent, id]);
        // timer_settime(2) succeeds only if the timer has this id. If the kernel has assigned another id, the child is
        // not started.
        if timer.time == TimerSpec::default() {
            syscall_builder.call_expecting(0, abi::TIMER_GETOVERRUN, &[value(timer.id)]);
        } else {
            let time = syscall_builder.words_argument(&encode_itimerspec(timer.time))?;
            syscall_builder.call_expecting(0, abi::TIMER_SETTIME, &[value(timer.id), value(0_u32), time, value(0_u32)]);
        }
        next = timer.id + 1;
    }
    if by_asking {
        syscall_builder.call_expecting(0, abi::PRCTL, &[value(PR_TIMER_CREATE_RESTORE_IDS), value(0_u32)]);
    }
    Ok(())
}

/// Encodes `struct sigevent`: value; signal and notification (32 bits each); thread. The structure has 64 bytes.
fn encode_sigevent(timer: Option<&PosixTimer>) -> [u64; 8] {
    const SIGEV_SIGNAL: u64 = 0;
    const SIGEV_NONE: u64 = 1;
    const SIGEV_THREAD_ID: u64 = 4;
    let (value, signal, way, tid) = match timer {
        Some(timer) if timer.signal != 0 => {
            let way = if timer.tid != 0 { SIGEV_THREAD_ID } else { SIGEV_SIGNAL };
            (timer.value, timer.signal, way, timer.tid)
        }
        Some(timer) => (timer.value, 0, SIGEV_NONE, 0),
        None => (0, 0, SIGEV_NONE, 0),
    };
    [value, u64::from(signal) | way << 32, tid.into(), 0, 0, 0, 0, 0]
}

/// Encodes `struct itimerspec`: interval, then remaining time.
pub(super) fn encode_itimerspec(time: TimerSpec) -> [u64; 4] {
    let [seconds, nanoseconds, interval_seconds, interval_ns] = split_times(time.remaining_ns, time.interval_ns, 1);
    [interval_seconds, interval_ns, seconds, nanoseconds]
}

/// Splits both times into seconds and a rest in units of `unit_ns`. Rounds the time left up, so that the timer does not
/// expire early, and to one unit at least, because zero would disarm the timer.
fn split_times(left_ns: u64, interval_ns: u64, unit_ns: u64) -> [u64; 4] {
    let left_ns = left_ns.max(1).next_multiple_of(unit_ns);
    let parts = |ns: u64| [ns / NS_PER_SECOND, ns % NS_PER_SECOND / unit_ns];
    let ([seconds, rest], [interval_seconds, interval_rest]) = (parts(left_ns), parts(interval_ns));
    [seconds, rest, interval_seconds, interval_rest]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_times_never_disarm_a_timer() {
        assert_eq!(
            encode_itimerspec(TimerSpec { remaining_ns: 3_000_000_004, interval_ns: 5_000_000_006 }),
            [5, 6, 3, 4]
        );
        assert_eq!(encode_itimerspec(TimerSpec { remaining_ns: 0, interval_ns: 7 }), [0, 7, 0, 1]);
        assert_eq!(split_times(2_000_003_500, 400, NS_PER_US), [2, 4, 0, 0]);
        assert_eq!(split_times(1_999_999_001, 0, NS_PER_US), [2, 0, 0, 0]);
        assert_eq!(split_times(1, 0, NS_PER_US), [0, 1, 0, 0]);
    }
}
