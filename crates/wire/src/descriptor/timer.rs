//! Timers of a process. All times are relative (time left, or interval), so a child's timers continue from there.

use serde::{Deserialize, Serialize};

/// Nanoseconds until a timer goes off, and between its expirations; 0 for a timer that is disarmed, or goes off once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerSpec {
    /// Until it goes off.
    pub remaining_ns: u64,
    /// Between two expirations.
    pub interval_ns: u64,
}

/// An armed interval timer (setitimer(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// ITIMER_REAL 0, ITIMER_VIRTUAL 1, ITIMER_PROF 2.
    pub which: u32,
    /// To the microsecond.
    pub time: TimerSpec,
}

/// A POSIX timer (timer_create(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// The kernel's number for it.
    pub id: u32,
    /// CLOCK_*; the number of one that counts the processor time of a thread is negative, and has the thread's id in it.
    pub clock: u32,
    /// What its signal tells.
    pub value: u64,
    /// 1 to 64; 0 where nobody is told.
    pub signal: u32,
    /// The thread that gets the signal; 0 for the process.
    pub tid: u32,
    /// Disarmed where all is 0.
    pub time: TimerSpec,
}
