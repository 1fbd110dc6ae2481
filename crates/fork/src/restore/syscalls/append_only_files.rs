//! Truncates files to which a process only appends: the child's private copy gets the length at capture, because the
//! parent may have appended to the file since.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileReference, FileVersion, OpenFile};
use rustix::fs::OFlags;

use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_OPEN_FILE;
use super::super::process_tree::TreePosition;
use super::{SyscallBuilder, abi, value};
use crate::file_use::{FileUse, collect_file_uses};

/// Truncates each append-only file that is private to the child. The child already has it open.
pub(super) fn truncate_append_only_files(
    descriptor: &Descriptor,
    objects: &PassedObjects,
    place: &TreePosition<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) {
    let is_open = |version: &&FileVersion| matches!(version.reference, FileReference::OpenFile(_));
    let mut versions = descriptor.file_versions.iter().filter(is_open).peekable();
    if versions.peek().is_none() {
        return;
    }
    let uses = collect_file_uses(descriptor);
    for version in versions {
        let FileReference::OpenFile(index) = version.reference else { continue };
        let OpenFile::Regular { path, flags, .. } = &descriptor.open_files[index as usize] else { continue };
        let can_write = OFlags::from_bits_retain(*flags) & OFlags::RWMODE != OFlags::RDONLY;
        let used = uses.get(&FileUse::file_key(&version.identity)).copied().unwrap_or_default();
        let entry = descriptor.file_descriptors.iter().find(|entry| entry.open_file == index);
        let Some(entry) = entry.filter(|_| can_write && !used.is_read && place.fd_source(index).is_none()) else {
            continue;
        };
        // Files on a volume are never private to the child.
        let is_own = !descriptor.is_on_volume(path) && objects.is_private_path(path);
        if is_own && objects.has_grown(path, &version.identity) {
            syscall_builder.set_step(STEP_OPEN_FILE, entry.number);
            syscall_builder.call_expecting(0, abi::FTRUNCATE, &[value(entry.number), value(version.identity.bytes)]);
        }
    }
}
