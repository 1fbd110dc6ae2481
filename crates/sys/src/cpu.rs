//! What the CPU saves with a thread (Intel SDM volume 1, chapter 13), and which instructions programs may use on it.

mod features;

pub use features::{feature_names, features};

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// The extended state that the kernel has enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedState {
    /// State components, as bits of XCR0.
    pub xcr0: u64,
    /// Bytes that an XSAVE area needs for all of them.
    pub bytes: u32,
}

/// Reads what this machine has; `None` on a CPU without XSAVE, which no 64-bit CPU since 2013 lacks.
pub fn extended_state() -> Option<ExtendedState> {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return None;
    }
    // SAFETY: OSXSAVE says that the kernel has enabled XGETBV for user space.
    let xcr0 = unsafe { read_xcr0() };
    Some(ExtendedState { xcr0, bytes: __cpuid_count(0xd, 0).ebx })
}

/// XCR0.
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
    fn this_machine_has_at_least_sse() {
        let state = super::extended_state().unwrap();
        assert_eq!(state.xcr0 & 3, 3);
        assert!(state.bytes >= 576);
    }
}
