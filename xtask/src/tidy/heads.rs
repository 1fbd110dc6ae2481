//! Every Rust file begins with `//!`: what it is, who calls it, what it leaves to others. The head has at most six lines, so
//! that a reader sees at a glance whether this is the right file.

use anyhow::Result;

use super::{Finding, Tree};

const HEAD_LINES_MAX: usize = 6;

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    Ok(tree.rust.iter().filter_map(|file| judge(&file.path, &file.text)).collect())
}

fn judge(path: &str, text: &str) -> Option<Finding> {
    match text.lines().take_while(|line| line.starts_with("//!")).count() {
        0 => Some(Finding::at(path, 1, "begin with `//!`: what is this file?")),
        lines if lines > HEAD_LINES_MAX => {
            let complaint = format!("the head has {lines} lines, {HEAD_LINES_MAX} at most: move theory to the items");
            Some(Finding::at(path, 1, complaint))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_one_to_six_lines() {
        assert!(judge("x.rs", "use a;\n").is_some());
        assert!(judge("x.rs", &"//! line\n".repeat(6)).is_none());
        assert!(judge("x.rs", &"//! line\n".repeat(7)).is_some());
    }
}
