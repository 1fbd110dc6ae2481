//! Wall-clock time for records and listings, and boot time for deadlines. Boot time cannot be set, and continues when the
//! daemon restarts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The current time, in milliseconds since 1970.
pub(crate) fn unix_ms_now() -> u64 {
    unix_ms(SystemTime::now())
}

/// A time, in milliseconds since 1970; 0 for earlier times.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Time since boot, in milliseconds, including time in which the machine was suspended.
pub(crate) fn boot_ms_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let milliseconds = now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000);
    u64::try_from(milliseconds).unwrap_or(0)
}

/// Duration until a deadline; 0 if it has passed. Both times are of the same clock.
pub(crate) fn duration_until(deadline_ms: u64, now_ms: u64) -> Duration {
    Duration::from_millis(deadline_ms.saturating_sub(now_ms))
}

/// Adds a duration to a time in milliseconds. A sum beyond the maximum means never.
pub(crate) fn add_duration(time_ms: u64, wait: Duration) -> u64 {
    time_ms.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_wait_does_not_overflow() {
        assert_eq!(add_duration(1_000, Duration::from_millis(5)), 1_005);
        for wait in [Duration::from_millis(u64::MAX), Duration::MAX] {
            assert_eq!(add_duration(unix_ms_now(), wait), u64::MAX);
            assert_eq!(add_duration(boot_ms_now(), wait), u64::MAX);
            assert!(duration_until(add_duration(unix_ms_now(), wait), unix_ms_now()) > Duration::from_secs(1 << 40));
        }
    }
}
