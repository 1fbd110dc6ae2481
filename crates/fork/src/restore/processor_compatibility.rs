//! Decides whether this node's CPU can continue a program that began on another CPU, before anything is started.
//! `ProcessorFeatures::mismatch` compares the two CPUs; this module reads the seed's origin and converts a mismatch
//! into an error.

use farfork_sys::cpu::{ExtendedState, ProcessorFeatures, ProcessorMismatch};
use farfork_wire::descriptor::Origin;

use super::{LocalNode, RestoreError};

/// Fails unless this CPU has all features of the origin's CPU, and no additional state components.
pub(super) fn check_processor(origin: &Origin, node: &LocalNode) -> Result<(), RestoreError> {
    let began_on = ProcessorFeatures {
        state: ExtendedState { xcr0: origin.xcr0, bytes: origin.xstate_bytes },
        features: origin.cpu_features,
    };
    node.processor.mismatch(&began_on).map_or(Ok(()), |mismatch| {
        Err(match mismatch {
            ProcessorMismatch::MissingState(names) => RestoreError::MissingCpuState { missing: names.join(", ") },
            ProcessorMismatch::OtherStateSize => RestoreError::OtherCpuStateSize {
                wanted_bytes: origin.xstate_bytes,
                found_bytes: node.processor.state.bytes,
            },
            ProcessorMismatch::SurplusState(names) => RestoreError::SurplusCpuState { surplus: names.join(", ") },
            ProcessorMismatch::MissingInstructions(names) => {
                RestoreError::MissingInstructions { missing: names.join(", ") }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This machine, as a seed's origin and as a node.
    fn this_machine() -> (Origin, LocalNode) {
        let node = LocalNode::detect().unwrap();
        let origin = Origin {
            node: "n1".parse().unwrap(),
            root: None,
            kernel_release: String::new(),
            parent_pid: 1,
            parent_start_ticks: 1,
            boot_id: String::new(),
            vdso_build_id: Vec::new(),
            vdso_image: Vec::new(),
            xcr0: node.processor.state.xcr0,
            xstate_bytes: node.processor.state.bytes,
            cpu_features: node.processor.features,
            monotonic_ns: 0,
            boottime_ns: 0,
        };
        (origin, node)
    }

    #[test]
    fn a_processor_with_the_same_or_more_instruction_sets_is_accepted() {
        let (mut origin, node) = this_machine();
        check_processor(&origin, &node).unwrap();
        origin.cpu_features = Default::default();
        check_processor(&origin, &node).unwrap();
    }

    #[test]
    fn each_instruction_set_that_the_node_lacks_is_named() {
        let (origin, node) = this_machine();
        let bits = (0..origin.cpu_features.len() * 32).map(|bit| (bit / 32, 1 << (bit % 32)));
        let present = bits.filter(|(word, bit)| origin.cpu_features[*word] & bit != 0);
        let mut refused = Vec::new();
        for (word, bit) in present {
            let mut lesser = node.clone();
            lesser.processor.features[word] &= !bit;
            let error = check_processor(&origin, &lesser).unwrap_err().to_string();
            refused.push(error.split(['(', ')']).nth(1).unwrap().to_owned());
        }
        assert!(refused.contains(&"popcnt".to_owned()), "every CPU that runs these tests has it: {refused:?}");
        assert!(refused.iter().all(|name| !name.contains(' ')), "one name each: {refused:?}");
    }

    #[test]
    fn registers_that_the_node_does_not_save_are_refused() {
        let (origin, node) = this_machine();
        let mut lesser = node.clone();
        lesser.processor.state.xcr0 &= 3;
        if origin.xcr0 & !3 != 0 {
            assert!(matches!(check_processor(&origin, &lesser), Err(RestoreError::MissingCpuState { .. })));
        }
        let mut other = node;
        other.processor.state.bytes -= 64;
        assert!(matches!(check_processor(&origin, &other), Err(RestoreError::OtherCpuStateSize { .. })));
    }

    /// glibc determines the size of its XSAVE area once, when a program starts. On a CPU with one more component, XSAVE
    /// overwrites the memory after this area.
    #[test]
    fn registers_that_the_seed_does_not_save_are_refused_by_name() {
        let (mut origin, node) = this_machine();
        for bit in (2..64).filter(|bit| node.processor.state.xcr0 >> bit & 1 == 1) {
            origin.xcr0 = node.processor.state.xcr0 & !(1 << bit);
            let refused = check_processor(&origin, &node);
            assert!(matches!(refused, Err(RestoreError::SurplusCpuState { .. })), "bit {bit}: {refused:?}");
        }
    }

    #[test]
    fn an_unnamed_instruction_set_is_refused() {
        let (mut origin, node) = this_machine();
        origin.cpu_features[7] |= 1 << 31;
        assert!(check_processor(&origin, &node).unwrap_err().to_string().contains("bit 31"));
    }
}
