//! Sentences of comments and documents, for the checks that count words. Code, frames of tables and diagrams are omitted.

use crate::workspace::TextFile;

use super::source::RustFile;

/// Characters that occur only in diagrams.
const DIAGRAM: [char; 14] = ['│', '─', '┌', '┐', '└', '┘', '├', '┤', '▶', '◄', '▼', '▲', '┊', '┄'];

/// Paragraphs of the comments of a Rust file.
pub(super) fn of_comments(file: &RustFile) -> Vec<String> {
    let lines = file.text.lines().map(|line| comment_of(line.trim_start()).unwrap_or_default());
    paragraphs(lines)
}

/// Paragraphs of a Markdown document. Each table cell is a paragraph.
pub(super) fn of_document(file: &TextFile) -> Vec<String> {
    paragraphs(file.text.lines())
}

/// Sentences of a paragraph. A full stop inside a word (`a.rs`) does not end a sentence.
pub(super) fn sentences(paragraph: &str) -> Vec<&str> {
    let is_end = |(at, c): &(usize, char)| matches!(c, '.' | '?' | '!') && paragraph[at + 1..].starts_with(' ');
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in paragraph.char_indices().filter(is_end) {
        found.push(&paragraph[start..=at]);
        start = at + 1;
    }
    found.push(&paragraph[start..]);
    found
}

fn comment_of(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim_start())
}

fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut is_code = false;
    for line in lines.map(str::trim) {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.is_empty() || line.starts_with("```") || line.contains(DIAGRAM) {
            found.push(String::new());
        } else if line.starts_with('|') {
            found.extend(line.split('|').map(str::to_owned));
        } else {
            if begins_item(line) {
                found.push(String::new());
            }
            let paragraph = found.last_mut().expect("the list is never empty");
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    found.retain(|paragraph| !paragraph.trim().is_empty());
    found
}

/// Whether a line begins a list item or a heading.
fn begins_item(line: &str) -> bool {
    let is_numbered = line.split_once(". ").is_some_and(|(n, _)| n.chars().all(|c| c.is_ascii_digit()));
    is_numbered || line.starts_with(['#', '-', '*'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_become_paragraphs() {
        let text = "//! One\n//! thought.\n//!\n//! ```text\n//! code\n//! ```\n/// - item\nfn f() {}\n// last";
        let file = RustFile::of(&TextFile { path: "x.rs".into(), text: text.into() });
        assert_eq!(of_comments(&file), ["One thought. ", "- item ", "last "]);
    }

    #[test]
    fn tables_and_diagrams_are_not_checked() {
        let file = TextFile { path: "x.md".into(), text: "| a | b |\na ─▶ b\n1. one\n2. two".into() };
        assert_eq!(of_document(&file), [" a ", " b ", "1. one ", "2. two "]);
    }

    #[test]
    fn a_sentence_ends_at_a_space() {
        assert_eq!(sentences("It is `a.rs`. Then? Yes"), ["It is `a.rs`.", " Then?", " Yes"]);
    }
}
