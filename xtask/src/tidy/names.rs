//! The tree is the diagram: a folder or file is a noun of the field. Drawers for odds and ends (`util`, `helpers`) are
//! not, and `pub use x::*` hides what a module offers.

use anyhow::Result;

use super::{Finding, Tree};

const DRAWERS: [&str; 6] = ["util", "utils", "common", "helper", "helpers", "misc"];

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let drawer = file.path.split(['/', '.', '_', '-']).find(|part| DRAWERS.contains(part));
        if let Some(drawer) = drawer {
            findings.push(Finding::whole(&file.path, format!("`{drawer}` says nothing: name what is inside")));
        }
    }
    for file in &tree.rust {
        for (line, code) in file.code_lines() {
            if code.trim_start().starts_with("pub") && code.contains("use ") && code.contains("::*") {
                findings.push(Finding::at(&file.path, line, "name what is re-exported instead of `*`"));
            }
        }
    }
    Ok(findings)
}
