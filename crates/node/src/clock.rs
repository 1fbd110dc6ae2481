//! Wall time for records and listings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, in milliseconds since 1970.
pub(crate) fn unix_ms_now() -> u64 {
    unix_ms(SystemTime::now())
}

/// A time, in milliseconds since 1970; 0 for times before.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// How long it is until a time in milliseconds since 1970.
pub(crate) fn until(deadline_unix_ms: u64) -> Duration {
    Duration::from_millis(deadline_unix_ms.saturating_sub(unix_ms_now()))
}

/// So long after a time in milliseconds since 1970; what lies beyond all clocks is never.
pub(crate) fn after(unix_ms: u64, wait: Duration) -> u64 {
    unix_ms.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_end_does_not_end_before_it_began() {
        assert_eq!(after(1_000, Duration::from_millis(5)), 1_005);
        for wait in [Duration::from_millis(u64::MAX), Duration::MAX] {
            assert_eq!(after(unix_ms_now(), wait), u64::MAX);
            assert!(until(after(unix_ms_now(), wait)) > Duration::from_secs(1 << 40));
        }
    }
}
