//! A program whose children change their memory at random and verify every page. `memory_walk.cpp` is the program.

use crate::embedded_program::EmbeddedProgram;

/// The program.
pub(crate) const MEMORY_WALK: EmbeddedProgram =
    EmbeddedProgram { name: "memory_walk", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/memory_walk")) };

/// What a child has said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WalkReport<'a> {
    /// Nothing yet.
    Nothing,
    /// So many looks at pages found each of them right.
    Correct(u64),
    /// A page was not as it must be, or something else.
    Wrong(&'a str),
}

/// The payload of a child that wanders for so long, on ways that depend on a number, and stays then or does not.
pub(crate) fn payload(seed: u64, ms: u64, stays: bool) -> String {
    format!("{seed} {ms} {}", u8::from(stays))
}

/// What a child's output means.
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
    fn what_is_not_sound_is_wrong() {
        assert_eq!(parse_output("sound 812\n"), WalkReport::Correct(812));
        assert_eq!(parse_output("\n"), WalkReport::Nothing);
        for said in ["wrong page 3 of 4", "sound", "sound x", "sound 1\nsound 2"] {
            assert_eq!(parse_output(said), WalkReport::Wrong(said));
        }
    }
}
