//! Dependencies point downwards only. The table "Crates" of docs/architecture.md is the only place that defines which crate
//! may use which. A row may name crates, `—` (none), or `all above`/`…` (every row above its own).

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::{Finding, Tree};

const DOCUMENT: &str = "docs/architecture.md";
const PREFIX: &str = "farfork-";

/// For each crate, the crates that it may depend on.
type Arrows = BTreeMap<String, Vec<String>>;

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let arrows = arrows_of(&tree.workspace.read(DOCUMENT)?);
    ensure!(!arrows.is_empty(), "{DOCUMENT} has no table of crates that begins with `| crate |`");
    let mut findings = Vec::new();
    for member in &tree.members {
        let path = format!("{}/Cargo.toml", member.folder);
        let Some(allowed) = arrows.get(&member.name) else {
            findings.push(Finding::whole(&path, format!("{DOCUMENT} has no row for this crate")));
            continue;
        };
        for (line, dependency) in dependencies_of(&member.manifest) {
            if !allowed.contains(&dependency) {
                let complaint = format!("`{}` may not depend on `{dependency}`, says {DOCUMENT}", member.name);
                findings.push(Finding::at(&path, line, complaint));
            }
        }
    }
    Ok(findings)
}

/// Reads the rows ``| `fork` | what it is | wire, sys |``.
fn arrows_of(document: &str) -> Arrows {
    let table = document.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let mut above = Vec::new();
    let mut arrows = Arrows::new();
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, .., dependencies] = cells[..] else {
            continue;
        };
        let name = name.trim_matches('`').to_owned();
        let allowed = if dependencies.contains("all above") || dependencies.contains('…') {
            above.clone()
        } else {
            dependencies.split(',').map(|d| d.trim().trim_matches('`').to_owned()).collect()
        };
        arrows.insert(name.clone(), allowed);
        above.push(name);
    }
    arrows
}

/// The crates of the workspace that a manifest names as dependencies of any kind, with line numbers.
fn dependencies_of(manifest: &str) -> Vec<(usize, String)> {
    let mut in_dependencies = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(own) = name.strip_prefix(PREFIX).filter(|_| in_dependencies) {
            found.push((index + 1, own.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_layers_is_parsed() {
        let document = "x\n| crate | what | depends on |\n|---|---|---|\n| `wire` | a | — |\n| `fork` | b | wire, sys |\n| `node` | c | all above |\n\n| other |\n";
        let arrows = arrows_of(document);
        assert_eq!(arrows["wire"], ["—"]);
        assert_eq!(arrows["fork"], ["wire", "sys"]);
        assert_eq!(arrows["node"], ["wire", "fork"]);
        assert_eq!(arrows.len(), 3);
    }

    #[test]
    fn only_workspace_dependencies_are_listed() {
        let manifest =
            "[package]\nname = \"farfork-x\"\n[dev-dependencies]\nfarfork-sys.workspace = true\nanyhow = \"1\"\n";
        assert_eq!(dependencies_of(manifest), [(4, "sys".to_owned())]);
    }
}
