//! Whether this node's CPU can go on with what a program began on another. Nothing is started where it cannot.
//!
//! A program looks once at what its CPU can do, and a library picks its functions by that: a child that finds less would
//! die of SIGILL at any time. Nobody can tell which instructions a program has picked, so all that it could have count.

use farfork_sys::cpu;
use farfork_wire::descriptor::Origin;

use super::{LocalNode, RestoreError};

/// Fails unless the CPU here has all that the one of the origin has.
pub(super) fn check(origin: &Origin, node: &LocalNode) -> Result<(), RestoreError> {
    // The extended state is loaded as it was saved: each of its components must be enabled here, and fit.
    if origin.xcr0 & !node.xcr0 != 0 || origin.xstate_bytes > node.xstate_bytes {
        return Err(RestoreError::Cpu {
            wanted: origin.xcr0,
            wanted_bytes: origin.xstate_bytes,
            found: node.xcr0,
            found_bytes: node.xstate_bytes,
        });
    }
    let mut missing = origin.cpu_features;
    missing.iter_mut().zip(node.cpu_features).for_each(|(wanted, found)| *wanted &= !found);
    if missing.iter().all(|word| *word == 0) {
        return Ok(());
    }
    Err(RestoreError::Instructions { missing: cpu::feature_names(&missing).join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This machine, as a seed says it and as a node does.
    fn this_machine() -> (Origin, LocalNode) {
        let node = LocalNode::detect().unwrap();
        let origin = Origin {
            node: "n1".parse().unwrap(),
            kernel_release: String::new(),
            parent_pid: 1,
            parent_start_ticks: 1,
            boot_id: String::new(),
            vdso_build_id: Vec::new(),
            vdso_image: Vec::new(),
            xcr0: node.xcr0,
            xstate_bytes: node.xstate_bytes,
            cpu_features: node.cpu_features,
            monotonic_ns: 0,
            boottime_ns: 0,
        };
        (origin, node)
    }

    #[test]
    fn a_node_with_the_same_processor_or_a_greater_one_will_do() {
        let (mut origin, node) = this_machine();
        check(&origin, &node).unwrap();
        origin.cpu_features = Default::default();
        check(&origin, &node).unwrap();
    }

    #[test]
    fn each_instruction_set_that_the_node_lacks_is_named() {
        let (origin, node) = this_machine();
        let bits = (0..origin.cpu_features.len() * 32).map(|bit| (bit / 32, 1 << (bit % 32)));
        let present = bits.filter(|(word, bit)| origin.cpu_features[*word] & bit != 0);
        let mut refused = Vec::new();
        for (word, bit) in present {
            let mut lesser = node.clone();
            lesser.cpu_features[word] &= !bit;
            let error = check(&origin, &lesser).unwrap_err().to_string();
            refused.push(error.split(['(', ')']).nth(1).unwrap().to_owned());
        }
        assert!(refused.contains(&"popcnt".to_owned()), "every CPU that runs these tests has it: {refused:?}");
        assert!(refused.iter().all(|name| !name.contains(' ')), "one name each: {refused:?}");
    }

    #[test]
    fn registers_that_the_node_does_not_save_are_refused() {
        let (origin, node) = this_machine();
        let lesser = LocalNode { xcr0: node.xcr0 & 3, ..node.clone() };
        if origin.xcr0 & !3 != 0 {
            assert!(matches!(check(&origin, &lesser), Err(RestoreError::Cpu { .. })));
        }
        let lesser = LocalNode { xstate_bytes: node.xstate_bytes - 64, ..node };
        assert!(matches!(check(&origin, &lesser), Err(RestoreError::Cpu { .. })));
    }

    #[test]
    fn what_has_no_name_here_is_refused_too() {
        let (mut origin, node) = this_machine();
        origin.cpu_features[7] |= 1 << 31;
        assert!(check(&origin, &node).unwrap_err().to_string().contains("bit 31"));
    }
}
