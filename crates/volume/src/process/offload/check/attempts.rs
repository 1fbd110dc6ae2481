//! Repeats the comparison of a check when the chain has changed during it. The caller provides the comparison.

use farfork_cluster::catalog::VolumeName;
use farfork_wire::NodeName;

/// Maximum number of comparisons of one check. If the chain changes during each of them, a node keeps leaving and joining.
const ATTEMPTS_MAX: usize = 3;

/// Why one attempt to compare the replicas has failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// The chain has changed. The text describes the change.
    ChainChanged(String),
    /// Another attempt would fail, too.
    Failed(String),
}

/// Repeats a comparison until the chain does not change during it.
pub(super) fn repeat_attempts<T>(
    name: &VolumeName,
    mut attempt: impl FnMut() -> Result<T, AttemptError>,
) -> Result<T, String> {
    let mut changes = Vec::new();
    while changes.len() < ATTEMPTS_MAX {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(AttemptError::Failed(reason)) => return Err(reason),
            Err(AttemptError::ChainChanged(change)) => {
                tracing::info!(%name, change, "the chain has changed: the replicas are compared again");
                changes.push(change);
            }
        }
    }
    let changes = changes.join("; ");
    Err(format!(
        "volume {name}: the chain has changed during each of {ATTEMPTS_MAX} comparisons: {changes}; \
         see `farfork volume status {name}`, and check again when its nodes stay live"
    ))
}

/// Describes the change of a chain, with the names of the nodes.
pub(super) fn describe_chain_change(before: &[NodeName], after: &[NodeName]) -> String {
    let missing_in = |chain: &[NodeName], node: &&NodeName| !chain.contains(node);
    let left = before.iter().filter(|node| missing_in(after, node)).map(|node| format!("node {node} has left"));
    let joined = after.iter().filter(|node| missing_in(before, node)).map(|node| format!("node {node} has joined"));
    let changes: Vec<String> = left.chain(joined).collect();
    if changes.is_empty() { "a node has left and has joined again".to_owned() } else { changes.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| NodeName::new(name).unwrap()).collect()
    }

    #[test]
    fn only_a_change_of_the_chain_is_a_reason_to_compare_again() {
        let name = VolumeName::new("data").unwrap();
        let changed = || Err(AttemptError::ChainChanged("node n3 has left".to_owned()));
        let mut outcomes = vec![Ok(7), changed(), changed()];
        assert_eq!(repeat_attempts(&name, || outcomes.pop().unwrap()), Ok(7));
        let mut outcomes = vec![Ok(7), Err(AttemptError::Failed("no catalog".to_owned()))];
        assert_eq!(repeat_attempts(&name, || outcomes.pop().unwrap()), Err("no catalog".to_owned()));
        let mut count = 0;
        let always: Result<u32, String> = repeat_attempts(&name, || {
            count += 1;
            changed().map(|never: u32| never)
        });
        let text = always.unwrap_err();
        assert!(count == ATTEMPTS_MAX && text.contains("volume data") && text.contains("node n3 has left"), "{text}");
    }

    #[test]
    fn a_chain_change_names_the_nodes() {
        let before = nodes(&["n1", "n2", "n3"]);
        assert_eq!(describe_chain_change(&before, &nodes(&["n1", "n3"])), "node n2 has left");
        assert_eq!(describe_chain_change(&before, &nodes(&["n1", "n2", "n3", "n4"])), "node n4 has joined");
        assert_eq!(describe_chain_change(&before, &nodes(&["n1", "n3", "n2"])), "a node has left and has joined again");
    }
}
