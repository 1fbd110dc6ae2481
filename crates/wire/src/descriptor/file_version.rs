//! Versions of files that processes have open or execute. A child gets the version at capture, or is refused.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::validate::{InvalidDescriptor, require};
use super::{Descriptor, ExtentId, FileIdentity, OpenFile};

/// Bytes of a digest (SHA-256).
pub const DIGEST_BYTES: usize = 32;

/// O_ACCMODE and O_RDONLY.
const ACCESS_MODE_MASK: u32 = 3;
const READ_ONLY: u32 = 0;

/// A file that has a path, as it was at capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// What leads to it.
    pub reference: FileReference,
    /// What it was.
    pub identity: FileIdentity,
    /// The owner serves its bytes here; the length is `identity.bytes`, rounded up to whole pages. `None` where the owner does not hold the file,
    /// or it is larger than a child may be given a copy of.
    pub extent: Option<ExtentId>,
}

/// What leads to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReference {
    /// An open file description, by its index; of [`OpenFile::Regular`].
    OpenFile(u32),
    /// A shared mapping that may be written to, by the index of its file.
    MappedFile(u32),
    /// The executable of a process, by the process's number.
    Executable(u32),
}

impl Descriptor {
    /// The path that leads to a file.
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

    /// Paths of files that the processes have open for writing, or mapped so, ascending: a change by whoever does likewise need not show in their
    /// times.
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

    /// Files come after files that are mapped in what an owner tells of both ([`ExtentId::FILE_STATES`]).
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
            require(is_known, || format!("file version {index}: nothing leads to it"))?;
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
