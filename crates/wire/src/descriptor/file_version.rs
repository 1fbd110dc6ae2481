//! Versions of files that processes have open or execute. A child gets the version at capture, or is refused.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::validate::{InvalidDescriptor, require};
use super::{Descriptor, ExtentId, FileIdentity, OpenFile};

/// Size of a digest (SHA-256), in bytes.
pub const DIGEST_BYTES: usize = 32;

/// O_ACCMODE and O_RDONLY.
const ACCESS_MODE_MASK: u32 = 3;
const READ_ONLY: u32 = 0;

/// A file that has a path, as it was at capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// The object that refers to the file.
    pub reference: FileReference,
    /// The identity of the file at capture.
    pub identity: FileIdentity,
    /// The extent in which the owner serves the file's bytes. Its length is `identity.bytes`, rounded up to whole pages.
    /// `None` if the owner does not hold the file, or if the file is too large to be copied for a child.
    pub extent: Option<ExtentId>,
}

/// An object that refers to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReference {
    /// Index of an open file description, which must be an [`OpenFile::Regular`].
    OpenFile(u32),
    /// Index of a mapped file that has a writable shared mapping.
    MappedFile(u32),
    /// The executable of the process with this number.
    Executable(u32),
}

impl Descriptor {
    /// Returns the path of a file.
    pub fn referenced_path(&self, version: &FileVersion) -> &str {
        match version.reference {
            FileReference::OpenFile(index) => match &self.open_files[index as usize] {
                OpenFile::Regular { path, .. } => path,
                _ => "",
            },
            FileReference::MappedFile(index) => &self.mapped_files[index as usize].path,
            FileReference::Executable(number) => {
                self.processes().nth(number as usize).map_or("", |process| &process.exe)
            }
        }
    }

    /// Returns the paths of files that the processes have open or mapped for writing, in ascending order. If another process
    /// also writes to such a file, its contents may change without a change of its timestamps.
    pub fn unverifiable_files(&self) -> Vec<String> {
        let is_written = |version: &&FileVersion| match version.reference {
            FileReference::OpenFile(index) => match &self.open_files[index as usize] {
                OpenFile::Regular { flags, .. } => flags & ACCESS_MODE_MASK != READ_ONLY,
                _ => false,
            },
            FileReference::MappedFile(_) => true,
            FileReference::Executable(_) => false,
        };
        let written = self.file_versions.iter().filter(is_written);
        let paths: BTreeSet<&str> = written.map(|version| self.referenced_path(version)).collect();
        paths.into_iter().map(str::to_owned).collect()
    }

    /// Number of states in [`ExtentId::FILE_STATES`]: the mapped files first, then the file versions.
    pub fn file_count(&self) -> usize {
        self.mapped_files.len() + self.file_versions.len()
    }

    pub(super) fn validate_file_versions(&self) -> Result<(), InvalidDescriptor> {
        for (index, version) in self.file_versions.iter().enumerate() {
            let is_known = match version.reference {
                FileReference::OpenFile(file) => {
                    matches!(self.open_files.get(file as usize), Some(OpenFile::Regular { .. }))
                }
                FileReference::MappedFile(file) => (file as usize) < self.mapped_files.len(),
                FileReference::Executable(number) => (number as usize) < self.process_count(),
            };
            require(is_known, || format!("file version {index} refers to a missing object"))?;
            let Some(extent) = version.extent else { continue };
            let rounded = version.identity.bytes.checked_next_multiple_of(crate::PAGE_SIZE);
            let known = self.extents.get(extent.0 as usize);
            require(known.is_some_and(|known| Some(known.bytes) == rounded), || {
                format!("file version {index}: its extent is missing or of another length")
            })?;
        }
        Ok(())
    }
}
