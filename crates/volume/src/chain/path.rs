//! The path of a client's log: the nodes that the log passes, in order. Does no I/O.

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

/// The version of a log's path. A node refuses the log from a predecessor that has another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathVersion {
    /// Epoch of the chain.
    pub epoch: u64,
    /// The last term in which the client has written.
    pub term: u32,
    /// The client may still write in that term, so the path begins at the client's node.
    pub is_writing: bool,
}

impl PathVersion {
    /// Returns the version of the path of a client's log.
    pub fn of(record: &VolumeRecord, client: u16) -> Self {
        let is_writing = record.writer == Some(client) && !record.is_writer_fenced;
        let term = record.client_terms.get(usize::from(client)).copied().unwrap_or(0);
        Self { epoch: record.epoch, term, is_writing }
    }
}

/// The position of a node on the path of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPosition {
    /// The node is not on the path: it neither receives nor acknowledges the log.
    Off,
    /// The node sends the log to this successor.
    Before(NodeName),
    /// The node is the last one on the path.
    Last,
}

impl PathPosition {
    /// Returns the position of a node on the path of a client's log. The writer's log begins at the writer's node, other
    /// logs begin at the head. The path continues with the other live replicas in the order of the chain, and ends with the
    /// replica that catches up.
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

/// The node of a client; none unless the client may write.
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
