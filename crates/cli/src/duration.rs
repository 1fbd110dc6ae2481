//! Durations on the command line: `500ms`, `30s`, `10m`.

use std::time::Duration;

/// Formats a duration in whole seconds: `3h 12m 5s`.
pub(crate) fn format_whole_seconds(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// Formats milliseconds as a duration: `2s`, `1m 500ms`.
pub(crate) fn format_ms(milliseconds: u64) -> String {
    humantime::format_duration(Duration::from_millis(milliseconds)).to_string()
}

/// Parses a duration: a number with a unit, or several of these, or `0`.
///
/// # Errors
/// The text is not a duration. The message says what to write instead; clap adds the option and the value.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| {
        let number = text.trim();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            return format!("{number} has no unit: write {number}ms, {number}s or {number}m");
        }
        format!("{error}; write a number and a unit, such as 500ms, 30s or 10m")
    })
}

/// Parses a duration into milliseconds. It must not be zero.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    match u64::try_from(parse_duration(text)?.as_millis()) {
        Ok(0) => Err("it must be 1ms or longer".to_owned()),
        Ok(milliseconds) => Ok(milliseconds),
        Err(_) => Err("that is too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{format_ms, parse_duration, parse_ms};
    use std::time::Duration;

    #[test]
    fn durations_have_units() {
        assert_eq!((parse_ms("500ms"), parse_ms("30s"), parse_ms("1m 5s")), (Ok(500), Ok(30_000), Ok(65_000)));
        assert_eq!([500, 2_000, 65_000].map(format_ms), ["500ms", "2s", "1m 5s"]);
        assert_eq!(parse_duration("365d"), Ok(Duration::from_secs(365 * 86_400)));
        assert!(parse_ms("0").is_err() && parse_ms("1us").is_err());
    }

    #[test]
    fn an_error_gives_an_example_of_correct_input() {
        assert_eq!(parse_ms("5"), Err("5 has no unit: write 5ms, 5s or 5m".to_owned()));
        for wrong in ["", "soon", "5 parsecs", "-1s"] {
            let said = parse_ms(wrong).unwrap_err();
            assert!(said.contains("such as 500ms, 30s or 10m"), "{wrong:?}: {said}");
        }
    }
}
