//! Selects the source of each file of a seed at a fork: the path on this node, or the owner. If neither has the file,
//! the fork is refused, and the error names the file.
//!
//! A child gets each file that the seed's processes have open, mapped or executed, in its state at the capture.
//! `resume` calls `with_captured_files`. Files that a child opens later by a path are the node's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{
    Backing, ExtentId, FileIdentity, FileReference, FileState, FileTimes, FileVersion, Mapping, OpenFile, SharedObject,
    SharedObjectKind, VolumeMount,
};

use super::error::ResumeError;
use super::seed_source::SeedSource;
use crate::file_identity::{self, CHANGED_MARKER_NS, FileComparison};
use crate::file_use::{FileKey, FileUse, SeedFile, collect_file_uses};
use crate::restore::LocalNode;
use crate::volume_table::VolumeTable;

/// How long a check stays valid. The children of a fan-out are started one after the other, so one or two checks are
/// enough for all.
const FILE_CHECK_TTL: Duration = Duration::from_millis(10);

/// Time limit for the owner's reply with the states of files. The owner may have to read some files for it.
const FILE_STATES_TIMEOUT: Duration = Duration::from_secs(5);

/// Results of the last check of a seed's files.
#[derive(Debug, Default)]
pub(super) struct FileCheckCache(Mutex<FileCheck>);

impl FileCheckCache {
    /// Locks the results for children with this root. The results for another root do not count.
    fn lock(&self, root: &Path) -> MutexGuard<'_, FileCheck> {
        let mut check = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if check.root != root {
            *check = FileCheck { root: root.to_owned(), ..FileCheck::default() };
        }
        check
    }
}

#[derive(Debug, Default)]
struct FileCheck {
    /// The root of the children whose files were checked.
    root: PathBuf,
    /// When a check last found that no file is needed from the owner.
    clean_at: Option<Instant>,
    /// For a seed of another machine: the identity of this node's equal file, by index of the seed's file.
    matching: BTreeMap<usize, FileIdentity>,
}

/// The user's options for changed files.
#[derive(Debug, Clone, Copy)]
pub struct FilePolicy<'a> {
    /// Whether to use files that were changed in place since the capture.
    pub allow_changed: bool,
    /// Paths below which the user provides other files for the child.
    pub overridden_paths: &'a [PathBuf],
    /// When the fork was requested. An earlier check does not count, because the user may have changed files after it.
    pub requested_at: Instant,
}

impl FilePolicy<'_> {
    fn is_overridden(&self, path: &str) -> bool {
        self.overridden_paths.iter().any(|shown| Path::new(path).starts_with(shown))
    }
}

/// The source of a child's file.
#[derive(Debug, PartialEq, Eq)]
enum FileSource {
    Node,
    Owner,
    Refused(&'static str),
}

const REASON_CHANGED: &str = "was changed in place since the seed was prepared";
const REASON_PAGES_LOST: &str =
    "was changed in place since the seed was prepared, and written pages of its mappings may be lost";
const REASON_NOT_HELD: &str =
    "was replaced or removed since the seed was prepared, and its owner has no copy of it for a child";

/// The inputs of a decision.
struct FileSelector<'a> {
    node: &'a LocalNode,
    policy: &'a FilePolicy<'a>,
    is_origin_machine: bool,
}

impl FileSelector<'_> {
    /// Whether the file at the path is certainly the captured file, or the file that an earlier check found equal
    /// (`alike`). Costs one statx(2), and a lookup if the child has a root of its own.
    fn is_unchanged(&self, file: SeedFile<'_>, alike: Option<&FileIdentity>) -> bool {
        let Some(then) = (if self.is_origin_machine { Some(file.identity()) } else { alike }) else { return false };
        let now = self.node.stat_identity(file.path());
        now.is_ok_and(|now| file_identity::compare(then, &now) == FileComparison::Same)
    }

    //  the path leads to     │ the same, unchanged    opened by its path
    //                        │ the same, changed      refused; if only written to: opened, and truncated to its size
    //                        │                        at the capture
    //                        │ another, or nothing    the owner has the file unchanged: a copy in memory, or pages if it
    //                        │                        is only read
    /// Selects the source of a file. `path`: its path on this node. `now`: the file there.
    fn select_source(&self, file: SeedFile<'_>, path: &Path, now: Option<FileIdentity>, used: FileUse) -> FileSource {
        let then = file.identity();
        if self.policy.is_overridden(file.path()) {
            return FileSource::Node;
        }
        let is_allowed = self.policy.allow_changed && !used.has_written_pages;
        if then.modified_ns == CHANGED_MARKER_NS && !is_allowed {
            return FileSource::Refused(REASON_CHANGED);
        }
        if self.is_origin_machine {
            let is_there = now.as_ref().is_some_and(|now| FileUse::file_key(now) == FileUse::file_key(then));
            return match now {
                Some(now) if is_there => self.select_changed_source(path, (then, &now), used),
                // Another file, but equal, as after a reinstallation of the package. Excludes mappings with written
                // pages: their other pages show the captured file, which may have changed.
                _ if matches!(file, SeedFile::Mapped { .. })
                    && !used.has_written_pages
                    && file_identity::is_same_file(path, then, true) =>
                {
                    FileSource::Node
                }
                _ => FileSource::Owner,
            };
        }
        let is_only_read = !used.is_written && !used.is_read_and_appended;
        let is_alike = |now: &FileIdentity| {
            let is_known = then.build_id.is_some() || then.digest.is_some();
            let is_mapped_privately = matches!(file, SeedFile::Mapped { .. });
            let looks_the_same = (now.bytes, now.modified_ns) == (then.bytes, then.modified_ns);
            (!is_known && !is_mapped_privately && looks_the_same) || file_identity::is_same_file(path, then, false)
        };
        match now {
            _ if !is_only_read => FileSource::Node,
            Some(now) if is_alike(&now) => FileSource::Node,
            _ => FileSource::Owner,
        }
    }

    /// Returns the files that must be read from the owner. Records in `alike` the files of another machine that have an
    /// equal file here.
    fn select_owner_files<'f>(
        &self,
        descriptor: &'f Descriptor,
        touched: Vec<SeedFile<'f>>,
        alike: &mut BTreeMap<usize, FileIdentity>,
    ) -> Result<Vec<SeedFile<'f>>, ResumeError> {
        let (uses, mut owners) = (collect_file_uses(descriptor), Vec::new());
        for file in touched {
            // No file is at an empty path.
            let path = self.node.resolve_path(file.path()).unwrap_or_default();
            let now = file_identity::stat_path_identity(&path).ok();
            match self.select_source(file, &path, now.clone(), uses[&FileUse::file_key(file.identity())]) {
                FileSource::Node if self.is_origin_machine || self.policy.is_overridden(file.path()) => {}
                FileSource::Node => {
                    alike.extend(now.map(|now| (file.state_index(descriptor), now)));
                }
                FileSource::Owner => owners.push(file),
                FileSource::Refused(reason) => return Err(refusal_error(file.path(), reason)),
            }
        }
        Ok(owners)
    }

    /// Selects the source if the captured file is at its path, but was changed.
    fn select_changed_source(
        &self,
        path: &Path,
        (then, now): (&FileIdentity, &FileIdentity),
        used: FileUse,
    ) -> FileSource {
        if used.has_written_pages {
            return FileSource::Refused(REASON_PAGES_LOST);
        }
        let is_kept = now.bytes >= then.bytes;
        let may_change = !used.is_read && (is_kept || !used.is_read_and_appended);
        match may_change || self.policy.allow_changed || file_identity::has_same_digest(path, then) {
            true => FileSource::Node,
            false => FileSource::Refused(REASON_CHANGED),
        }
    }
}

impl SeedSource {
    /// Returns the seed with files of the owner in place of those that this node lacks, for a child that is now started
    /// on `node`. `None` if no file must be replaced.
    ///
    /// # Errors
    /// [`ResumeError::UnavailableFile`] names a file that is not available in its state at the capture.
    pub fn with_captured_files(&self, node: &LocalNode, policy: &FilePolicy<'_>) -> Result<Option<Self>, ResumeError> {
        let checked_at = Instant::now();
        let descriptor = &*self.descriptor;
        let mut seen = self.file_checks.lock(&node.root);
        if seen
            .clean_at
            .is_some_and(|at| at >= policy.requested_at && checked_at.saturating_duration_since(at) < FILE_CHECK_TTL)
        {
            return Ok(None);
        }
        let is_its_machine = node.is_origin_machine(&descriptor.origin);
        let decision = FileSelector { node, policy, is_origin_machine: is_its_machine };
        let touched: Vec<SeedFile<'_>> = SeedFile::iter(descriptor)
            .filter(|file| !descriptor.is_on_volume(file.path()))
            .filter(|file| !decision.is_unchanged(*file, seen.matching.get(&file.state_index(descriptor))))
            .collect();
        if touched.is_empty() {
            seen.clean_at = Some(checked_at);
            return Ok(None);
        }
        let owners = decision.select_owner_files(descriptor, touched, &mut seen.matching)?;
        drop(seen);
        let taken = if owners.is_empty() { None } else { self.with_owner_files(&owners)? };
        if taken.is_none() && policy.overridden_paths.is_empty() && !policy.allow_changed {
            self.file_checks.lock(&node.root).clean_at = Some(checked_at);
        }
        Ok(taken)
    }

    /// Checks that this node has each volume of the seed at the same path below `root` as the seed's processes, unless
    /// `overridden` paths hide its files. Makes no call to a volume.
    ///
    /// # Errors
    /// [`ResumeError::VolumeNotMounted`], or the node's mounts cannot be read.
    pub fn check_volumes(&self, root: &Path, overridden: &[PathBuf]) -> Result<(), ResumeError> {
        if self.descriptor.volumes.is_empty() {
            return Ok(());
        }
        let mounted = VolumeTable::read(std::process::id().cast_signed());
        let mounted = mounted.map_err(ResumeError::creation_error("the list of this node's mounts"))?;
        let is_overridden = |path: &str| overridden.iter().any(|shown| Path::new(path).starts_with(shown));
        for wanted in &self.descriptor.volumes {
            let Some(path) = mounted.find_missing(wanted, root).filter(|path| !is_overridden(path)) else { continue };
            let VolumeMount { volume, directory, mount_path, .. } = wanted.clone();
            return Err(ResumeError::VolumeNotMounted { volume, directory, mount_path, path: path.to_owned() });
        }
        Ok(())
    }

    /// Returns the seed with a descriptor in which the owner's copies or pages replace these files. `None` if only pages of
    /// private mappings are needed from the owner: each memory plan fetches these pages anyway.
    fn with_owner_files(&self, owners: &[SeedFile<'_>]) -> Result<Option<Self>, ResumeError> {
        let states = self.fetch_file_states()?;
        for file in owners {
            match FileState::from_byte(states[file.state_index(&self.descriptor)]) {
                FileState::Unchanged => {}
                FileState::Changed => return Err(refusal_error(file.path(), REASON_CHANGED)),
                FileState::NotHeld => return Err(refusal_error(file.path(), REASON_NOT_HELD)),
            }
        }
        let mut patched_descriptor =
            PatchedDescriptor { descriptor: (*self.descriptor).clone(), objects: BTreeMap::new(), is_changed: false };
        patched_descriptor.replace_files(owners)?;
        let PatchedDescriptor { descriptor, is_changed: is_any, .. } = patched_descriptor;
        Ok(is_any.then(|| {
            let mut source = self.clone();
            (source.descriptor, source.file_checks) = (descriptor.into(), Arc::default());
            source
        }))
    }

    /// Fetches the owner's state of each file.
    fn fetch_file_states(&self) -> Result<Vec<u8>, ResumeError> {
        let mut states = vec![0; self.descriptor.file_count()];
        let deadline = Instant::now() + FILE_STATES_TIMEOUT;
        self.connections.with_connection(&self.owner, self.key.seed.node(), |connection| {
            farfork_fabric::read_blocking(connection, &self.key, ExtentId::FILE_STATES, 0, &mut states, deadline)
                .map_err(|cause| ResumeError::Fetch { what: "the state of the seed's files", cause })
        })?;
        Ok(states)
    }
}

fn refusal_error(path: &str, reason: &'static str) -> ResumeError {
    ResumeError::UnavailableFile { path: path.to_owned(), reason }
}

/// A descriptor in which files of the node are replaced by files of the owner.
struct PatchedDescriptor {
    descriptor: Descriptor,
    /// Shared objects that are copies of files.
    objects: BTreeMap<FileKey, u32>,
    /// Whether any file was replaced.
    is_changed: bool,
}

impl PatchedDescriptor {
    fn replace_files(&mut self, files: &[SeedFile<'_>]) -> Result<(), ResumeError> {
        for file in files {
            if let SeedFile::Version { version, path, .. } = file {
                self.replace_version(version, path)?;
                self.is_changed = true;
            }
        }
        let mapped: BTreeSet<u32> = files
            .iter()
            .filter_map(|file| match file {
                SeedFile::Mapped { index, .. } => Some(*index),
                SeedFile::Version { .. } => None,
            })
            .collect();
        let Self { descriptor, objects, is_changed: is_any } = self;
        let files = &descriptor.mapped_files;
        let members = descriptor.descendants.iter_mut().flat_map(|member| &mut member.mappings);
        for mapping in descriptor.mappings.iter_mut().chain(members) {
            let (Backing::SharedFile { file, .. } | Backing::PrivateWritableFile { file, .. }) = mapping.backing else {
                continue;
            };
            if mapped.contains(&file) {
                let (path, object) =
                    (&files[file as usize].path, objects.get(&FileUse::file_key(&files[file as usize].identity)));
                let backing =
                    owner_backing(mapping, object.copied()).ok_or_else(|| refusal_error(path, REASON_NOT_HELD))?;
                *is_any |= backing != mapping.backing;
                mapping.backing = backing;
            }
        }
        Ok(())
    }

    fn replace_version(&mut self, version: &FileVersion, path: &str) -> Result<(), ResumeError> {
        let object = self.shared_object_for(version, path)?;
        match version.reference {
            FileReference::OpenFile(index) => {
                let file = &mut self.descriptor.open_files[index as usize];
                if let OpenFile::Regular { flags, offset, .. } = *file {
                    *file = OpenFile::MemFd { object, flags, offset };
                }
            }
            // `replace_files` replaces all mappings together.
            FileReference::MappedFile(_) => {}
            FileReference::Executable(0) => self.descriptor.process.exe_object = Some(object),
            FileReference::Executable(number) => {
                self.descriptor.descendants[number as usize - 1].process.exe_object = Some(object);
            }
        }
        Ok(())
    }

    fn shared_object_for(&mut self, version: &FileVersion, path: &str) -> Result<u32, ResumeError> {
        let identity = &version.identity;
        if let Some(known) = self.objects.get(&FileUse::file_key(identity)) {
            return Ok(*known);
        }
        let extent = version.extent.ok_or_else(|| refusal_error(path, REASON_NOT_HELD))?;
        let objects = &mut self.descriptor.shared_objects;
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        let kind = SharedObjectKind::DeletedFile(identity.status);
        // The owner does not report the time of the last access.
        let times = FileTimes { accessed_ns: identity.modified_ns, modified_ns: identity.modified_ns };
        objects.push(SharedObject { name, bytes: identity.bytes, seals: None, kind, times, extent });
        let index = objects.len() as u32 - 1;
        self.objects.insert(FileUse::file_key(identity), index);
        Ok(index)
    }
}

/// Returns the new backing of a mapping whose file the owner provides: the copy of the file, if there is one. Otherwise the
/// seed's pages, if the mapping is private or not writable: each memory plan has such pages. `None` if neither is possible.
fn owner_backing(mapping: &Mapping, object: Option<u32>) -> Option<Backing> {
    match (mapping.backing, object) {
        (Backing::SharedFile { offset, .. }, Some(object)) => Some(Backing::SharedMemory { object, offset }),
        (Backing::SharedFile { extent: Some(extent), .. }, None) => Some(Backing::Anonymous { extent: Some(extent) }),
        (Backing::PrivateWritableFile { offset, written, .. }, Some(object)) => {
            Some(Backing::PrivateObject { object, offset, written })
        }
        (Backing::PrivateWritableFile { .. }, None) => Some(mapping.backing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the source that is selected for a file `/file` with these contents, or for a missing file.
    fn decided(contents: Option<&[u8]>, used: FileUse, is_its_machine: bool) -> FileSource {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, b"before").unwrap();
        let mut identity = file_identity::read_identity(&path).unwrap();
        identity.digest = file_identity::compute_digest(&fs::File::open(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        if let Some(bytes) = contents {
            // Keep another file, so that the inode number is not reused.
            let _other = tempfile::NamedTempFile::new_in(directory.path()).unwrap();
            fs::write(&path, bytes).unwrap();
            identity.inode += 1_000_000;
        }
        let version = FileVersion { reference: FileReference::OpenFile(0), identity, extent: None };
        let node = LocalNode { root: directory.path().into(), ..LocalNode::detect().unwrap() };
        let policy = FilePolicy { allow_changed: false, overridden_paths: &[], requested_at: Instant::now() };
        let decision = FileSelector { node: &node, policy: &policy, is_origin_machine: is_its_machine };
        let now = file_identity::stat_path_identity(&path).ok();
        decision.select_source(SeedFile::Version { index: 0, path: "/file", version: &version }, &path, now, used)
    }

    #[test]
    fn a_check_counts_only_for_children_with_the_same_root() {
        let (cache, now) = (FileCheckCache::default(), Instant::now());
        let [root, other] = ["/", "/srv/image"].map(Path::new);
        cache.lock(root).clean_at = Some(now);
        assert_eq!(cache.lock(root).clean_at, Some(now));
        assert_eq!(cache.lock(other).clean_at, None);
        assert_eq!(cache.lock(root).clean_at, None);
    }

    #[test]
    fn another_machine_provides_equal_and_written_files() {
        let (read, written) =
            (FileUse { is_read: true, ..FileUse::default() }, FileUse { is_written: true, ..FileUse::default() });
        assert_eq!(decided(Some(b"before"), read, false), FileSource::Node);
        assert_eq!(decided(Some(b"behind"), read, false), FileSource::Owner);
        assert_eq!(decided(None, read, false), FileSource::Owner);
        assert_eq!(decided(None, written, false), FileSource::Node);
    }

    #[test]
    fn the_same_machine_provides_no_replaced_file() {
        let read = FileUse { is_read: true, ..FileUse::default() };
        assert_eq!(decided(Some(b"before"), read, true), FileSource::Owner);
        assert_eq!(decided(None, read, true), FileSource::Owner);
    }
}
