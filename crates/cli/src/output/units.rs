//! Formats numbers with units for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `1234` → `1.23 ms`.
pub(crate) fn format_microseconds(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} µs"),
        1_000..1_000_000 => format!("{:.2} ms", count as f64 / 1e3),
        _ => format!("{:.2} s", count as f64 / 1e6),
    }
}

/// `1` → `1 thread`, `2` → `2 threads`.
pub(crate) fn format_threads(count: u32) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// How long ago a time was, in its largest unit: `3m`.
pub(crate) fn format_age(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(Duration::from_millis(unix_ms)).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Longest command line in a table or sentence, in characters; `--json` has all of it.
const COMMAND_CHARACTERS_MAX: usize = 40;

/// A command line as far as it fits. It is the process's own text: what would move the cursor of whoever reads it is
/// shown as a dot.
pub(crate) fn shorten_command(text: &str) -> String {
    let mut shown: String =
        text.chars().take(COMMAND_CHARACTERS_MAX).map(|c| if c.is_control() { '·' } else { c }).collect();
    if text.chars().count() > COMMAND_CHARACTERS_MAX {
        shown.pop();
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{format_microseconds, format_threads, shorten_command};

    #[test]
    fn a_command_fits_and_cannot_move_the_cursor() {
        assert_eq!(shorten_command("node server.js"), "node server.js");
        let long = shorten_command(&"x".repeat(200));
        assert_eq!((long.chars().count(), long.chars().last()), (40, Some('…')));
        assert_eq!(shorten_command("a\n\u{1b}[2J"), "a··[2J");
    }

    #[test]
    fn one_thread_is_no_plural() {
        assert_eq!([0, 1, 2].map(format_threads), ["0 threads", "1 thread", "2 threads"]);
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(format_microseconds(999), "999 µs");
        assert_eq!(format_microseconds(1_234), "1.23 ms");
        assert_eq!(format_microseconds(2_500_000), "2.50 s");
    }
}
