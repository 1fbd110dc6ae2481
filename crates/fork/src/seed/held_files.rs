//! Files that an owner holds for a seed: their states since the capture, and their contents.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{PoisonError, RwLockReadGuard};

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{ExtentId, ExtentSource, FileIdentity, FileState};

use super::{Seed, SeedMemory, SeedTemplate};
use crate::capture::HeldFile;
use crate::file_identity::{self, CHANGED_MARKER_NS};

/// Maximum number of bytes of files without a path that one seed keeps on disk: as many as for copies of shared memory.
const HELD_BYTES_MAX: u64 = 16 << 30;

/// The disk space of the owner that a seed's held files use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldFileUsage {
    /// Number of held files.
    pub files: u64,
    /// Bytes of held files without a path.
    pub bytes: u64,
}

/// A held file cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("file {path}, which the seed's processes had open, {cause}")]
pub(super) struct HeldFileError {
    /// Index of the file version.
    pub(super) version: u32,
    path: String,
    pub(super) cause: HeldFileFailure,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HeldFileFailure {
    #[error("was changed in place since the seed was prepared")]
    Changed,
    #[error("is no longer held for its children")]
    NotHeld,
    #[error("cannot be read: {0}")]
    Read(io::Error),
}

impl From<HeldFileError> for io::Error {
    fn from(error: HeldFileError) -> Self {
        Self::other(error)
    }
}

impl Seed {
    /// Returns the state of each file: first the mapped files, then the file versions.
    pub(super) fn file_states(&self) -> Vec<FileState> {
        let seed_template = match &self.memory {
            SeedMemory::Template(seed_template) => seed_template,
            // Files in an image were read when the image was written, and were unchanged then.
            SeedMemory::Image(_) => return vec![FileState::Unchanged; self.descriptor.file_count()],
        };
        let mapped = self.descriptor.mapped_files.iter().map(|file| {
            let Some(template) = seed_template.processes.get(file.owner_range.process as usize) else {
                return FileState::NotHeld;
            };
            let link =
                format!("/proc/{}/map_files/{:x}-{:x}", template.pid, file.owner_range.start, file.owner_range.end);
            // If the mapping has written pages, equal bytes are not enough: a truncation in between removes these
            // pages.
            let then = FileIdentity {
                digest: file.identity.digest.filter(|_| !file.has_written_pages),
                ..file.identity.clone()
            };
            file_state(&then, file_identity::stat_path_identity(Path::new(&link)), || File::open(&link))
        });
        let files = seed_template.read_held_files();
        let versions = (0..).zip(&self.descriptor.file_versions).map(|(index, version)| {
            let holder = version.extent.and_then(|extent| self.version_of_extent(extent)).unwrap_or(index);
            match &files[holder as usize] {
                Some(file) => file_state(&version.identity, file_identity::stat_identity(file), || file.reopen()),
                None => FileState::NotHeld,
            }
        });
        mapped.chain(versions).collect()
    }

    /// Returns the version whose file an extent serves. Several versions may have the same file.
    fn version_of_extent(&self, extent: ExtentId) -> Option<u32> {
        match self.descriptor.extents.get(extent.0 as usize)?.source {
            ExtentSource::File { version } => Some(version),
            _ => None,
        }
    }

    /// Releases the held files without a path if they use more space than one seed may keep. Forks that need these
    /// files are then refused.
    pub fn release_excess_files(&self) {
        let SeedMemory::Template(seed_template) = &self.memory else { return };
        if self.held_file_usage().bytes <= HELD_BYTES_MAX {
            return;
        }
        let mut files = seed_template.held_files.write().unwrap_or_else(PoisonError::into_inner);
        let is_unnamed = |file: &HeldFile| file_identity::stat_identity(file).is_ok_and(|found| found.links == 0);
        files.iter_mut().for_each(|file| drop(file.take_if(|file| is_unnamed(file))));
        tracing::warn!(seed = %self.key.seed, limit = HELD_BYTES_MAX, "removed files are no longer held for its children: they use too much disk space");
    }

    /// Returns the indexes in [`Self::file_states`] of files that were changed since the capture, or are not held.
    pub(super) fn changed_files(&self) -> BTreeSet<usize> {
        let states = self.file_states().into_iter().enumerate();
        states.filter(|(_, state)| *state != FileState::Unchanged).map(|(index, _)| index).collect()
    }

    /// Removes changed files from the descriptor of an image. A fork of the image's seed then needs the captured file
    /// at its path, or is refused. `changed`: indexes in [`Self::file_states`].
    pub(super) fn exclude_files(&self, changed: &BTreeSet<usize>, whole: &mut Descriptor) {
        let mapped_count = whole.mapped_files.len();
        for index in changed {
            let Some(version) = index.checked_sub(mapped_count) else {
                whole.mapped_files[*index].identity.modified_ns = CHANGED_MARKER_NS;
                continue;
            };
            // Several versions may have the same file.
            let Some(extent) = whole.file_versions[version].extent else { continue };
            whole.extents[extent.0 as usize].populated.clear();
            let same_file = whole.file_versions.iter_mut().filter(|other| other.extent == Some(extent));
            same_file.for_each(|other| other.extent = None);
        }
    }

    /// Returns the disk space that its held files use.
    pub fn held_file_usage(&self) -> HeldFileUsage {
        let SeedMemory::Template(seed_template) = &self.memory else { return HeldFileUsage::default() };
        let files = seed_template.read_held_files();
        let found: Vec<_> = files.iter().flatten().filter_map(|file| file_identity::stat_identity(file).ok()).collect();
        let pinned = found.iter().filter(|file| file.links == 0);
        HeldFileUsage { files: found.len() as u64, bytes: pinned.map(|file| file.bytes).sum() }
    }
}

impl SeedTemplate {
    fn read_held_files(&self) -> RwLockReadGuard<'_, Vec<Option<HeldFile>>> {
        self.held_files.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `into` with the bytes from an offset of the held file of a version. Fails if the file was changed.
    pub(super) fn read_held_file(
        &self,
        descriptor: &Descriptor,
        index: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), HeldFileError> {
        let version = &descriptor.file_versions[index as usize];
        let failed =
            |cause| HeldFileError { version: index, path: descriptor.referenced_path(version).to_owned(), cause };
        let files = self.read_held_files();
        let file = files[index as usize].as_ref().ok_or_else(|| failed(HeldFileFailure::NotHeld))?;
        let opened = file.reopen().map_err(|error| failed(HeldFileFailure::Read(error)))?;
        let length = version.identity.bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let read = opened.read_exact_at(&mut into[..length], offset);
        into[length..].fill(0);
        let state = file_state(&version.identity, file_identity::stat_identity(file), || file.reopen());
        match (state, read) {
            (FileState::Unchanged, Ok(())) => Ok(()),
            (FileState::Unchanged, Err(error)) => Err(failed(HeldFileFailure::Read(error))),
            (FileState::Changed, _) => Err(failed(HeldFileFailure::Changed)),
            (FileState::NotHeld, _) => Err(failed(HeldFileFailure::NotHeld)),
        }
    }
}

/// Returns the state of a file with the captured identity `then`. Compares `then` with the current identity `now` or,
/// if size and times differ, compares the digests of the contents.
fn file_state(then: &FileIdentity, now: io::Result<FileIdentity>, open: impl Fn() -> io::Result<File>) -> FileState {
    match now {
        Err(_) => FileState::NotHeld,
        Ok(now) if file_identity::has_same_content(then, &now) => FileState::Unchanged,
        Ok(_) => {
            let digest = || open().and_then(|file| file_identity::compute_digest(&file)).ok().flatten();
            match then.digest.is_some() && digest() == then.digest {
                true => FileState::Unchanged,
                false => FileState::Changed,
            }
        }
    }
}
