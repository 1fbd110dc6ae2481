//! The files of a descriptor that a node opens by path (`SeedFile`), and how the seed's processes use each (`FileUse`).

use std::collections::BTreeMap;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileIdentity, FileReference, FileVersion, OpenFile};
use rustix::fs::OFlags;

/// A file of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SeedFile<'a> {
    Mapped { index: u32, path: &'a str, identity: &'a FileIdentity },
    Version { index: u32, path: &'a str, version: &'a FileVersion },
}

impl<'a> SeedFile<'a> {
    pub(crate) fn iter(descriptor: &'a Descriptor) -> impl Iterator<Item = Self> {
        let mapped = (0..).zip(&descriptor.mapped_files);
        let mapped = mapped.map(|(index, file)| Self::Mapped { index, path: &file.path, identity: &file.identity });
        let versions = (0..).zip(&descriptor.file_versions).map(|(index, version)| Self::Version {
            index,
            path: descriptor.referenced_path(version),
            version,
        });
        mapped.chain(versions)
    }

    pub(crate) fn path(&self) -> &'a str {
        match self {
            Self::Mapped { path, .. } | Self::Version { path, .. } => path,
        }
    }

    pub(crate) fn identity(&self) -> &'a FileIdentity {
        match self {
            Self::Mapped { identity, .. } => identity,
            Self::Version { version, .. } => &version.identity,
        }
    }

    /// Index of the file in the owner's reply (`FILE_STATES`).
    pub(crate) fn state_index(&self, descriptor: &Descriptor) -> usize {
        match *self {
            Self::Mapped { index, .. } => index as usize,
            Self::Version { index, .. } => descriptor.mapped_files.len() + index as usize,
        }
    }
}

/// How the processes of a seed use a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileUse {
    /// Executed, mapped, or readable through an open file without O_APPEND.
    pub(crate) is_read: bool,
    /// Readable through an open file with O_APPEND.
    pub(crate) is_read_and_appended: bool,
    /// Pages of a private mapping of the file were written.
    pub(crate) has_written_pages: bool,
    /// Open or mapped for writing.
    pub(crate) is_written: bool,
}

/// Device and inode.
pub(crate) type FileKey = (u64, u64);

impl FileUse {
    /// The key that identifies a file on its machine.
    pub(crate) fn file_key(identity: &FileIdentity) -> FileKey {
        (identity.device, identity.inode)
    }
}

/// Returns the uses of all files of a descriptor, by device and inode.
pub(crate) fn collect_file_uses(descriptor: &Descriptor) -> BTreeMap<FileKey, FileUse> {
    let mut uses: BTreeMap<FileKey, FileUse> = BTreeMap::new();
    for file in SeedFile::iter(descriptor) {
        let entry = uses.entry(FileUse::file_key(file.identity())).or_default();
        let SeedFile::Version { version: FileVersion { reference: FileReference::OpenFile(index), .. }, .. } = file
        else {
            entry.is_read = true;
            if let SeedFile::Mapped { index, .. } = file {
                entry.has_written_pages |= descriptor.mapped_files[index as usize].has_written_pages;
            }
            let user = match file {
                SeedFile::Version { version, .. } => Some(version.reference),
                SeedFile::Mapped { .. } => None,
            };
            entry.is_written |= matches!(user, Some(FileReference::MappedFile(_)));
            continue;
        };
        let OpenFile::Regular { flags, .. } = &descriptor.open_files[*index as usize] else { continue };
        let flags = OFlags::from_bits_retain(*flags);
        let (can_read, can_write) =
            (flags & OFlags::RWMODE != OFlags::WRONLY, flags & OFlags::RWMODE != OFlags::RDONLY);
        let appends = can_write && flags.contains(OFlags::APPEND);
        entry.is_read |= can_read && !appends;
        entry.is_read_and_appended |= can_read && appends;
        entry.is_written |= can_write;
    }
    uses
}
