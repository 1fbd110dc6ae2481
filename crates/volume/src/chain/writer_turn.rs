//! Decides the next step of a client that waits to write or to read, and of the head that ends a fenced term. Does no I/O:
//! `process/offload/writer` makes the calls, and the simulation runs the same steps.
//!
//! A node that does not answer a step is removed together with all other silent nodes. Then the next step follows.

use std::time::Duration;

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

/// Time from which a writer is known to be fenced to the end of its term. Its client may not know that it is fenced, and
/// answers open(2) without a message as long as its lease is valid. No lease begins after the catalog has the fence.
pub const FENCE_WAIT: Duration = Duration::from_millis(500);

/// The next step to make a client the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// The node has left the chain: its client must end.
    OffChain,
    /// There is no writer: begin a term in the catalog.
    Begin,
    /// The client is the writer in the catalog, but has no grant: an offload process has died before it sent the grant, or
    /// another node has recalled it. End this term.
    EndOwn(u32),
    /// End the term of a fenced writer.
    Finish(FencedTerm),
    /// Make the node of the writer end this term.
    Release {
        /// The node; none if the record is damaged.
        node: Option<NodeName>,
        /// The term.
        term: u32,
    },
}

/// The next step to let a client read all records that other clients have logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshStep {
    /// The node has left the chain, or its client is fenced: the client must end, and not renew its lease.
    OffChain,
    /// There is no other writer.
    Done,
    /// End the term of a fenced writer.
    Finish(FencedTerm),
    /// Get the end of the writer's log from its node, and wait until it is published on this one.
    Commit {
        /// The client.
        writer: u16,
        /// Its node; none if the record is damaged.
        node: Option<NodeName>,
    },
}

/// The term of a fenced writer. The head publishes the log on each live replica, and then ends the term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTerm {
    /// The head; none if the record is damaged.
    pub head: Option<NodeName>,
    /// The term.
    pub term: u32,
}

/// The next step of a node that is requested to end a fenced term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishStep {
    /// The term has ended.
    Ended,
    /// Another node is the head.
    NotHead,
    /// Wait until the log of this client is published on each live replica, and until its lease has expired.
    Publish(u16),
}

impl WriteStep {
    /// Returns the next step for a client of a node.
    pub fn of(record: &VolumeRecord, client: u16, node: &NodeName) -> Self {
        let term = record.term;
        match record.writer {
            _ if !record.chain.contains(node) => Self::OffChain,
            None => Self::Begin,
            Some(_) if record.is_writer_fenced => Self::Finish(FencedTerm::of(record)),
            Some(writer) if writer == client => Self::EndOwn(term),
            Some(writer) => Self::Release { node: node_of(record, writer), term },
        }
    }
}

impl RefreshStep {
    /// Returns the next step for a client of a node.
    pub fn of(record: &VolumeRecord, client: u16, node: &NodeName) -> Self {
        let is_fenced = record.writer == Some(client) && record.is_writer_fenced;
        match record.writer {
            _ if is_fenced || !record.chain.contains(node) => Self::OffChain,
            None => Self::Done,
            Some(writer) if writer == client => Self::Done,
            Some(_) if record.is_writer_fenced => Self::Finish(FencedTerm::of(record)),
            Some(writer) => Self::Commit { writer, node: node_of(record, writer) },
        }
    }
}

impl FencedTerm {
    /// The term of the present writer, which is fenced.
    pub fn of(record: &VolumeRecord) -> Self {
        Self { head: record.chain.first().cloned(), term: record.term }
    }
}

impl FinishStep {
    /// Returns the step of a node that another one has asked to end a fenced term.
    pub fn of(record: &VolumeRecord, term: u32, node: &NodeName) -> Self {
        match record.writer.filter(|_| record.is_writer_fenced && record.term == term) {
            None => Self::Ended,
            Some(_) if record.chain.first() != Some(node) => Self::NotHead,
            Some(writer) => Self::Publish(writer),
        }
    }
}

fn node_of(record: &VolumeRecord, client: u16) -> Option<NodeName> {
    record.clients.get(usize::from(client)).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::membership::{begin_term, remove_silent, test_record};
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn a_client_waits_for_the_writer_or_for_the_head_of_a_fenced_term() {
        let mut record = test_record(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
        assert_eq!(WriteStep::of(&record, 2, &node("n3")), WriteStep::Begin);
        assert_eq!(RefreshStep::of(&record, 2, &node("n3")), RefreshStep::Done);
        assert!(begin_term(&mut record, 1));
        assert_eq!(WriteStep::of(&record, 1, &node("n2")), WriteStep::EndOwn(1));
        assert_eq!(WriteStep::of(&record, 2, &node("n3")), WriteStep::Release { node: Some(node("n2")), term: 1 });
        let commit = RefreshStep::Commit { writer: 1, node: Some(node("n2")) };
        assert_eq!(RefreshStep::of(&record, 2, &node("n3")), commit);
        assert!(remove_silent(&mut record, &[node("n2")], &node("n3"), 1));
        let fenced = FencedTerm { head: Some(node("n1")), term: 1 };
        assert_eq!(WriteStep::of(&record, 2, &node("n3")), WriteStep::Finish(fenced.clone()));
        assert_eq!(RefreshStep::of(&record, 2, &node("n3")), RefreshStep::Finish(fenced));
        assert_eq!(RefreshStep::of(&record, 1, &node("n2")), RefreshStep::OffChain);
        assert_eq!(FinishStep::of(&record, 1, &node("n3")), FinishStep::NotHead);
        assert_eq!(FinishStep::of(&record, 1, &node("n1")), FinishStep::Publish(1));
        assert_eq!(FinishStep::of(&record, 2, &node("n1")), FinishStep::Ended);
        // The head is dead, too: the next member ends the term.
        assert!(remove_silent(&mut record, &[node("n1")], &node("n3"), 2));
        assert_eq!(FinishStep::of(&record, 1, &node("n3")), FinishStep::Publish(1));
    }
}
