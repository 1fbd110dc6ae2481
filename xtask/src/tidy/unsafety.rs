//! `unsafe` is permitted only in crates/sys (and in the restorer, which is C). Every other crate forbids it by an attribute.

use anyhow::Result;

use super::{Finding, Tree};

/// The folder whose Rust files may use `unsafe`.
const HOME: &str = "crates/sys/";
const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in tree.rust.iter().filter(|file| !file.path.starts_with(HOME)) {
        for (line, code) in file.code_lines() {
            if code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
                findings.push(Finding::at(&file.path, line, "`unsafe` is permitted only in crates/sys"));
            }
        }
        if is_crate_root(&file.path) && !file.text.contains(FORBID) {
            findings.push(Finding::whole(&file.path, format!("every crate except sys must have `{FORBID}`")));
        }
    }
    Ok(findings)
}

/// Matches `crates/x/src/lib.rs`, `xtask/src/main.rs` and similar paths.
fn is_crate_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}
