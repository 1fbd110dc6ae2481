//! A program whose children change their memory at random and verify every page. `memory_walk.cpp` is the program.

use crate::machine::program::EmbeddedProgram;

/// The program.
pub(crate) const MEMORY_WALK: EmbeddedProgram =
    EmbeddedProgram { name: "memory_walk", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/memory_walk")) };

/// The report of a child.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WalkReport<'a> {
    /// Nothing yet.
    Nothing,
    /// All pages were correct in this many verifications.
    Correct(u64),
    /// A page was wrong, or the output has another form.
    Wrong(&'a str),
}

/// The payload of a child that changes and verifies its memory for `ms` milliseconds, by random choices from `seed`. With
/// `stays`, the child then waits for SIGTERM.
pub(crate) fn payload(seed: u64, ms: u64, stays: bool) -> String {
    format!("{seed} {ms} {}", u8::from(stays))
}

/// Parses a child's output.
pub(crate) fn parse_output(output: &str) -> WalkReport<'_> {
    let text = output.trim();
    match text.strip_prefix("sound ").and_then(|looks| looks.parse().ok()) {
        Some(looks) => WalkReport::Correct(looks),
        None if text.is_empty() => WalkReport::Nothing,
        None => WalkReport::Wrong(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{WalkReport, parse_output};

    #[test]
    fn unexpected_output_is_reported_as_wrong() {
        assert_eq!(parse_output("sound 812\n"), WalkReport::Correct(812));
        assert_eq!(parse_output("\n"), WalkReport::Nothing);
        for said in ["wrong page 3 of 4", "sound", "sound x", "sound 1\nsound 2"] {
            assert_eq!(parse_output(said), WalkReport::Wrong(said));
        }
    }
}
