//! Timestamps of certificates and files: microseconds or milliseconds since 1970. The clock is an argument in this
//! crate, except in `credentials` and `member::installation`. The verifiers get the time from TLS.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Microseconds since 1970.
pub(crate) fn unix_us(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    unix_us(at) / 1000
}

/// Converts a time to a calendar date, which certificates contain.
pub(crate) fn to_calendar(at: SystemTime) -> OffsetDateTime {
    OffsetDateTime::from(at)
}
