//! Resolves groups that contain hosts and other groups.

use std::collections::{BTreeMap, BTreeSet};

use farfork_wire::NodeName;
use toml::Spanned;

use super::error::{InventoryError, SourceText};
use super::{GROUP_ALL, InventoryHost};

/// The groups as the file has them.
type GroupTable = BTreeMap<Spanned<String>, Vec<Spanned<String>>>;

/// Returns the hosts of each group, with the group of all hosts.
///
/// # Errors
/// A group has the name of a host, contains an unknown name, or contains itself.
pub(super) fn resolve(
    source: SourceText<'_>,
    table: &GroupTable,
    hosts: &[InventoryHost],
) -> Result<BTreeMap<String, BTreeSet<NodeName>>, InventoryError> {
    let mut resolver = GroupResolver { source, table, hosts, path: Vec::new(), groups: BTreeMap::new() };
    for name in table.keys() {
        if resolver.host(name.as_ref()).is_some() || name.as_ref() == GROUP_ALL {
            let cause = format!("the group `{}` has the name of a host or of the group of all hosts", name.as_ref());
            return Err(source.error(name.span(), cause));
        }
        resolver.resolve_group(name)?;
    }
    let all = hosts.iter().map(|host| host.name.clone()).collect();
    resolver.groups.insert(GROUP_ALL.to_owned(), all);
    Ok(resolver.groups)
}

/// A depth-first search through the groups.
struct GroupResolver<'a> {
    source: SourceText<'a>,
    table: &'a GroupTable,
    hosts: &'a [InventoryHost],
    /// The groups from the first one to the current one.
    path: Vec<&'a str>,
    /// The groups that are complete.
    groups: BTreeMap<String, BTreeSet<NodeName>>,
}

impl<'a> GroupResolver<'a> {
    /// Adds the group that `reference` names, and the groups that it contains. `reference` is a key or a member of a group.
    fn resolve_group(&mut self, reference: &'a Spanned<String>) -> Result<(), InventoryError> {
        let name = reference.as_ref().as_str();
        if self.groups.contains_key(name) {
            return Ok(());
        }
        if self.path.contains(&name) {
            let cause = format!("the group `{name}` contains itself: {} → {name}", self.path.join(" → "));
            return Err(self.source.error(reference.span(), cause));
        }
        let Some(references) = self.table.get(reference) else {
            return Err(self.source.error(reference.span(), format!("no host or group `{name}`")));
        };
        self.path.push(name);
        let mut members = BTreeSet::new();
        for member in references {
            if let Some(host) = self.host(member.as_ref()) {
                members.insert(host.clone());
                continue;
            }
            self.resolve_group(member)?;
            members.extend(self.groups[member.as_ref().as_str()].iter().cloned());
        }
        self.path.pop();
        self.groups.insert(name.to_owned(), members);
        Ok(())
    }

    fn host(&self, name: &str) -> Option<&'a NodeName> {
        self.hosts.iter().map(|host| &host.name).find(|host| host.as_str() == name)
    }
}
