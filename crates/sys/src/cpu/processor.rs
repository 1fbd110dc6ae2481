//! Decides whether a program that started on one processor can continue on another. Pure.

use super::{ExtendedState, FEATURE_WORDS, extended_state, feature_names, features};

// A program queries the features of its processor once, and relies on them until it ends. A library selects its functions by
// these features, and the dynamic linker reserves as much stack as XSAVE needs. A processor with fewer instruction sets or
// state components kills such a program. On a processor with more state components, its XSAVE writes beyond the reserved
// bytes.

/// The processor features that programs can query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessorFeatures {
    /// The enabled state components, and the number of bytes that an XSAVE of all of them writes.
    pub state: ExtendedState,
    /// Instruction sets, as [`features()`] reads them.
    pub features: [u32; FEATURE_WORDS],
}

/// Why a program cannot continue here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessorMismatch {
    /// State components, by name, that the program's registers need and that are not enabled here.
    MissingState(Vec<String>),
    /// The state has the same components, and another size.
    OtherStateSize,
    /// State components, by name, for which the buffer of the program's own XSAVE has no room.
    SurplusState(Vec<String>),
    /// Instruction sets, by name, that the program may use and this processor lacks.
    MissingInstructions(Vec<String>),
}

/// Names of the state components, by their bit in XCR0 (Intel SDM volume 1, 13.1).
const COMPONENTS: [&str; 20] = [
    "x87", "SSE", "AVX", "MPX", "MPX", "AVX-512", "AVX-512", "AVX-512", "", "PKRU", "", "", "", "", "", "", "", "AMX",
    "AMX", "APX",
];

impl ProcessorFeatures {
    /// Reads the features of this machine; `None` if the kernel has not enabled XSAVE.
    pub fn detect() -> Option<Self> {
        Some(Self { state: extended_state()?, features: features() })
    }

    /// Returns why a program that started on the processor `origin` cannot continue on this one; `None` if it can.
    ///
    /// XCR0 has only components that XSAVE writes for user programs, and no surplus component is harmless:
    ///
    /// - XSAVE without compaction (XSAVE, XSAVEOPT) writes each surplus component to a fixed place. That is usually after
    ///   the components of the origin.
    /// - XSAVEC and XSAVES move the components that follow a surplus one.
    /// - The kernel saves all components on a program's signal stack.
    ///
    /// XSAVE writes a component even in its initial state, so a component that needs permission (AMX) counts as well. The
    /// vendor chooses the order of the components: if two processors have the same components but different sizes, the
    /// components are at different offsets.
    pub fn mismatch(&self, origin: &Self) -> Option<ProcessorMismatch> {
        let missing = origin.state.xcr0 & !self.state.xcr0;
        if missing != 0 {
            return Some(ProcessorMismatch::MissingState(component_names(missing)));
        }
        let surplus = self.state.xcr0 & !origin.state.xcr0;
        if surplus != 0 {
            return Some(ProcessorMismatch::SurplusState(component_names(surplus)));
        }
        if origin.state.bytes != self.state.bytes {
            return Some(ProcessorMismatch::OtherStateSize);
        }
        let mut missing = origin.features;
        missing.iter_mut().zip(self.features).for_each(|(wanted, found)| *wanted &= !found);
        let lacks_some = missing.iter().any(|word| *word != 0);
        lacks_some.then(|| ProcessorMismatch::MissingInstructions(feature_names(&missing)))
    }
}

/// Names of state components, each once. A component without a name is named by its bit.
fn component_names(components: u64) -> Vec<String> {
    let present = (0..64).filter(|bit| components >> bit & 1 == 1);
    let mut names: Vec<String> = present.map(component_name).collect();
    names.dedup();
    names
}

fn component_name(bit: usize) -> String {
    match COMPONENTS.get(bit) {
        Some(name) if !name.is_empty() => (*name).to_owned(),
        _ => format!("XCR0 bit {bit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Existing processors: XCR0, and the size from CPUID.(EAX=0DH, ECX=0):EBX.
    const RECORDED: [(&str, u64, u32); 8] = [
        ("SSE alone, as a small virtual machine", 0x3, 576),
        ("AVX (Haswell, or QEMU's as it is often configured)", 0x7, 832),
        ("AVX and MPX (Skylake client)", 0x1f, 1088),
        ("AVX and PKRU (Alder Lake)", 0x207, 2696),
        ("AVX, MPX and PKRU (QEMU's `max` by emulation)", 0x21f, 2696),
        ("AVX-512 and PKRU (Ice Lake server)", 0x2e7, 2696),
        ("AVX-512 and PKRU of another vendor (Zen 4)", 0x2e7, 2440),
        ("AVX-512, PKRU and AMX (Sapphire Rapids)", 0x602e7, 11008),
    ];

    fn processor(xcr0: u64, bytes: u32) -> ProcessorFeatures {
        ProcessorFeatures { state: ExtendedState { xcr0, bytes }, features: Default::default() }
    }

    #[test]
    fn a_program_continues_only_on_processors_with_equal_xsave_state() {
        for (origin_name, origin_xcr0, origin_bytes) in RECORDED {
            let origin = processor(origin_xcr0, origin_bytes);
            for (name, xcr0, bytes) in RECORDED {
                let found = processor(xcr0, bytes).mismatch(&origin);
                let is_same = (origin_xcr0, origin_bytes) == (xcr0, bytes);
                assert_eq!(found.is_none(), is_same, "from {origin_name} to {name}: {found:?}");
            }
        }
    }

    #[test]
    fn each_additional_state_component_is_named() {
        let lesser = processor(0x7, 832);
        let named = |xcr0: u64| processor(xcr0, 2696).mismatch(&lesser);
        let surplus = |names: &[&str]| {
            Some(ProcessorMismatch::SurplusState(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        assert_eq!(named(0x21f), surplus(&["MPX", "PKRU"]));
        assert_eq!(named(0x602e7), surplus(&["AVX-512", "PKRU", "AMX"]));
        for bit in 3..64 {
            let found = named(0x7 | 1 << bit);
            assert!(
                matches!(&found, Some(ProcessorMismatch::SurplusState(names)) if names.len() == 1),
                "{bit}: {found:?}"
            );
        }
    }

    #[test]
    fn additional_instruction_sets_with_equal_state_are_accepted() {
        let (mut greater, lesser) = (processor(0x7, 832), processor(0x7, 832));
        greater.features[0] = 1 << 23;
        assert_eq!(greater.mismatch(&lesser), None);
        let missing = ProcessorMismatch::MissingInstructions(vec!["popcnt".to_owned()]);
        assert_eq!(lesser.mismatch(&greater), Some(missing));
    }

    #[test]
    fn this_machine_matches_itself() {
        let this = ProcessorFeatures::detect().unwrap();
        assert_eq!(this.mismatch(&this), None);
    }
}
