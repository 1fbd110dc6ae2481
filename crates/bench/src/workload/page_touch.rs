//! A program whose children touch single pages and print how long each touch took. `page_touch.cpp` is the program.

use std::time::Duration;

use crate::error::BenchError;
use crate::machine::program::EmbeddedProgram;

/// The program.
pub(crate) const PAGE_TOUCH: EmbeddedProgram =
    EmbeddedProgram { name: "page_touch", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/page_touch")) };

/// The payload of a child that touches this many pages, with a pause before each.
pub(crate) fn payload(touches: usize, gap: Duration) -> String {
    format!("{touches} {}", gap.as_micros())
}

/// Parses a child's output. Returns the time of each touch, in µs.
///
/// # Errors
/// The output has another form, or pages were wrong.
pub(crate) fn parse_touches_us(output: &str) -> Result<Vec<f64>, BenchError> {
    let strange = || BenchError::UnexpectedAnswer {
        program: PAGE_TOUCH.name,
        output: output.trim().to_owned(),
        expected: "touched",
    };
    let numbers = output.trim().strip_prefix("touched ").ok_or_else(strange)?;
    let numbers: Option<Vec<u64>> = numbers.split(' ').map(|number| number.parse().ok()).collect();
    match numbers.ok_or_else(strange)?.split_first() {
        Some((0, ns)) if !ns.is_empty() => Ok(ns.iter().map(|ns| *ns as f64 / 1e3).collect()),
        Some((wrong, _)) => Err(BenchError::WrongMemory { count: *wrong, what: "pages of a child" }),
        None => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_touches_us;

    #[test]
    fn touch_times_are_parsed_and_wrong_pages_are_an_error() {
        assert_eq!(parse_touches_us("touched 0 1500 20000\n").unwrap(), [1.5, 20.0]);
        assert!(parse_touches_us("touched 2 1500 20000\n").unwrap_err().to_string().starts_with("2 pages"));
        for said in ["", "touched", "touched 0", "touched x 1", "ready"] {
            assert!(parse_touches_us(said).is_err(), "{said}");
        }
    }
}
