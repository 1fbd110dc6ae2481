//! Truncates files to which a process only appends: the child's private copy gets the length and the modification time at
//! capture, because the parent may append to the file until the child has opened it.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileReference, FileVersion, OpenFile};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::STEP_OPEN_FILE;
use super::super::process_tree::TreePosition;
use super::{SyscallBuilder, abi, value};
use crate::file_identity::CHANGED_MARKER_NS;
use crate::file_use::{FileUse, collect_file_uses};

/// Truncates each append-only file that is private to the child. The child already has it open.
pub(super) fn truncate_append_only_files(
    descriptor: &Descriptor,
    objects: &PassedObjects,
    place: &TreePosition<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let is_open = |version: &&FileVersion| matches!(version.reference, FileReference::OpenFile(_));
    let mut versions = descriptor.file_versions.iter().filter(is_open).peekable();
    if versions.peek().is_none() {
        return Ok(());
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
        if is_own && objects.may_have_grown(path, &version.identity) {
            syscall_builder.set_step(STEP_OPEN_FILE, entry.number);
            syscall_builder.call_expecting(0, abi::FTRUNCATE, &[value(entry.number), value(version.identity.bytes)]);
            restore_modification_time(entry.number, version.identity.modified_ns, syscall_builder)?;
        }
    }
    Ok(())
}

/// ftruncate(2) has set the modification time of an open file. Only the owner of the file may set it back.
fn restore_modification_time(
    fd: u32,
    modified_ns: i64,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    const UTIME_OMIT: u64 = (1 << 30) - 2;
    const NS_PER_SECOND: i64 = 1_000_000_000;
    if modified_ns == CHANGED_MARKER_NS {
        return Ok(());
    }
    let [seconds, nanoseconds] = [modified_ns.div_euclid(NS_PER_SECOND), modified_ns.rem_euclid(NS_PER_SECOND)];
    let times = [0, UTIME_OMIT, seconds.cast_unsigned(), nanoseconds.cast_unsigned()];
    let times = syscall_builder.words_argument(&times)?;
    syscall_builder.call_may_fail(abi::UTIMENSAT, &[value(fd), value(0_u32), times, value(0_u32)]);
    Ok(())
}
