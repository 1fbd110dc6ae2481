//! Every path that a document names in backticks exists, so that nobody is sent to a file that has moved; and every folder
//! of the sources is on the map, so that nobody meets one that is told of nowhere.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Finding, Tree};

/// A path of this tree begins with one of these; other things in backticks are not paths.
const ROOTS: [&str; 7] = ["crates/", "docs/", "proto/", "scripts/", "xtask/", ".ci/", ".cargo/"];

/// The document with the map of folders.
const MAP: &str = "docs/architecture.md";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = unmapped(tree);
    for document in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, line) in document.text.lines().enumerate() {
            for path in paths_in(line).filter(|path| !tree.workspace.root().join(path).exists()) {
                findings.push(Finding::at(&document.path, index + 1, format!("`{path}` does not exist")));
            }
        }
    }
    Ok(findings)
}

fn unmapped(tree: &Tree<'_>) -> Vec<Finding> {
    let map = tree.files.iter().find(|file| file.path == MAP).map_or("", |file| file.text.as_str());
    let known: BTreeSet<&str> = map.lines().flat_map(paths_in).collect();
    let folders: BTreeSet<&str> = tree.rust.iter().filter_map(|file| source_folder(&file.path)).collect();
    let unmapped = folders.difference(&known);
    unmapped.map(|folder| Finding::whole(MAP, format!("`{folder}` is missing among the folders"))).collect()
}

/// The folder of a file within a crate's sources, unless it is the crate's own.
fn source_folder(path: &str) -> Option<&str> {
    let (folder, _) = path.rsplit_once('/')?;
    (path.starts_with("crates/") && folder.contains("/src/")).then_some(folder)
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

    #[test]
    fn folders_are_those_within_a_crates_sources() {
        assert_eq!(source_folder("crates/wire/src/frame/mod.rs"), Some("crates/wire/src/frame"));
        assert_eq!(source_folder("crates/wire/src/id.rs"), None);
        assert_eq!(source_folder("crates/cli/tests/e2e/main.rs"), None);
    }
}
