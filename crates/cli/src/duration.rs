//! Durations on the command line: `500ms`, `30s`, `10m`.

use std::time::Duration;

/// A duration in whole seconds, as people read it: `3h 12m 5s`.
pub(crate) fn format_whole_seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// Milliseconds of a duration as a user writes it; longer than zero.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let duration: Duration =
        humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 500ms, 30s or 10m"))?;
    match u64::try_from(duration.as_millis()) {
        Ok(0) => Err("it must be 1ms or longer".to_owned()),
        Ok(milliseconds) => Ok(milliseconds),
        Err(_) => Err("that is too long".to_owned()),
    }
}
