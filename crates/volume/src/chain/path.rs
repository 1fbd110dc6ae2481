//! Which nodes a client's log passes, in which order. Pure.

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

/// Tells the present path of a log from earlier ones. Nodes that disagree about it do not take the log from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathVersion {
    /// Of the chain.
    pub epoch: u64,
    /// The last term in which the client has written.
    pub term: u32,
    /// That term continues: the log begins at the node of the client.
    pub is_writing: bool,
}

impl PathVersion {
    /// The version of a client's log.
    pub fn of(record: &VolumeRecord, client: u16) -> Self {
        let is_writing = record.writer == Some(client) && !record.is_writer_fenced;
        let term = record.client_terms.get(usize::from(client)).copied().unwrap_or(0);
        Self { epoch: record.epoch, term, is_writing }
    }
}

/// Where a node is on the path of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPosition {
    /// The log does not pass it: the node takes and acknowledges nothing.
    Off,
    /// The log arrives from another node or from the client of this one, and is sent to this successor.
    Before(NodeName),
    /// It is the last node.
    Last,
}

impl PathPosition {
    /// The position of a node on the path of a client's log. The log of the writer begins at its own node, each other one at
    /// the head. Then it passes the live replicas in the order of the chain, and last the one that catches up.
    pub fn of(record: &VolumeRecord, client: u16, node: &NodeName) -> Self {
        let source = writing_node(record, client);
        let members = record.chain.iter().chain(&record.joining);
        let mut path = source.into_iter().chain(members.filter(|member| Some(*member) != source));
        if !path.by_ref().any(|member| member == node) {
            return Self::Off;
        }
        path.next().map_or(Self::Last, |successor| Self::Before(successor.clone()))
    }

    /// Whether the path of a client's log begins at a node.
    pub fn is_first(record: &VolumeRecord, client: u16, node: &NodeName) -> bool {
        writing_node(record, client).or(record.chain.first()) == Some(node)
    }
}

/// The node of a client, while the client may write.
fn writing_node(record: &VolumeRecord, client: u16) -> Option<&NodeName> {
    record.clients.get(usize::from(client)).filter(|_| PathVersion::of(record, client).is_writing)
}

#[cfg(test)]
mod tests {
    use super::super::membership::test_record;
    use super::*;

    fn path(record: &VolumeRecord, client: u16, first: &str) -> Vec<String> {
        let mut current = NodeName::new(first).unwrap();
        let mut names = vec![current.to_string()];
        while let PathPosition::Before(next) = PathPosition::of(record, client, &current) {
            names.push(next.to_string());
            current = next;
        }
        assert_eq!(PathPosition::of(record, client, &current), PathPosition::Last);
        assert!(PathPosition::is_first(record, client, &NodeName::new(first).unwrap()));
        assert!(names.len() == 1 || !PathPosition::is_first(record, client, &current));
        names
    }

    #[test]
    fn the_path_of_the_writer_log_starts_at_its_node() {
        let mut record = test_record(&["n1", "n2", "n3"], &["n1", "n2", "n3", "n4"]);
        for (client, expected) in
            [vec!["n1", "n2", "n3"], vec!["n2", "n1", "n3"], vec!["n3", "n1", "n2"], vec!["n4", "n1", "n2", "n3"]]
                .into_iter()
                .enumerate()
        {
            record.writer = Some(client as u16);
            assert_eq!(path(&record, client as u16, expected[0]), expected);
        }
    }

    #[test]
    fn other_logs_start_at_the_head_and_skip_a_fenced_node() {
        let mut record = test_record(&["n1", "n3"], &["n2", "n3"]);
        record.writer = Some(0);
        assert_eq!(path(&record, 0, "n2"), ["n2", "n1", "n3"]);
        assert_eq!(path(&record, 1, "n1"), ["n1", "n3"]);
        record.is_writer_fenced = true;
        assert_eq!(path(&record, 0, "n1"), ["n1", "n3"]);
        assert_eq!(PathPosition::of(&record, 0, &NodeName::new("n2").unwrap()), PathPosition::Off);
    }

    #[test]
    fn a_joining_replica_is_last_on_the_path() {
        let mut record = test_record(&["n1", "n2"], &["n2"]);
        record.joining = Some(NodeName::new("n3").unwrap());
        record.writer = Some(0);
        assert_eq!(path(&record, 0, "n2"), ["n2", "n1", "n3"]);
    }
}
