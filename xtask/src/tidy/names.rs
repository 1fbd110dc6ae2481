//! Names are terms of the field. A file name is not a catch-all (`util`), the name of a type is unique within its crate, and
//! the name of an item has no word of the stop list. Names of test functions are sentences, and are not checked.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::source::ItemKind;
use super::{Finding, Tree, stop_list};

const DRAWERS: [&str; 6] = ["util", "utils", "common", "helper", "helpers", "misc"];

/// Names that interfaces define: two methods of `proto/farfork/v1/peer.proto`, a constant of the kernel, and a message of
/// `include/farfork_protocol.h`.
const INTERFACE_NAMES: [&str; 4] = ["foretell", "tend", "IOPRIO_WHO_PROCESS", "WELCOME"];

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let drawer = file.path.split(['/', '.', '_', '-']).find(|part| DRAWERS.contains(part));
        if let Some(drawer) = drawer {
            findings.push(Finding::whole(&file.path, format!("`{drawer}` is not descriptive: name the contents")));
        }
    }
    for file in &tree.rust {
        for (line, code) in file.code_lines() {
            if code.trim_start().starts_with("pub") && code.contains("use ") && code.contains("::*") {
                findings.push(Finding::at(&file.path, line, "name what is re-exported instead of `*`"));
            }
        }
    }
    findings.extend(module_style(tree));
    findings.extend(stop_words(tree));
    findings.extend(shared_types(tree));
    Ok(findings)
}

/// Checks that a module with children is `x/mod.rs`, that one without is `x.rs`, and that no module repeats the name of its
/// folder.
fn module_style(tree: &Tree<'_>) -> Vec<Finding> {
    let paths = || tree.rust.iter().map(|file| file.path.as_str());
    let folders: BTreeSet<&str> = paths().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
    let complaint = |path: &str| {
        let stem = path.strip_suffix(".rs")?;
        let (folder, name) = stem.rsplit_once('/')?;
        if folder.rsplit('/').next() == Some(name) {
            return Some(format!("`{name}/{name}.rs`: name it `{name}/mod.rs`"));
        }
        folders.contains(stem).then(|| format!("it has children: name it `{name}/mod.rs`"))
    };
    paths().filter_map(|path| Some(Finding::whole(path, complaint(path)?))).collect()
}

/// Finds items outside of tests whose names contain a word of the stop list.
fn stop_words(tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        let definitions = file.definitions().into_iter().filter(|item| !file.is_test_line(item.line));
        for item in definitions.filter(|item| !INTERFACE_NAMES.contains(&item.name.as_str())) {
            if let Some((word, replacement)) = stop_list::find_in_name(&item.name) {
                let complaint = format!("`{}`: write {replacement} instead of `{word}`", item.name);
                findings.push(Finding::at(&file.path, item.line, complaint));
            }
        }
    }
    findings
}

/// Finds types with the same name as another type of their crate.
fn shared_types(tree: &Tree<'_>) -> Vec<Finding> {
    let mut first = BTreeMap::new();
    let mut findings = Vec::new();
    for file in &tree.rust {
        let types = file.definitions().into_iter().filter(|item| item.kind == ItemKind::Type);
        for item in types {
            let key = (crate_of(&file.path).to_owned(), item.name.clone());
            if let Some(place) = first.get(&key) {
                let complaint = format!("`{}` is the name of a type in {place}, too", item.name);
                findings.push(Finding::at(&file.path, item.line, complaint));
            } else {
                first.insert(key, format!("{}:{}", file.path, item.line));
            }
        }
    }
    findings
}

/// Returns one line of statistics about the types outside of tests. It counts names of one word, which say little.
pub(super) fn figures(tree: &Tree<'_>) -> String {
    let types: Vec<String> = tree
        .rust
        .iter()
        .flat_map(|file| file.definitions().into_iter().filter(|item| !file.is_test_line(item.line)))
        .filter_map(|item| (item.kind == ItemKind::Type).then_some(item.name))
        .collect();
    let one_word = types.iter().filter(|name| stop_list::words_of(name).len() == 1).count();
    let lines: usize = tree.rust.iter().map(|file| file.text.lines().count()).sum();
    let percent = 100 * one_word / types.len().max(1);
    format!("{lines} lines of Rust, {} types outside of tests, {one_word} ({percent} %) of one word", types.len())
}

/// The folder of a file's crate: `crates/wire`, or the top folder elsewhere.
pub(super) fn crate_of(path: &str) -> &str {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(depth - 1).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_the_crate_of_its_folder() {
        assert_eq!(crate_of("crates/wire/src/id.rs"), "crates/wire");
        assert_eq!(crate_of("xtask/src/main.rs"), "xtask");
    }
}
