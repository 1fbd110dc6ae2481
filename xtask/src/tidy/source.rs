//! Rust source with blanked comments and literals, so that checks find only code, with correct line numbers.
//!
//! This is a lexer for the few forms that can hide code (comments, strings, characters), not a parser.

use crate::workspace::TextFile;

/// A Rust file: the original text, and only its code.
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) text: String,
    /// As many characters as `text`, with the same line breaks. Everything except code is blank.
    pub(crate) code: String,
    /// The first line of the tests at the end of the file, counted from 1.
    tests_start: usize,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of `fn`, counted from 1.
    pub(crate) line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// The kind of a named item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// A struct, enum, union or trait, or a type alias outside of traits.
    Type,
    Function,
    /// A const or static.
    Constant,
    Module,
}

/// The definition of an item.
pub(crate) struct Definition {
    pub(crate) kind: ItemKind,
    pub(crate) name: String,
    /// Line number, counted from 1.
    pub(crate) line: usize,
}

impl RustFile {
    pub(crate) fn of(file: &TextFile) -> Self {
        let TextFile { path, text } = file;
        Self {
            path: path.clone(),
            text: text.clone(),
            code: blank_all_but_code(text),
            tests_start: find_tests(path, text),
        }
    }

    /// Lines of code with their numbers, counted from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Whether the line, counted from 1, belongs to tests: to a file in a folder `tests`, to `tests.rs` or `*_tests.rs`, or
    /// to a test module at the end of a file.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        line >= self.tests_start
    }

    /// The defined items, in order. Associated types are omitted, because the trait defines their names.
    pub(crate) fn definitions(&self) -> Vec<Definition> {
        self.code_lines().filter_map(|(line, code)| definition_of(code, line)).collect()
    }

    /// The functions with a body, in order, including inner ones.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let code: Vec<char> = self.code.chars().collect();
        let mut functions = Vec::new();
        let mut line = 1;
        for at in 0..code.len() {
            if code[at] == '\n' {
                line += 1;
            }
            if word_at(&code, at) != "fn" {
                continue;
            }
            let name = word_at(&code, skip_blanks(&code, at + 2));
            // The type of a function pointer has no name.
            if !name.is_empty()
                && let Some(end) = end_of_body(&code, at)
            {
                let lines = code[at..end].iter().filter(|c| **c == '\n').count() + 1;
                functions.push(Function { name, line, lines });
            }
        }
        functions
    }
}

/// The first line of a file's tests, counted from 1; beyond all lines if there are none.
fn find_tests(path: &str, text: &str) -> usize {
    let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let is_test_file = path.contains("/tests/") || stem == "tests" || stem.ends_with("_tests");
    let module = text.lines().position(|line| line == "mod tests {");
    if is_test_file { 1 } else { module.map_or(usize::MAX, |index| index + 1) }
}

/// The item that a line of code defines. rustfmt puts at most one item on a line.
fn definition_of(code: &str, line: usize) -> Option<Definition> {
    if !code.trim_start().starts_with(char::is_alphabetic) {
        return None;
    }
    let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let mut keyword =
        words.find(|word| !matches!(*word, "pub" | "crate" | "super" | "self" | "in" | "unsafe" | "async"))?;
    let mut name = words.next()?;
    if keyword == "const" && matches!(name, "fn" | "unsafe") {
        keyword = "fn";
        name = words.find(|word| *word != "fn")?;
    }
    let kind = match keyword {
        "struct" | "enum" | "union" | "trait" => ItemKind::Type,
        "type" if !code.starts_with(' ') => ItemKind::Type,
        "fn" => ItemKind::Function,
        "const" | "static" if name != "_" => ItemKind::Constant,
        "mod" => ItemKind::Module,
        _ => return None,
    };
    let name = if name == "mut" { words.next()? } else { name };
    Some(Definition { kind, name: name.to_owned(), line })
}

/// The identifier that begins exactly at `at`; empty if none does.
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

/// The position after the closing brace of the named function at `at`; `None` for a declaration.
fn end_of_body(code: &[char], at: usize) -> Option<usize> {
    let mut parentheses = 0_i32;
    let mut braces = 0_i32;
    for (offset, c) in code[at..].iter().enumerate() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' if parentheses == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => continue,
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

/// Length of the comment or literal at `at`, in characters; 0 for code.
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

/// `r"…"`, `r#"…"#` and so on; 0 if `r` begins a word.
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
    fn comments_and_literals_are_removed_from_code() {
        let hidden =
            file("a /* unsafe { /* { */ */ b // unsafe\n\"uns\\\"afe\" c r#\"un\"safe\"# br\"{\" '{' '\\'' 'life d");
        assert_eq!(hidden.code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "'life", "d"]);
        assert_eq!(hidden.code.lines().count(), 2);
        assert_eq!(hidden.code.chars().count(), hidden.text.chars().count());
    }

    #[test]
    fn items_are_found_with_their_kinds() {
        let code = "pub(crate) struct A;\nimpl A {\n    type Out = u8;\n    pub const fn f(x: u8) {}\n    static mut S: u8 = 0;\n}\ntype B = u8;\n    .union(U::V)\nlet c = 1;\nconst _: () = ();\n";
        let found: Vec<_> = file(code).definitions().into_iter().map(|d| (d.kind, d.name, d.line)).collect();
        let expected = [
            (ItemKind::Type, "A".to_owned(), 1),
            (ItemKind::Function, "f".to_owned(), 4),
            (ItemKind::Constant, "S".to_owned(), 5),
            (ItemKind::Type, "B".to_owned(), 7),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn functions_are_found_with_their_lengths() {
        let code = "fn one() {}\ntrait T { fn declared(&self); }\npub fn two(f: fn(u8) -> u8) -> [u8; 2] {\n  if a { b }\n}\nfn three<T: Iterator<Item = u8>, U>() -> Result<A, B> {\n}\n";
        let found: Vec<_> = file(code).functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 1, 1), ("two".to_owned(), 3, 3), ("three".to_owned(), 6, 2)]);
    }
}
