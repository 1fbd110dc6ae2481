//! Wall-clock time for records and listings, and boot time for deadlines and ages. Boot time cannot be set, and continues when
//! the daemon restarts.

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

/// A past time, by both clocks of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp {
    /// Milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// Milliseconds since boot; `None` if it is not known, or of an earlier boot.
    pub(crate) boot_ms: Option<u64>,
}

impl Timestamp {
    /// The current time.
    pub(crate) fn now() -> Self {
        Self { unix_ms: unix_ms_now(), boot_ms: Some(boot_ms_now()) }
    }

    /// Time from then to `now`, in milliseconds; 0 if it is later. Measured by boot time if possible: the wall clock may have
    /// been set meanwhile.
    pub(crate) fn age_ms_at(self, now: Self) -> u64 {
        let since_boot = now.boot_ms.zip(self.boot_ms).and_then(|(now, then)| now.checked_sub(then));
        since_boot.unwrap_or_else(|| now.unix_ms.saturating_sub(self.unix_ms))
    }
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
    fn an_age_does_not_depend_on_the_wall_clock_if_boot_time_is_known() {
        let then = Timestamp { unix_ms: 5_000_000, boot_ms: Some(1_000) };
        let hour_ms = 3_600_000;
        for unix_ms in [then.unix_ms - hour_ms, then.unix_ms, then.unix_ms + hour_ms] {
            assert_eq!(then.age_ms_at(Timestamp { unix_ms, boot_ms: Some(31_000) }), 30_000);
            let without_boot = Timestamp { boot_ms: None, ..then };
            let passed = unix_ms.saturating_sub(then.unix_ms);
            assert_eq!(without_boot.age_ms_at(Timestamp { unix_ms, boot_ms: Some(31_000) }), passed);
            // Of an earlier boot.
            assert_eq!(then.age_ms_at(Timestamp { unix_ms, boot_ms: Some(10) }), passed);
        }
    }

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
