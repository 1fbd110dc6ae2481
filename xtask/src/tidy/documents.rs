//! Every path that a document names in backticks exists, so that nobody is sent to a file that has moved.

use anyhow::Result;

use super::{Finding, Tree};

/// A path of this tree begins with one of these; other things in backticks are not paths.
const ROOTS: [&str; 7] = ["crates/", "docs/", "proto/", "scripts/", "xtask/", ".ci/", ".cargo/"];

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for document in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, line) in document.text.lines().enumerate() {
            for path in paths_in(line).filter(|path| !tree.workspace.root().join(path).exists()) {
                findings.push(Finding::at(&document.path, index + 1, format!("`{path}` does not exist")));
            }
        }
    }
    Ok(findings)
}

fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    // Of `file::test`, the file.
    let quoted = line.split('`').skip(1).step_by(2).map(|text| text.split("::").next().unwrap_or_default());
    quoted.filter(|text| ROOTS.iter().any(|root| text.starts_with(root)) && !text.contains(['*', ' ', '<']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_tree_count() {
        let line = "see `crates/wire/src/id.rs`, not `cargo test` or `/run/x`, nor `crates/*/tests`";
        assert_eq!(paths_in(line).collect::<Vec<_>>(), ["crates/wire/src/id.rs"]);
    }
}
