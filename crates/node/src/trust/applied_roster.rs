//! The roster with which a node's connections and members already comply. A comparison with a newer roster gives the
//! newly revoked nodes.

use farfork_trust::{Identity, Revocation, Role, Roster};
use farfork_wire::NodeName;

/// The roster's version, and its revocations.
#[derive(Debug, Default)]
pub(crate) struct AppliedRoster {
    counter: u64,
    revocations: Vec<Revocation>,
}

impl AppliedRoster {
    pub(crate) fn from_roster(roster: &Roster) -> Self {
        Self { counter: roster.counter(), revocations: roster.revocations().to_vec() }
    }

    pub(crate) fn counter(&self) -> u64 {
        self.counter
    }

    /// Returns the nodes that this roster revokes and the previous one (`before`) did not, or only for an earlier date.
    pub(crate) fn revoked_since(&self, before: &Self) -> Vec<NodeName> {
        let new = self.revocations.iter().filter(|entry| !before.revocations.contains(entry));
        new.filter_map(revoked_node).collect()
    }

    /// Whether a node of this name was ever revoked.
    pub(crate) fn is_revoked(&self, name: &NodeName) -> bool {
        self.revocations.iter().filter_map(revoked_node).any(|node| node == *name)
    }
}

fn revoked_node(entry: &Revocation) -> Option<NodeName> {
    let subject: Identity = entry.subject.parse().ok()?;
    (subject.role == Role::Node).then_some(subject.name)
}
