//! Changes of a volume's chain and of its writer. Each function changes the volume's record, which the catalog accepts or
//! refuses as a whole. Does no I/O.
//!
//! Changes of the chain raise the epoch; the begin and the end of a term do not. Each function returns whether it has
//! changed the record.

use farfork_cluster::catalog::VolumeRecord;
use farfork_wire::NodeName;

/// Removes a node that does not answer, refuses a log, or has lost its replica. `epoch` is the epoch in which the node
/// failed. If the epoch has changed since, the node stays. The last live replica always stays.
pub fn remove_member(record: &mut VolumeRecord, node: &NodeName, epoch: u64) -> bool {
    if record.epoch != epoch {
        return false;
    }
    let is_joining = record.joining.as_ref() == Some(node);
    let is_member = record.chain.len() > 1 && record.chain.contains(node);
    if is_joining {
        record.joining = None;
    }
    if is_member {
        record.chain.retain(|member| member != node);
        // The path of the writer's log now begins at the head.
        record.is_writer_fenced |= writer_node(record) == Some(node);
    }
    raise_epoch(record, is_joining || is_member)
}

/// Makes a client the writer, if there is none. The node of the client must be a member: otherwise its log would have no path.
pub fn begin_term(record: &mut VolumeRecord, client: u16) -> bool {
    let is_member = record.clients.get(usize::from(client)).is_some_and(|node| record.chain.contains(node));
    let is_free = record.writer.is_none() && is_member;
    if is_free {
        record.term += 1;
        record.writer = Some(client);
        record.client_terms.resize(record.clients.len(), 0);
        record.client_terms[usize::from(client)] = record.term;
    }
    is_free
}

/// Makes a client the fenced writer in a term that its log has, and that the record has not reached: the record was restored to
/// an earlier state. The record may lack the client. Then it gets a node without a client: the log is published before that node
/// writes to it, so any free node is right.
pub fn restore_term(record: &mut VolumeRecord, client: u16, term: u32) -> bool {
    let index = usize::from(client);
    let free = record.replicas.iter().filter(|node| !record.clients.contains(node));
    let missing = (index + 1).saturating_sub(record.clients.len());
    let added: Vec<NodeName> = free.take(missing).cloned().collect();
    let is_lost = record.term < term && added.len() == missing;
    if is_lost {
        record.clients.extend(added);
        record.term = term;
        record.writer = Some(client);
        record.is_writer_fenced = true;
        record.client_terms.resize(record.clients.len(), 0);
        record.client_terms[index] = term;
    }
    raise_epoch(record, is_lost)
}

/// Gives the place of one replica to another node, which has to catch up. The last live replica cannot be replaced.
pub fn replace_replica(record: &mut VolumeRecord, old: &NodeName, new: &NodeName) -> bool {
    let is_last = record.chain == [old.clone()];
    let position = record.replicas.iter().position(|replica| replica == old);
    let Some(position) = position.filter(|_| !is_last && !record.replicas.contains(new)) else { return false };
    let epoch = record.epoch;
    remove_member(record, old, epoch);
    record.replicas[position] = new.clone();
    raise_epoch(record, true)
}

/// Removes all nodes that have not answered `remover` for the time of failure detection until now, and fences the writer if
/// it is one of them. `epoch` is the epoch in which the wait began. A member removes them also after the epoch has changed:
/// another member may just have removed one of them. At least one member must be left. Otherwise nothing changes: each member
/// has all acknowledged records, and the one that returns first continues.
pub fn remove_silent(record: &mut VolumeRecord, silent: &[NodeName], remover: &NodeName, epoch: u64) -> bool {
    let is_silent = |node: &NodeName| silent.contains(node);
    // Of two nodes that do not reach each other, the one that was removed first must not remove the other.
    let may_remove = record.epoch == epoch || record.chain.contains(remover);
    if !may_remove || record.chain.iter().all(is_silent) {
        return false;
    }
    let is_removed = record.chain.iter().chain(&record.joining).any(is_silent);
    let must_fence = !record.is_writer_fenced && writer_node(record).is_some_and(is_silent);
    record.chain.retain(|member| !is_silent(member));
    record.joining.take_if(|joining| is_silent(joining));
    // The path of the writer's log now begins at the head.
    record.is_writer_fenced |= must_fence;
    raise_epoch(record, is_removed || must_fence)
}

/// Ends a term. The writer's log must be published on each live replica.
pub fn end_term(record: &mut VolumeRecord, client: u16, term: u32) -> bool {
    let is_current = record.writer == Some(client) && record.term == term;
    if is_current {
        record.writer = None;
        record.is_writer_fenced = false;
    }
    is_current
}

/// Makes a replica begin to catch up, or begin again. Only one replica at a time catches up.
pub fn begin_join(record: &mut VolumeRecord, node: &NodeName) -> bool {
    let is_free = record.joining.as_ref().is_none_or(|joining| joining == node);
    let may_join = is_free && record.replicas.contains(node) && !record.chain.contains(node);
    if may_join {
        record.joining = Some(node.clone());
    }
    raise_epoch(record, may_join)
}

/// Makes a replica that has caught up the last member, unless the epoch has changed.
pub fn finish_join(record: &mut VolumeRecord, node: &NodeName, epoch: u64) -> bool {
    let has_joined = record.epoch == epoch && record.joining.as_ref() == Some(node);
    if has_joined {
        record.joining = None;
        record.chain.push(node.clone());
    }
    raise_epoch(record, has_joined)
}

/// Whether the shared tree of a node may have become different from the members' trees: the node is not a member, and the
/// epoch has changed. A new term does not outdate the tree, because a term does not change the epoch.
pub fn outdates_tree(known: &VolumeRecord, record: &VolumeRecord, node: &NodeName) -> bool {
    !record.chain.contains(node) && record.epoch != known.epoch
}

fn writer_node(record: &VolumeRecord) -> Option<&NodeName> {
    record.clients.get(usize::from(record.writer?))
}

fn raise_epoch(record: &mut VolumeRecord, is_changed: bool) -> bool {
    record.epoch += u64::from(is_changed);
    is_changed
}

/// A record of a volume with these members and clients.
#[cfg(test)]
pub(super) fn test_record(chain: &[&str], clients: &[&str]) -> VolumeRecord {
    use farfork_cluster::catalog::{Durability, VolumeState};
    let names = |names: &[&str]| names.iter().map(|name| NodeName::new(name).unwrap()).collect::<Vec<_>>();
    let record = VolumeRecord::new(1, names(&["n1", "n2", "n3"]), 0, Durability::Memory);
    VolumeRecord { revision: 1, state: VolumeState::Ready, chain: names(chain), clients: names(clients), ..record }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn the_last_member_and_members_of_newer_epochs_are_not_removed() {
        let mut record = test_record(&["n1", "n2"], &[]);
        assert!(remove_member(&mut record, &node("n1"), 1));
        assert_eq!((record.chain.clone(), record.epoch), (vec![node("n2")], 2));
        assert!(!remove_member(&mut record, &node("n2"), 2));
        record.chain.push(node("n1"));
        assert!(!remove_member(&mut record, &node("n1"), 1), "it failed in an earlier epoch");
    }

    #[test]
    fn only_a_client_of_a_member_becomes_the_writer() {
        let mut record = test_record(&["n1", "n2"], &["n3", "n2"]);
        assert!(!begin_term(&mut record, 0), "n3 is not a member");
        assert!(!begin_term(&mut record, 2), "there is no such client");
        assert!(begin_term(&mut record, 1) && !begin_term(&mut record, 1));
        assert_eq!((record.writer, record.term), (Some(1), 1));
    }

    #[test]
    fn a_change_of_the_writer_does_not_outdate_a_copied_tree() {
        let mut record = test_record(&["n1", "n2"], &["n1"]);
        assert!(begin_join(&mut record, &node("n3")));
        let joined = record.clone();
        assert!(begin_term(&mut record, 0));
        assert!(!outdates_tree(&joined, &record, &node("n3")));
        assert!(end_term(&mut record, 0, 1) && !outdates_tree(&joined, &record, &node("n3")));
        let mut changed = record.clone();
        assert!(remove_member(&mut changed, &node("n1"), joined.epoch));
        assert!(outdates_tree(&joined, &changed, &node("n3")) && outdates_tree(&joined, &changed, &node("n1")));
        assert!(finish_join(&mut record, &node("n3"), joined.epoch));
        assert!(!outdates_tree(&joined, &record, &node("n3")), "it is a member");
    }

    #[test]
    fn silent_nodes_leave_together_unless_no_member_is_left() {
        let mut record = test_record(&["n1", "n2", "n3"], &["n2"]);
        assert!(begin_term(&mut record, 0));
        let silent = [node("n1"), node("n2")];
        assert!(
            !remove_silent(&mut record, &silent, &node("n4"), 2),
            "a node off the chain has waited in another epoch"
        );
        assert!(remove_silent(&mut record, &silent, &node("n3"), 2), "a member");
        assert_eq!((record.chain.clone(), record.epoch, record.is_writer_fenced), (vec![node("n3")], 2, true));
        assert!(!remove_silent(&mut record, &silent, &node("n3"), 2), "they have left already");
        assert!(!remove_silent(&mut record, &[node("n3")], &node("n1"), 1), "n1 was removed before");
        assert!(end_term(&mut record, 0, 1));
        assert_eq!((record.writer, record.is_writer_fenced), (None, false));
        assert!(begin_join(&mut record, &node("n1")));
        assert!(!remove_silent(&mut record, &[node("n1"), node("n3")], &node("n2"), 3), "no member is left");
        assert!(remove_silent(&mut record, &[node("n1")], &node("n2"), 3));
        assert_eq!((record.joining, record.chain), (None, vec![node("n3")]));
    }

    #[test]
    fn a_replaced_replica_leaves_the_chain_and_its_term_ends() {
        let mut record = test_record(&["n1", "n2"], &["n1"]);
        assert!(!replace_replica(&mut record, &node("n1"), &node("n3")), "n3 is a replica");
        record.replicas.pop();
        assert!(begin_term(&mut record, 0) && replace_replica(&mut record, &node("n1"), &node("n3")));
        assert_eq!((record.replicas.clone(), record.chain.clone()), (vec![node("n3"), node("n2")], vec![node("n2")]));
        assert!(record.is_writer_fenced && begin_join(&mut record, &node("n3")));
        assert!(!replace_replica(&mut record, &node("n2"), &node("n4")), "the last live replica");
    }

    #[test]
    fn a_term_that_a_log_has_is_restored_once() {
        let mut record = test_record(&["n1", "n2"], &["n1", "n2"]);
        assert!(begin_term(&mut record, 0) && end_term(&mut record, 0, 1));
        assert!(!restore_term(&mut record, 1, 1) && !restore_term(&mut record, 7, 9), "{record:?}");
        record.clients.truncate(1);
        assert!(restore_term(&mut record, 1, 9) && !restore_term(&mut record, 0, 8));
        assert_eq!(record.clients, [node("n1"), node("n2")]);
        assert_eq!((record.writer, record.is_writer_fenced, record.term, record.epoch), (Some(1), true, 9, 2));
        assert!(end_term(&mut record, 1, 9) && begin_term(&mut record, 0) && record.term == 10);
    }

    #[test]
    fn a_replica_joins_at_the_end_and_only_in_its_epoch() {
        let mut record = test_record(&["n2", "n3"], &[]);
        assert!(!begin_join(&mut record, &node("n4")), "it has no replica");
        assert!(!begin_join(&mut record, &node("n2")), "it is a member");
        assert!(begin_join(&mut record, &node("n1")));
        let epoch = record.epoch;
        assert!(begin_join(&mut record, &node("n1")), "again, after a crash");
        assert!(!finish_join(&mut record, &node("n1"), epoch));
        let epoch = record.epoch;
        assert!(finish_join(&mut record, &node("n1"), epoch));
        assert_eq!(record.chain, [node("n2"), node("n3"), node("n1")]);
    }
}
