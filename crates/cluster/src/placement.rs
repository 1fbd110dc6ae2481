//! Placement: chooses a node for each of N children. Pure; `farfork-node` supplies the candidates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farfork_sys::cpu::ProcessorFeatures;
use farfork_wire::NodeName;

/// A node that can take children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementCandidate {
    /// The node.
    pub node: NodeName,
    /// Number of children that run on the node now.
    pub children: u32,
    /// The features of its processor, if the node reports them.
    pub processor: Option<ProcessorFeatures>,
}

/// Returns the candidates whose processor can continue a program that started on a processor `origin`. Keeps a candidate if
/// its processor or `origin` is unknown.
pub fn filter_by_processor(
    origin: Option<&ProcessorFeatures>,
    candidates: Vec<PlacementCandidate>,
) -> Vec<PlacementCandidate> {
    let Some(origin) = origin else { return candidates };
    let is_able =
        |candidate: &PlacementCandidate| candidate.processor.as_ref().is_none_or(|own| own.mismatch(origin).is_none());
    candidates.into_iter().filter(is_able).collect()
}

/// Assigns `count` children to the nodes in turn, as a user who names nodes expects.
///
/// Returns one node for each child; nothing if there is no node.
pub fn place_round_robin(nodes: &[NodeName], count: usize) -> Vec<NodeName> {
    nodes.iter().cycle().take(count).cloned().collect()
}

/// Assigns each of `count` children to the node with the fewest children, including those assigned before. Among equal
/// nodes, chooses by name.
///
/// Returns one node for each child; nothing if there is no node.
pub fn place_least_loaded(candidates: &[PlacementCandidate], count: usize) -> Vec<NodeName> {
    let mut by_load: BinaryHeap<_> = candidates.iter().map(|c| Reverse((c.children, &c.node))).collect();
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let Some(Reverse((children, node))) = by_load.pop() else {
            break;
        };
        chosen.push(node.clone());
        by_load.push(Reverse((children.saturating_add(1), node)));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::{PlacementCandidate, filter_by_processor, place_least_loaded, place_round_robin};
    use farfork_sys::cpu::{ExtendedState, ProcessorFeatures};
    use farfork_wire::NodeName;

    fn nodes(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| NodeName::new(name).unwrap()).collect()
    }

    #[test]
    fn named_nodes_take_turns() {
        assert_eq!(place_round_robin(&nodes(&["b", "a"]), 5), nodes(&["b", "a", "b", "a", "b"]));
        assert!(place_round_robin(&[], 3).is_empty());
    }

    #[test]
    fn the_emptier_node_fills_up_first() {
        let candidate =
            |name: &str, children| PlacementCandidate { node: NodeName::new(name).unwrap(), children, processor: None };
        let chosen = place_least_loaded(&[candidate("a", 3), candidate("b", 1)], 5);
        assert_eq!(chosen, nodes(&["b", "b", "a", "b", "a"]));
        assert!(place_least_loaded(&[], 2).is_empty());
    }

    #[test]
    fn nodes_with_an_incompatible_processor_get_no_children() {
        let processor =
            |xcr0| ProcessorFeatures { state: ExtendedState { xcr0, bytes: 832 }, features: Default::default() };
        let candidate =
            |name: &str, processor| PlacementCandidate { node: NodeName::new(name).unwrap(), children: 0, processor };
        let all = vec![
            candidate("earlier-release", None),
            candidate("greater", Some(processor(0x21f))),
            candidate("lesser", Some(processor(0x3))),
            candidate("same", Some(processor(0x7))),
        ];
        let chosen = |origin: Option<&ProcessorFeatures>| -> Vec<NodeName> {
            filter_by_processor(origin, all.clone()).into_iter().map(|candidate| candidate.node).collect()
        };
        assert_eq!(chosen(Some(&processor(0x7))), nodes(&["earlier-release", "same"]));
        assert_eq!(chosen(None).len(), all.len());
    }
}
