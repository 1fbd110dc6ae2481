//! Rust source with comments and literals blanked, so that checks find code only, at its own line.
//!
//! This is a lexer of the few forms that can hide code (comments, strings, characters), not a parser.

use crate::workspace::TextFile;

/// A Rust file, as written and as code alone.
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) text: String,
    /// As long as `text` in characters, with the same line breaks; everything but code is blank.
    pub(crate) code: String,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// Where `fn` stands, counted from 1.
    pub(crate) line: usize,
    /// From `fn` to the closing brace.
    pub(crate) lines: usize,
}

impl RustFile {
    pub(crate) fn of(file: &TextFile) -> Self {
        Self { path: file.path.clone(), text: file.text.clone(), code: blank_all_but_code(&file.text) }
    }

    /// Lines of code with their numbers, counted from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The functions that have a body, in order, inner ones too.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let code: Vec<char> = self.code.chars().collect();
        let mut functions = Vec::new();
        let mut line = 1;
        for at in 0..code.len() {
            if code[at] == '\n' {
                line += 1;
            }
            if word_at(&code, at) == "fn"
                && let Some(end) = end_of_body(&code, at)
            {
                let name = word_at(&code, skip_blanks(&code, at + 2));
                let lines = code[at..end].iter().filter(|c| **c == '\n').count() + 1;
                functions.push(Function { name, line, lines });
            }
        }
        functions
    }
}

/// The identifier that begins exactly at `at`; empty where none does.
fn word_at(code: &[char], at: usize) -> String {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    if at > 0 && code.get(at - 1).is_some_and(is_word) {
        return String::new();
    }
    code[at.min(code.len())..].iter().take_while(|c| is_word(c)).collect()
}

fn skip_blanks(code: &[char], at: usize) -> usize {
    at + code[at.min(code.len())..].iter().take_while(|c| c.is_whitespace()).count()
}

/// Behind the closing brace of the function at `at`; `None` for a declaration or a function pointer's type.
fn end_of_body(code: &[char], at: usize) -> Option<usize> {
    let mut parentheses = 0_i32;
    let mut braces = 0_i32;
    for (offset, c) in code[at..].iter().enumerate() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' | ',' | '=' if parentheses == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' if braces == 0 => return None,
            '}' => braces -= 1,
            _ => continue,
        }
        if parentheses < 0 {
            return None;
        }
        if *c == '}' && braces == 0 && parentheses == 0 {
            return Some(at + offset + 1);
        }
    }
    None
}

/// Blanks comments, strings and character literals.
fn blank_all_but_code(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let length = hidden_length(&characters, at);
        let shown = if length == 0 { 1 } else { 0 };
        code.extend(&characters[at..at + shown]);
        code.extend(characters[at..at + length].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at += shown + length;
    }
    code
}

/// How many characters from `at` are a comment or a literal; 0 where code stands.
fn hidden_length(text: &[char], at: usize) -> usize {
    let rest = &text[at..];
    let previous_is_word = at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_');
    match rest {
        ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
        ['/', '*', ..] => block_comment_length(rest),
        ['"', ..] => string_length(rest),
        ['r', ..] if !previous_is_word => raw_string_length(rest),
        ['b', 'r', ..] if !previous_is_word => {
            Some(raw_string_length(&rest[1..])).filter(|n| *n > 0).map_or(0, |n| n + 1)
        }
        ['\'', ..] => character_length(rest),
        _ => 0,
    }
}

fn block_comment_length(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at + 1 < rest.len() {
        match (rest[at], rest[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string_length(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `r"…"`, `r#"…"#` and so on; 0 where `r` begins a word.
fn raw_string_length(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let begin = hashes + 2;
    let closes =
        |at: usize| rest[at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (begin..rest.len()).find(|at| closes(*at)).map_or(rest.len(), |at| at + 1 + hashes)
}

/// `'x'` and `'\n'`; 0 for a lifetime.
fn character_length(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => rest.iter().skip(3).position(|c| *c == '\'').map_or(0, |n| n + 4),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> RustFile {
        RustFile::of(&TextFile { path: "x.rs".into(), text: text.into() })
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let hidden =
            file("a /* unsafe { /* { */ */ b // unsafe\n\"uns\\\"afe\" c r#\"un\"safe\"# br\"{\" '{' '\\'' 'life d");
        assert_eq!(hidden.code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "'life", "d"]);
        assert_eq!(hidden.code.lines().count(), 2);
        assert_eq!(hidden.code.chars().count(), hidden.text.chars().count());
    }

    #[test]
    fn functions_are_found_with_their_lengths() {
        let code =
            "fn one() {}\ntrait T { fn declared(&self); }\npub fn two(f: fn(u8) -> u8) -> [u8; 2] {\n  if a { b }\n}\n";
        let found: Vec<_> = file(code).functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 1, 1), ("two".to_owned(), 3, 3)]);
    }
}
