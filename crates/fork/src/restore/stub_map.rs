//! The memory map of a waiting stub, or of a zygote: the ranges that the region must not overlap, and the address of
//! the vdso.

use farfork_sys::process::{self, MapEntry};
use farfork_wire::descriptor::{Mapping, SpecialMapping, USER_SPACE_END};

use super::RestoreError;

/// The ranges that a stub has mapped.
#[derive(Debug)]
pub(super) struct StubMap {
    ranges: Vec<(u64, u64)>,
    /// The kernel's own mappings (vdso, vvar), if they must be moved.
    special_mappings: Vec<MapEntry>,
}

impl StubMap {
    /// Reads the map of a stub.
    ///
    /// # Errors
    /// [`RestoreError::StubExited`] when the stub has ended.
    pub(super) fn read(pid: i32) -> Result<Self, RestoreError> {
        let mut entries = process::read_maps(pid).map_err(RestoreError::StubIo)?;
        // The map of a process that has ended is empty, until the process is reaped.
        if entries.is_empty() {
            return Err(RestoreError::StubExited);
        }
        // [vsyscall] is above user space, and cannot be unmapped.
        entries.retain(|entry| entry.end <= USER_SPACE_END);
        let ranges = entries.iter().map(|entry| (entry.start, entry.end)).collect();
        entries.retain(|entry| entry.path.starts_with(b"["));
        Ok(Self { ranges, special_mappings: entries })
    }

    /// Returns the map of a zygote with these mappings, and its restorer at `region`: start and length.
    pub(super) fn from_zygote(mappings: &[Mapping], region: (u64, u64)) -> Self {
        let mapped = mappings.iter().map(|mapping| (mapping.start, mapping.end));
        Self { ranges: mapped.chain([(region.0, region.0 + region.1)]).collect(), special_mappings: Vec::new() }
    }

    /// Returns all ranges.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().copied()
    }

    /// Address range of the kernel's mapping of this kind.
    pub(super) fn special_mapping(&self, kind: SpecialMapping) -> Option<(u64, u64)> {
        let name: &[u8] = match kind {
            SpecialMapping::Vdso => b"[vdso]",
            SpecialMapping::Vvar => b"[vvar]",
            SpecialMapping::VvarVclock => b"[vvar_vclock]",
        };
        self.special_mappings.iter().find(|entry| entry.path == name).map(|entry| (entry.start, entry.end))
    }
}
