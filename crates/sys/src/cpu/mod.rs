//! The extended state that XSAVE saves for a thread (Intel SDM volume 1, chapter 13), and the instructions that programs may
//! use.

mod features;
mod processor;

pub use features::{FEATURE_WORDS, feature_names, features};
pub use processor::{ProcessorFeatures, ProcessorMismatch};

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// The extended state that the kernel has enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedState {
    /// State components, as bits of XCR0.
    pub xcr0: u64,
    /// Size of a thread's state without [`DYNAMIC_COMPONENTS`], in bytes, as [`default_state_bytes`] computes it.
    pub bytes: u32,
}

/// Reads the extended state of this machine; `None` on a CPU without XSAVE. Every 64-bit CPU since 2013 has it.
pub fn extended_state() -> Option<ExtendedState> {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return None;
    }
    // SAFETY: OSXSAVE says that the kernel has enabled XGETBV for user space.
    let xcr0 = unsafe { read_xcr0() };
    Some(ExtendedState { xcr0, bytes: default_state_bytes(xcr0) as u32 })
}

/// State components for which a thread gets room only after it has requested them (arch_prctl(2), ARCH_REQ_XCOMP_PERM) and
/// used them: the tile data of AMX. See the kernel's `Documentation/arch/x86/xstate.rst`.
pub const DYNAMIC_COMPONENTS: u64 = 1 << 18;

/// Returns the size of an XSAVE area in the standard format that ends with the last of `components`, in bytes.
/// [`DYNAMIC_COMPONENTS`] are not counted.
///
/// This is the largest extended state that rt_sigreturn(2) loads into a thread without dynamic components. From a larger
/// state the kernel loads only the x87 and SSE registers, and reports no error.
pub fn default_state_bytes(components: u64) -> usize {
    const LEGACY_AND_HEADER_BYTES: usize = 576;
    let components = components & !DYNAMIC_COMPONENTS;
    let ends = (2..63).filter(|component| components >> component & 1 == 1).map(|component| {
        let layout = __cpuid_count(0xd, component);
        layout.ebx as usize + layout.eax as usize
    });
    ends.max().unwrap_or(0).max(LEGACY_AND_HEADER_BYTES)
}

/// Reads XCR0.
///
/// # Safety
/// The kernel must have enabled XSAVE (CPUID.1:ECX.OSXSAVE).
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: the caller has checked OSXSAVE.
    unsafe { _xgetbv(0) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_sse() {
        let state = super::extended_state().unwrap();
        assert_eq!(state.xcr0 & 3, 3);
        assert!(state.bytes >= 576);
    }

    #[test]
    fn dynamic_state_components_are_excluded() {
        assert_eq!(super::default_state_bytes(3), 576);
        let state = super::extended_state().unwrap();
        assert_eq!(state.bytes as usize, super::default_state_bytes(state.xcr0 | super::DYNAMIC_COMPONENTS));
        let all_bytes = std::arch::x86_64::__cpuid_count(0xd, 0).ebx;
        assert_eq!(state.bytes < all_bytes, state.xcr0 & super::DYNAMIC_COMPONENTS != 0, "{state:?} of {all_bytes}");
    }
}
