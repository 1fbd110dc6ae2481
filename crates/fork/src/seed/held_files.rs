//! Files that an owner holds for a seed: their states since the capture, and their contents.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{PoisonError, RwLockReadGuard};

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{ExtentId, ExtentSource, FileIdentity, FileState, FileVersion};

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

    /// Removes changed files from the descriptor of an image. A fork of the image's seed then needs the captured file
    /// at its path, or is refused.
    pub(super) fn exclude_changed_files(&self, whole: &mut Descriptor) {
        let states = self.file_states();
        let (mapped, versions) = states.split_at(whole.mapped_files.len());
        for (file, _) in whole.mapped_files.iter_mut().zip(mapped).filter(|(_, state)| **state != FileState::Unchanged)
        {
            file.identity.modified_ns = CHANGED_MARKER_NS;
        }
        for (version, _) in
            whole.file_versions.iter_mut().zip(versions).filter(|(_, state)| **state != FileState::Unchanged)
        {
            if let Some(extent) = version.extent.take() {
                whole.extents[extent.0 as usize].populated.clear();
            }
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

    /// Fills `into` with the bytes from an offset of a held file. Fails if the file was changed.
    pub(super) fn read_held_file(
        &self,
        version: &FileVersion,
        index: u32,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let files = self.read_held_files();
        let file = files[index as usize].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let opened = file.reopen()?;
        let length = version.identity.bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        opened.read_exact_at(&mut into[..length], offset)?;
        into[length..].fill(0);
        match file_state(&version.identity, file_identity::stat_identity(file), || file.reopen()) {
            FileState::Unchanged => Ok(()),
            _ => Err(io::Error::other("a held file was changed in place")),
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
