//! A function does one thing and fits on a screen; a file holds one idea. These are the hard limits; most functions and
//! files should be far shorter. An exception is in the list with its exact length: it may shrink, but not grow.

use anyhow::Result;

use super::{Finding, Tree};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;

/// A function or file that may be longer.
struct Exception {
    path: &'static str,
    /// Name of the function; empty for the whole file.
    function: &'static str,
    lines: usize,
}

/// Each exception needs a comment with its reason.
const RATCHET: [Exception; 0] = [];

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        findings.extend(judge(&file.path, "", 0, file.text.lines().count(), FILE_LINES_MAX));
        for function in file.functions() {
            findings.extend(judge(&file.path, &function.name, function.line, function.lines, FUNCTION_LINES_MAX));
        }
    }
    Ok(findings)
}

fn judge(path: &str, function: &str, line: usize, lines: usize, lines_max: usize) -> Option<Finding> {
    let exception = RATCHET.iter().find(|e| e.path == path && e.function == function);
    let lines_max = exception.map_or(lines_max, |e| e.lines);
    let what = if function.is_empty() { "the file".to_owned() } else { format!("`{function}`") };
    if lines > lines_max {
        return Some(Finding::at(path, line, format!("{what} has {lines} lines, {lines_max} at most: divide it")));
    }
    if exception.is_some() && lines < lines_max {
        return Some(Finding::at(path, line, format!("{what} has shrunk to {lines} lines: lower the ratchet")));
    }
    None
}
