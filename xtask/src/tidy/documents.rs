//! Checks names in documents: each path in backticks exists, each source folder is in the README of its crate, and each
//! identifier in a guide for contributors is in its file. `mod.rs` of this folder calls it.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Finding, Tree};

/// A path of this tree begins with one of these. Other text in backticks is not a path.
const ROOTS: [&str; 11] = [
    "crates/",
    "docs/",
    "fuzz/",
    "include/",
    "proto/",
    "python/",
    "scripts/",
    "tests/resources/",
    "xtask/",
    ".ci/",
    ".cargo/",
];

/// Path prefix of the guides whose identifiers are checked.
const GUIDE_PREFIX: &str = "docs/guide/add-";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let text_of = |path: &str| tree.files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let mut findings = missing_folders(tree.rust.iter().map(|file| file.path.as_str()), &text_of);
    for document in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, line) in document.text.lines().enumerate() {
            for path in paths_in(line).filter(|path| !tree.workspace.root().join(path).exists()) {
                findings.push(Finding::at(&document.path, index + 1, format!("`{path}` does not exist")));
            }
            if document.path.starts_with(GUIDE_PREFIX) {
                let wrong = wrong_identifiers(line, &text_of).into_iter();
                findings.extend(wrong.map(|complaint| Finding::at(&document.path, index + 1, complaint)));
            }
        }
    }
    Ok(findings)
}

/// Finds source folders that the README of their crate does not name.
fn missing_folders<'a>(
    rust_paths: impl Iterator<Item = &'a str>,
    text_of: &impl Fn(&str) -> Option<&'a str>,
) -> Vec<Finding> {
    let folders: BTreeSet<&str> = rust_paths.filter_map(source_folder).collect();
    let mut findings = Vec::new();
    for folder in folders {
        let Some(readme) = readme_of(folder) else { continue };
        let is_named = text_of(&readme).is_some_and(|text| text.lines().flat_map(paths_in).any(|path| path == folder));
        if !is_named {
            findings.push(Finding::whole(&readme, format!("`{folder}` is missing among the folders")));
        }
    }
    findings
}

/// The folder of a source file of a crate, unless it is `src` itself.
fn source_folder(path: &str) -> Option<&str> {
    let (folder, _) = path.rsplit_once('/')?;
    (path.starts_with("crates/") && folder.contains("/src/")).then_some(folder)
}

/// The README of the crate that contains a folder.
fn readme_of(folder: &str) -> Option<String> {
    let (name, _) = folder.strip_prefix("crates/")?.split_once('/')?;
    Some(format!("crates/{name}/README.md"))
}

fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    // For `file::test`, the file.
    quoted(line).map(|text| text.split("::").next().unwrap_or_default()).filter(|text| is_path(text))
}

fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(text: &str) -> bool {
    ROOTS.iter().any(|root| text.starts_with(root)) && !text.contains(['*', ' ', '<'])
}

/// Finds identifiers of the form `file::name` or `file::Type::name` that do not occur in their file.
fn wrong_identifiers<'a>(line: &str, text_of: &impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, names) in quoted(line).filter_map(|text| text.split_once("::")).filter(|(path, _)| is_path(path)) {
        let text = text_of(path).unwrap_or_default();
        let absent = names.split("::").filter(|name| !has_word(text, name));
        complaints.extend(absent.map(|name| format!("`{name}` does not occur in {path}")));
    }
    complaints
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c: char| !is_part(c)).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(path: &str) -> Option<&'static str> {
        match path {
            "crates/x/src/y.rs" => Some("enum Mode { Slow }\nfn find_slot() {}"),
            "crates/x/README.md" => Some("| `crates/x/src/a`, `crates/x/src/a/b` | parts |"),
            _ => None,
        }
    }

    #[test]
    fn only_paths_of_the_source_tree_are_found() {
        let line = "see `crates/wire/src/id.rs`, not `cargo test` or `/run/x`, nor `crates/*/tests`";
        assert_eq!(paths_in(line).collect::<Vec<_>>(), ["crates/wire/src/id.rs"]);
    }

    #[test]
    fn only_folders_below_src_are_listed() {
        assert_eq!(source_folder("crates/wire/src/frame/mod.rs"), Some("crates/wire/src/frame"));
        assert_eq!(source_folder("crates/wire/src/id.rs"), None);
        assert_eq!(source_folder("crates/cli/tests/e2e/main.rs"), None);
    }

    #[test]
    fn each_folder_is_in_the_readme_of_its_crate() {
        let findings = |paths: &[&'static str]| {
            missing_folders(paths.iter().copied(), &text_of).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(findings(&["crates/x/src/lib.rs", "crates/x/src/a/mod.rs", "crates/x/src/a/b/c.rs"]), [""; 0]);
        assert_eq!(
            findings(&["crates/x/src/d/mod.rs", "crates/y/src/a/mod.rs"]),
            [
                "crates/x/README.md: `crates/x/src/d` is missing among the folders",
                "crates/y/README.md: `crates/y/src/a` is missing among the folders"
            ]
        );
    }

    #[test]
    fn identifiers_in_documents_occur_in_their_files() {
        let right = "add `crates/x/src/y.rs::find_slot` and `crates/x/src/y.rs::Mode::Slow`, not `Mode::Fast`";
        assert_eq!(wrong_identifiers(right, &text_of), [""; 0]);
        let wrong = "`crates/x/src/y.rs::find`, `crates/x/src/y.rs::Mode::Fast` and `crates/x/src/z.rs::Mode`";
        assert_eq!(
            wrong_identifiers(wrong, &text_of),
            [
                "`find` does not occur in crates/x/src/y.rs",
                "`Fast` does not occur in crates/x/src/y.rs",
                "`Mode` does not occur in crates/x/src/z.rs"
            ]
        );
    }
}
