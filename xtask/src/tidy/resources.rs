//! Process state: each program of `tests/resources/` has a row in `docs/process-state.md`, and the end-to-end test
//! `process_state_is_restored` runs it. Each row names tests that exist. So no program is forgotten or silently skipped.

use anyhow::Result;

use super::{Finding, Tree, hazards};

const DOCUMENT: &str = "docs/process-state.md";
const PROGRAMS: &str = "tests/resources/";
const SENTENCE: &str = "process_state_is_restored";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = hazards::check_document(tree, DOCUMENT);
    let text_of = |path: &str| tree.files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let (document, sentence) = (text_of(DOCUMENT), text_of(&format!("crates/cli/tests/e2e/{SENTENCE}/mod.rs")));
    let programs = tree.files.iter().filter_map(|file| file.path.strip_prefix(PROGRAMS)?.strip_suffix(".c"));
    for program in programs {
        let complaints = complaints(program, document, sentence);
        findings.extend(complaints.into_iter().map(|text| Finding::whole(&format!("{PROGRAMS}{program}.c"), text)));
    }
    Ok(findings)
}

fn complaints(program: &str, document: &str, sentence: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if !document.contains(&format!("`{SENTENCE}::{program}`")) {
        complaints.push(format!("it has no row in {DOCUMENT}"));
    }
    if !sentence.contains(&format!("(\"{program}\",")) {
        complaints.push(format!("no test of {SENTENCE} runs it"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_needs_a_row_and_a_test() {
        let (row, test) = ("| x | `process_state_is_restored::x` |", "Test::shared(\"x\", |c| carried(c, \"x\"))");
        assert_eq!(complaints("x", row, test), [""; 0]);
        assert_eq!(complaints("x", "", test).len(), 1);
        assert_eq!(complaints("x", row, "").len(), 1);
        assert_eq!(complaints("y", row, test).len(), 2);
    }
}
