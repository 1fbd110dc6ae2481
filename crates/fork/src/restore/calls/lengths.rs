//! Files that a process only adds to: a child's own copy has the length of the capture, whatever its parent has added since.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileUser, FileVersion, OpenFile};
use rustix::fs::OFlags;

use super::super::layout::STEP_OPEN_FILE;
use super::super::objects::Objects;
use super::super::tree::Place;
use super::{Script, number, value};
use crate::file_use::{FileUse, uses};

/// Cuts each such file of the child's own, which the child has open by now.
pub(super) fn cut(descriptor: &Descriptor, objects: &Objects, place: &Place<'_>, script: &mut Script<'_>) {
    let is_open = |version: &&FileVersion| matches!(version.user, FileUser::OpenFile(_));
    let mut versions = descriptor.file_versions.iter().filter(is_open).peekable();
    if versions.peek().is_none() {
        return;
    }
    let uses = uses(descriptor);
    for version in versions {
        let FileUser::OpenFile(index) = version.user else { continue };
        let OpenFile::Regular { path, flags, .. } = &descriptor.open_files[index as usize] else { continue };
        let can_write = OFlags::from_bits_retain(*flags) & OFlags::RWMODE != OFlags::RDONLY;
        let used = uses.get(&FileUse::number(&version.identity)).copied().unwrap_or_default();
        let entry = descriptor.file_descriptors.iter().find(|entry| entry.open_file == index);
        let Some(entry) = entry.filter(|_| can_write && !used.is_read && place.taken_from(index).is_none()) else {
            continue;
        };
        if objects.is_longer_than(path, &version.identity) && objects.is_private(path) {
            script.about(STEP_OPEN_FILE, entry.number);
            script.gives(0, number::FTRUNCATE, &[value(entry.number), value(version.identity.bytes)]);
        }
    }
}
