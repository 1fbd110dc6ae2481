//! The address space of a waiting stub: what its fork must get out of the way, and where its vdso is.

use std::io;

use farfork_sys::process::{self, MapEntry};
use farfork_wire::descriptor::{SpecialMapping, USER_SPACE_END};

/// The ranges that a stub has mapped.
#[derive(Debug)]
pub(super) struct StubMap {
    entries: Vec<MapEntry>,
}

impl StubMap {
    /// Reads it.
    ///
    /// # Errors
    /// When the stub has ended.
    pub(super) fn read(pid: i32) -> io::Result<Self> {
        let mut entries = process::maps(pid)?;
        // [vsyscall] lies beyond what can be unmapped.
        entries.retain(|entry| entry.end <= USER_SPACE_END);
        Ok(Self { entries })
    }

    /// Every range.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries.iter().map(|entry| (entry.start, entry.end))
    }

    /// Where the kernel's mapping of this kind is.
    pub(super) fn special(&self, kind: SpecialMapping) -> Option<(u64, u64)> {
        let name: &[u8] = match kind {
            SpecialMapping::Vdso => b"[vdso]",
            SpecialMapping::Vvar => b"[vvar]",
            SpecialMapping::VvarVclock => b"[vvar_vclock]",
        };
        self.entries.iter().find(|entry| entry.path == name).map(|entry| (entry.start, entry.end))
    }
}
