//! Checks the test commands in `docs/specification.md`: each filter matches the name of a test that its command runs. The
//! command of a renamed test would run no test, and pass. `mod.rs` of this folder calls it.

use anyhow::Result;

use super::source::RustFile;
use super::{Finding, Tree};

const DOCUMENT: &str = "docs/specification.md";

/// Prefix of the names of packages, which their folders lack.
const PACKAGE_PREFIX: &str = "farfork-";

/// A command that runs tests.
struct TestCommand<'a> {
    /// Paths of the sources of its tests: files, and folders with a trailing slash.
    sources: Vec<String>,
    filters: Vec<&'a str>,
}

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let Some(document) = tree.files.iter().find(|file| file.path == DOCUMENT) else {
        return Ok(vec![Finding::whole(DOCUMENT, "it is missing")]);
    };
    let names: Vec<(&str, Vec<String>)> = tree
        .rust
        .iter()
        .map(|file| (file.path.as_str(), test_names(file)))
        .filter(|(_, names)| !names.is_empty())
        .collect();
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        let commands = line.split('`').skip(1).step_by(2);
        let complaints = commands.flat_map(|text| complaints(text, &names));
        findings.extend(complaints.map(|complaint| Finding::at(DOCUMENT, index + 1, complaint)));
    }
    Ok(findings)
}

/// Finds the errors in a text, if it is a command that runs tests. `names` has the names of the tests of each file.
fn complaints(text: &str, names: &[(&str, Vec<String>)]) -> Vec<String> {
    let Some(command) = TestCommand::parse(text) else { return Vec::new() };
    let is_source = |path: &str| command.sources.iter().any(|source| path == source || is_below(path, source));
    let found: Vec<&String> = names.iter().filter(|(path, _)| is_source(path)).flat_map(|(_, names)| names).collect();
    if found.is_empty() {
        return vec![format!("`{text}` runs no test")];
    }
    let is_unmatched = |filter: &&&str| !found.iter().any(|name| name.contains(**filter));
    command.filters.iter().filter(is_unmatched).map(|filter| format!("no test of `{text}` matches {filter}")).collect()
}

fn is_below(path: &str, folder: &str) -> bool {
    folder.ends_with('/') && path.starts_with(folder)
}

impl<'a> TestCommand<'a> {
    /// Parses a command; `None` for another text.
    fn parse(text: &'a str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["cargo", "xtask", "e2e", ref filters @ ..] => Some(Self::new("crates/cli/tests/e2e/", filters)),
            ["cargo", "xtask", "test-long", ref filters @ ..] => Some(Self::new("crates/", filters)),
            ["cargo", "test", ref arguments @ ..] => Self::of_package(arguments),
            _ => None,
        }
    }

    fn new(source: &str, filters: &[&'a str]) -> Self {
        // A word in capital letters is a placeholder of any filter.
        let is_filter = |word: &&&str| !word.chars().all(char::is_uppercase);
        Self { sources: vec![source.to_owned()], filters: filters.iter().filter(is_filter).copied().collect() }
    }

    /// Parses the arguments of `cargo test`; `None` if they name no package.
    fn of_package(arguments: &[&'a str]) -> Option<Self> {
        let (mut folder, mut sources, mut filters) = (None, None, Vec::new());
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match *word {
                "-p" => folder = words.next()?.strip_prefix(PACKAGE_PREFIX).map(|name| format!("crates/{name}/")),
                "--test" => {
                    sources = words.next().map(|name| vec![format!("tests/{name}/"), format!("tests/{name}.rs")])
                }
                "--lib" => sources = Some(vec!["src/".to_owned()]),
                "--" => {}
                filter => filters.push(filter),
            }
        }
        let folder = folder?;
        let sources = sources.unwrap_or_else(|| vec![String::new()]);
        Some(Self { sources: sources.iter().map(|source| format!("{folder}{source}")).collect(), filters })
    }
}

/// Returns the names of the tests of a file, each with the module of the file. Tests are functions with an attribute and, in
/// folders `tests`, the names in tables of tests: the first argument or field, which must be a literal.
fn test_names(file: &RustFile) -> Vec<String> {
    let module = module_of(&file.path);
    let mut names = Vec::new();
    let mut has_attribute = false;
    for (_, line) in file.code_lines().map(|(number, line)| (number, line.trim())) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            has_attribute = true;
        } else if let Some(rest) =
            line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")).filter(|_| has_attribute)
        {
            names.push(rest.chars().take_while(|c| is_name_character(*c)).collect());
            has_attribute = false;
        }
    }
    if file.path.contains("/tests/") {
        names.extend(first_literals(&file.text));
    }
    names.into_iter().map(|name: String| format!("{module}::{name}")).collect()
}

/// The module path of a file below `src`, or below the folder of an integration test.
fn module_of(path: &str) -> String {
    let below_tests = || path.split_once("/tests/").map(|(_, rest)| rest.split_once('/').map_or("", |(_, rest)| rest));
    let path = path.split_once("/src/").map(|(_, rest)| rest).or_else(below_tests).unwrap_or_default();
    path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Returns the string literals after an opening parenthesis that could be names of tests.
fn first_literals(text: &str) -> impl Iterator<Item = String> {
    let after_parenthesis = text.split('(').skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    let literals = after_parenthesis.filter_map(|rest| rest.split_once('"')).map(|(literal, _)| literal);
    literals.filter(|literal| !literal.is_empty() && literal.chars().all(is_name_character)).map(str::to_owned)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::TextFile;

    fn names() -> Vec<(&'static str, Vec<String>)> {
        let table = "const ALL: &[(&str, fn())] = &[\n    (\"a_page_is_read\", read),\n    Test::long(\n        \"all_pages\", read),\n];\nfn heirs() {}\n";
        let function =
            "mod tests {\n    #[test]\n    #[should_panic]\n    fn a_set_grows() {}\n    fn helper() {}\n}\n";
        let files = [
            ("crates/x/tests/pager/deaths.rs", table),
            ("crates/x/tests/layout.rs", "#[tokio::test]\nasync fn sizes_are_fixed() {}\n"),
            ("crates/x/src/set/mod.rs", function),
            ("crates/cli/tests/e2e/files_are_kept.rs", "Test::shared(\"after_a_kill\", killed)"),
        ];
        files
            .map(|(path, text)| (path, test_names(&RustFile::of(&TextFile { path: path.into(), text: text.into() }))))
            .into()
    }

    fn complain(text: &str) -> Vec<String> {
        complaints(text, &names())
    }

    #[test]
    fn names_of_tests_are_found_in_tables_and_functions() {
        let found: Vec<String> = names().into_iter().flat_map(|(_, names)| names).collect();
        let expected = [
            "deaths::a_page_is_read",
            "deaths::all_pages",
            "::sizes_are_fixed",
            "set::a_set_grows",
            "files_are_kept::after_a_kill",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn filters_that_match_a_test_are_accepted() {
        for command in [
            "cargo test -p farfork-x --test pager page_is",
            "cargo test -p farfork-x --test pager deaths",
            "cargo test -p farfork-x --test layout",
            "cargo test -p farfork-x --lib -- set grows",
            "cargo test -p farfork-x sizes",
            "cargo xtask e2e files_are_kept::after",
            "cargo xtask e2e NAME",
            "cargo xtask test-long all_pages",
            "farfork stress paging",
        ] {
            assert_eq!(complain(command), [""; 0], "{command}");
        }
    }

    #[test]
    fn filters_that_match_no_test_are_found() {
        for (command, filter) in [
            ("cargo test -p farfork-x --test pager heirs", "heirs"),
            ("cargo test -p farfork-x --lib page_is", "page_is"),
            ("cargo test -p farfork-x --lib -- set helper", "helper"),
            ("cargo xtask e2e a_page_is_read", "a_page_is_read"),
            ("cargo xtask test-long some_pages", "some_pages"),
        ] {
            assert_eq!(complain(command), [format!("no test of `{command}` matches {filter}")]);
        }
        assert_eq!(complain("cargo test -p farfork-x --test gone").len(), 1, "no such target");
    }
}
