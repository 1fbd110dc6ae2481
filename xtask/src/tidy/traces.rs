//! Checks that files have no traces of the machine on which they were written: no path of that machine, no package registry
//! of its network. A clone must build anywhere, with the standard clients and their own configuration.

use anyhow::Result;

use super::{Finding, Tree};

/// Texts that occur only on one machine. Each is written in two halves, so that this file passes its own check.
const TRACES: [&str; 9] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/tar", "get"),
    concat!(".py", "env"),
    concat!("index-", "url"),
    concat!("find-", "links"),
    concat!("trusted-", "host"),
    concat!("GOPRO", "XY"),
    concat!("replace-", "with"),
];

/// A folder of the crate `container` that looks like a home directory.
const SOURCE_FOLDER: &str = concat!("src/ro", "ot/");

/// The only registry that the lock file may name.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            let line_without_sources = line.replace(SOURCE_FOLDER, "");
            if let Some(trace) = TRACES.iter().find(|trace| line_without_sources.contains(**trace)) {
                findings.push(Finding::at(&file.path, index + 1, format!("`{trace}` is specific to one machine")));
            }
            if file.path == "Cargo.lock" && line.starts_with("source = ") && !line.contains(CRATES_IO) {
                findings.push(Finding::at(&file.path, index + 1, "a crate that is not from crates.io"));
            }
        }
    }
    Ok(findings)
}
