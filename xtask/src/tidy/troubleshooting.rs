//! Checks the guide to errors. Each heading of `docs/guide/troubleshooting.md` is the text of an existing error, with `…`
//! for variable parts. Each error of the modules that users see most has a heading.

use anyhow::Result;

use super::{Finding, Tree};
use crate::workspace::TextFile;

const DOCUMENT: &str = "docs/guide/troubleshooting.md";

/// Modules whose errors are shown to users unchanged.
const COVERED: [&str; 8] = [
    "crates/cluster/src/local/error.rs",
    "crates/container/src/cgroup/error.rs",
    "crates/container/src/error.rs",
    "crates/fork/src/capture/error.rs",
    "crates/fork/src/restore/mod.rs",
    "crates/node/src/daemon.rs",
    "crates/node/src/pager_link.rs",
    "crates/api/src/run_dir.rs",
];

/// Length of the shortest piece of a text that is compared, in characters. Shorter pieces occur anywhere.
const PIECE_CHARS_MIN: usize = 5;

/// Separates the description of an error from its advice.
const ADVICE: char = ';';

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let Some(document) = tree.files.iter().find(|file| file.path == DOCUMENT) else {
        return Ok(vec![Finding::whole(DOCUMENT, "it is missing")]);
    };
    let sources: Vec<(&str, String)> = tree
        .files
        .iter()
        .filter(|file| has_errors(&file.path))
        .map(|file| (file.path.as_str(), words_of(file)))
        .collect();
    let headings = document.text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, heading(line)?)));
    let headings: Vec<(usize, &str)> = headings.collect();
    let mut findings = Vec::new();
    for (line, text) in &headings {
        if !sources.iter().any(|(_, words)| says(words, text)) {
            findings.push(Finding::at(DOCUMENT, *line, format!("no source contains `{text}`")));
        }
    }
    for (path, words) in sources.iter().filter(|(path, _)| COVERED.contains(path)) {
        for error in errors_in(words).filter(|error| !headings.iter().any(|(_, text)| is_about(text, error))) {
            findings.push(Finding::whole(path, format!("{DOCUMENT} has no heading for `{error}`")));
        }
    }
    Ok(findings)
}

fn has_errors(path: &str) -> bool {
    let is_rust = path.ends_with(".rs") && path.starts_with("crates/") && path.contains("/src/");
    let is_library = path.starts_with("python/farfork/") || path.starts_with("crates/program/c/");
    is_rust || is_library
}

/// Returns the source without its tests. String literals that continue on the next line are joined.
fn words_of(file: &TextFile) -> String {
    let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut words = String::with_capacity(code.len());
    for line in code.lines() {
        let trimmed = line.trim_start();
        let begins = trimmed.strip_prefix("f\"").or_else(|| trimmed.strip_prefix('"'));
        match (words.strip_suffix('\\').map(str::len), words.strip_suffix('"').map(str::len), begins) {
            (Some(end), _, _) => {
                words.truncate(end);
                words.push_str(trimmed);
            }
            // In Python and C, adjacent literals are one literal.
            (None, Some(end), Some(begins)) => {
                words.truncate(end);
                words.push_str(begins);
            }
            _ => {
                words.push('\n');
                words.push_str(line);
            }
        }
    }
    words
}

fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("### `")?.strip_suffix('`')
}

/// The constant pieces of a text.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split('…').map(str::trim).filter(|piece| piece.chars().count() >= PIECE_CHARS_MIN)
}

fn says(words: &str, text: &str) -> bool {
    pieces(text).next().is_some() && pieces(text).all(|piece| words.contains(piece))
}

/// The texts of the `#[error("…")]` attributes in a source.
fn errors_in(words: &str) -> impl Iterator<Item = &str> {
    let after = words.split("#[error(").skip(1).map(str::trim_start);
    after.filter_map(|rest| rest.strip_prefix('"')?.split('"').next()).filter(|text| literal(text).is_some())
}

/// The longest constant piece of an error's text, before its advice.
fn literal(text: &str) -> Option<&str> {
    let words = text.split(ADVICE).next().unwrap_or_default();
    let pieces = words.split('{').map(|piece| piece.rsplit('}').next().unwrap_or_default().trim());
    pieces.filter(|piece| piece.chars().count() >= PIECE_CHARS_MIN).max_by_key(|piece| piece.len())
}

/// Whether a heading contains the longest constant piece of an error's text, or the text contains all pieces of a long
/// enough heading.
fn is_about(text: &str, error: &str) -> bool {
    let chars_count: usize = pieces(text).map(|piece| piece.chars().count()).sum();
    let says_enough = chars_count >= 3 * PIECE_CHARS_MIN && pieces(text).all(|piece| error.contains(piece));
    says_enough || literal(error).is_some_and(|piece| text.contains(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_matches_a_source_with_all_its_parts() {
        let words = "#[error(\"cannot carry {what} of {pid}; close it first\")]";
        assert!(says(words, "cannot carry … of …; close it first"));
        assert!(!says(words, "cannot carry …; open it first"));
        assert!(!says(words, "…: …"), "a heading has words");
    }

    #[test]
    fn an_error_is_found_in_the_heading_that_has_its_words() {
        let errors: Vec<&str> = errors_in("#[error(\"{path} is no home: {0}\")] #[error(\n  \"{0}\")]").collect();
        assert_eq!(errors, ["{path} is no home: {0}"]);
        assert!(is_about("… is no home: …", errors[0]));
        assert!(!is_about("something else", errors[0]));
    }

    #[test]
    fn literals_in_several_lines_are_one() {
        let file = TextFile { path: String::new(), text: "\"one \\\n   two\"\nf(\n  f\"a {b} \"\n  \"c\")".to_owned() };
        let words = words_of(&file);
        assert!(words.contains("one two") && words.contains("a {b} c"), "{words}");
    }
}
