//! Timers of a process. All times are relative (time left, or interval), so a child's timers continue from them.

use serde::{Deserialize, Serialize};

/// Remaining time and interval of a timer, in nanoseconds, as in `struct itimerspec`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerSpec {
    /// Time until the next expiration; 0 if disarmed.
    pub remaining_ns: u64,
    /// Time between two expirations; 0 for a timer that expires once.
    pub interval_ns: u64,
}

/// An armed interval timer (setitimer(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// 0 for ITIMER_REAL, 1 for ITIMER_VIRTUAL, 2 for ITIMER_PROF.
    pub which: u32,
    /// Remaining time and interval. The kernel stores whole microseconds.
    pub time: TimerSpec,
}

/// A POSIX timer (timer_create(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// The timer's id in the kernel.
    pub id: u32,
    /// CLOCK_*. A clock of a thread's CPU time has a negative number, which contains the thread's id.
    pub clock: u32,
    /// The value that the signal carries.
    pub value: u64,
    /// Signal, 1 to 64; 0 for no notification.
    pub signal: u32,
    /// The thread that gets the signal; 0 for the process.
    pub tid: u32,
    /// Remaining time and interval; all 0 if disarmed.
    pub time: TimerSpec,
}
