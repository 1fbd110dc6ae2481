//! A program whose children wander through their memory, change it, and check every page. `wander.cpp` says how.

use crate::program::Image;

/// The program.
pub(crate) const WANDER: Image = Image { name: "wander", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/wander")) };

/// What a child has said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    /// Nothing yet.
    Nothing,
    /// So many looks at pages found each of them right.
    Sound(u64),
    /// A page was not as it must be, or something else.
    Wrong(&'a str),
}

/// The payload of a child that wanders for so long, on ways that depend on a number, and stays then or does not.
pub(crate) fn payload(seed: u64, ms: u64, stays: bool) -> String {
    format!("{seed} {ms} {}", u8::from(stays))
}

/// What a child's output means.
pub(crate) fn understand(output: &str) -> Said<'_> {
    let text = output.trim();
    match text.strip_prefix("sound ").and_then(|looks| looks.parse().ok()) {
        Some(looks) => Said::Sound(looks),
        None if text.is_empty() => Said::Nothing,
        None => Said::Wrong(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, understand};

    #[test]
    fn what_is_not_sound_is_wrong() {
        assert_eq!(understand("sound 812\n"), Said::Sound(812));
        assert_eq!(understand("\n"), Said::Nothing);
        for said in ["wrong page 3 of 4", "sound", "sound x", "sound 1\nsound 2"] {
            assert_eq!(understand(said), Said::Wrong(said));
        }
    }
}
