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
