//! Checks the table of hazards: each row of `docs/fork-correctness.md` names tests, and each of these tests exists.

use anyhow::Result;

use super::{Finding, Tree};

const DOCUMENT: &str = "docs/fork-correctness.md";

/// The directory of the end-to-end tests. The name of each file is a sentence.
const SENTENCES: &str = "crates/cli/tests/e2e";

/// A mark that repeats the previous file name.
const SAME: &str = "…";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    Ok(check_document(tree, DOCUMENT))
}

/// Checks the table of one document.
pub(super) fn check_document(tree: &Tree<'_>, path: &str) -> Vec<Finding> {
    let Some(document) = tree.files.iter().find(|file| file.path == path) else {
        return vec![Finding::whole(path, "it is missing")];
    };
    let text_of = |path: &str| tree.files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let lines = document.text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, tests_cell(line)?)));
    let findings = lines.flat_map(|(line, cell)| {
        complaints(cell, &text_of).into_iter().map(move |complaint| Finding::at(path, line, complaint))
    });
    findings.collect()
}

/// Returns the last cell of a row; `None` for the heading and the line below it.
fn tests_cell(line: &str) -> Option<&str> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split(" | ").map(str::trim).collect();
    let is_row = cells.len() > 1 && cells.last() != Some(&"test");
    if is_row { cells.last().copied() } else { None }
}

/// Finds the errors in the tests that a cell names.
fn complaints<'a>(cell: &str, text_of: &impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if names.is_empty() {
        return vec!["the row names no test".to_owned()];
    }
    let mut sentence = "";
    let mut complaints = Vec::new();
    for name in names {
        let (place, test) = name.split_once("::").map_or((name, None), |(place, test)| (place, Some(test)));
        sentence = if place == SAME { sentence } else { place };
        if !exists(sentence, test, text_of) {
            complaints.push(format!("there is no test `{name}`"));
        }
    }
    complaints
}

fn exists<'a>(place: &str, test: Option<&str>, text_of: &impl Fn(&str) -> Option<&'a str>) -> bool {
    let has = |text: &str, pattern: String| text.contains(&pattern);
    match (place.rsplit_once('.'), test) {
        (Some((_, "rs")), Some(test)) => text_of(place).is_some_and(|text| has(text, format!("fn {test}("))),
        (Some((_, "py")), Some(test)) => text_of(place).is_some_and(|text| has(text, format!("def {test}("))),
        (None, test) => [format!("{SENTENCES}/{place}.rs"), format!("{SENTENCES}/{place}/mod.rs")]
            .iter()
            .find_map(|path| text_of(path))
            .is_some_and(|text| test.is_none_or(|test| has(text, format!("(\"{test}\",")))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(path: &str) -> Option<&'static str> {
        match path {
            "crates/cli/tests/e2e/links_may_be_cut.rs" => Some("Test::alone(\"while_paging\", while_paging)"),
            "crates/cli/tests/e2e/real_programs/mod.rs" => Some("Test::shared(\"redis\", redis)"),
            "crates/x/src/y.rs" => Some("#[test]\n fn it_is_so() {}"),
            "python/tests/z.py" => Some("def test_z(self) -> None:"),
            _ => None,
        }
    }

    #[test]
    fn table_rows_are_distinguished_from_headings() {
        assert_eq!(tests_cell("| hazard | policy | test |"), None);
        assert_eq!(tests_cell("|---|---|---|"), None);
        assert_eq!(tests_cell("| a | b | `c` |"), Some("`c`"));
        assert_eq!(tests_cell("text"), None);
    }

    #[test]
    fn each_form_of_test_name_is_found() {
        let cell = "`links_may_be_cut`, `links_may_be_cut::while_paging`, `…::while_paging`, `real_programs::redis`, \
                    `crates/x/src/y.rs::it_is_so`, `python/tests/z.py::test_z`";
        assert_eq!(complaints(cell, &text_of), [""; 0]);
    }

    #[test]
    fn an_unknown_test_name_is_reported() {
        for wrong in ["`links`", "`links_may_be_cut::x`", "`crates/x/src/y.rs::z`", "`crates/x/src/y.rs`", "`a.c::b`"] {
            assert_eq!(complaints(wrong, &text_of).len(), 1, "{wrong}");
        }
        assert_eq!(complaints("–", &text_of), ["the row names no test"]);
    }
}
