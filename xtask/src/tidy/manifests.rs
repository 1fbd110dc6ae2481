//! Every crate inherits lints, edition and versions from the workspace, so that each is set in one place.

use anyhow::Result;

use super::{Finding, Tree};
use crate::workspace::Member;

/// The keys that a `[package]` must inherit.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "publish"];

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    Ok(tree.members.iter().flat_map(check_member).collect())
}

fn check_member(member: &Member) -> Vec<Finding> {
    let path = format!("{}/Cargo.toml", member.folder);
    let mut findings = Vec::new();
    if !member.manifest.contains("[lints]\nworkspace = true") {
        findings.push(Finding::whole(&path, "inherit the lints: `[lints]` with `workspace = true`"));
    }
    for key in INHERITED {
        if !member.manifest.contains(&format!("\n{key}.workspace = true")) {
            findings.push(Finding::whole(&path, format!("inherit `{key}`: `{key}.workspace = true`")));
        }
    }
    let mut in_dependencies = false;
    for (index, line) in member.manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies && line.contains('=') && !line.contains("workspace = true") {
            findings.push(Finding::at(&path, index + 1, "take the version from `[workspace.dependencies]`"));
        }
    }
    findings
}
