//! File versions: the identity, in the pause, of each file that a process has open, executes or maps for writing. The owner
//! holds a descriptor of the file, whatever happens to its path. `Seed` serves the bytes; `resume::file_sources` compares
//! versions at a fork.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use farfork_container::resolve_on_node;
use farfork_sys::process::{FdDirectory, MapEntry};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Backing, Descriptor, Extent, ExtentId, ExtentSource, FileIdentity, FileReference, FileVersion, Mapping, OpenFile,
    PageRun,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};

use super::{DELETED_SUFFIX, FdKind, OpenFd};
use crate::file_identity;

/// Maximum number of files that are held for all seeds together: a quarter of the 65,536 descriptors that the guide's
/// systemd unit allows (`LimitNOFILE=`). Further files are not held, and a fork that needs such a file is refused.
const HELD_FILES_MAX: usize = 16_384;

/// Maximum size of a file of which a child gets a copy, in bytes. The copy takes up memory of the child.
const COPIED_BYTES_MAX: u64 = 1 << 30;

/// Pseudo files of the kernel, whose contents are made when they are read.
const PSEUDO_PATHS: [&str; 3] = ["/proc/", "/sys/", "/dev/"];

static HELD_FILE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A file that the owner holds for a seed. The descriptor is for the location only (O_PATH): it breaks no lease and causes
/// no event.
#[derive(Debug)]
pub struct HeldFile {
    path_fd: OwnedFd,
}

impl HeldFile {
    fn open(path: &str) -> Option<Self> {
        if HELD_FILE_COUNT.fetch_add(1, Ordering::Relaxed) >= HELD_FILES_MAX {
            HELD_FILE_COUNT.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(path_fd) => Some(Self { path_fd }),
            Err(_) => {
                HELD_FILE_COUNT.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// As open(2).
    pub(crate) fn reopen(&self) -> std::io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.path_fd.as_raw_fd()))
    }

    fn is_version(&self, wanted: &FileIdentity) -> bool {
        let found = file_identity::stat_identity(self);
        found.is_ok_and(|found| (found.device, found.inode) == (wanted.device, wanted.inode))
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path_fd.as_fd()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        HELD_FILE_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held files, by device and inode.
#[derive(Debug, Default)]
pub(in crate::capture) struct HeldFileMap(BTreeMap<(u64, u64), HeldFile>);

impl HeldFileMap {
    /// Holds the open files of a running process, which may close them before the pause.
    pub(in crate::capture) fn open(pid: i32, fds: &[OpenFd]) -> Self {
        let mut files = BTreeMap::new();
        for fd in
            fds.iter().filter(|fd| fd.kind == FdKind::Regular && !fd.is_standard_stream && !is_pseudo_path(&fd.link))
        {
            let key = (fd.device, fd.inode);
            if !files.contains_key(&key)
                && let Some(file) = HeldFile::open(&format!("/proc/{pid}/fd/{}", fd.number))
            {
                files.insert(key, file);
            }
        }
        Self(files)
    }

    /// Adds the held files of another process of the tree.
    pub(in crate::capture) fn merge(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Takes the held file of a version. A file that was opened since the survey is opened by its path.
    fn take(&mut self, wanted: &FileIdentity, path: &str) -> Option<HeldFile> {
        let known = self.0.remove(&(wanted.device, wanted.inode)).or_else(|| HeldFile::open(path));
        known.filter(|file| file.is_version(wanted))
    }
}

fn is_pseudo_path(path: &[u8]) -> bool {
    PSEUDO_PATHS.iter().any(|prefix| path.starts_with(prefix.as_bytes()))
}

/// A note about files that a process may write to: a change between prepare and fork cannot be excluded.
pub(in crate::capture) fn note_unverifiable_files(pid: i32, fds: &[OpenFd], maps: &[MapEntry]) -> Option<String> {
    const OWNER_MAY_WRITE: u32 = 0o200;
    let links = FdDirectory::open_links(pid).ok()?;
    let can_write = |fd: &&OpenFd| {
        let link = statat(&links, fd.number.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        link.is_ok_and(|link| link.st_mode & OWNER_MAY_WRITE != 0)
    };
    // Removed files and memory files are copied in the pause.
    let is_file = |fd: &&OpenFd| fd.kind == FdKind::Regular && !fd.is_standard_stream && !fd.is_deleted;
    let files = fds.iter().filter(is_file).filter(|fd| !is_pseudo_path(&fd.link));
    let open = files.filter(can_write).map(|fd| &fd.link);
    let written = |entry: &&MapEntry| entry.is_shared && entry.has_flag("mw") && entry.path.starts_with(b"/");
    let is_copied = |path: &[u8]| is_pseudo_path(path) || path.ends_with(DELETED_SUFFIX);
    let mapped = maps.iter().filter(written).filter(|entry| !is_copied(&entry.path)).map(|entry| &entry.path);
    let paths: BTreeSet<_> = open.chain(mapped).map(|path| String::from_utf8_lossy(path)).collect();
    let names = paths.iter().take(UNVERIFIABLE_NAMES_MAX).map(|path| &**path).collect::<Vec<_>>().join(", ");
    let more = paths.len().saturating_sub(UNVERIFIABLE_NAMES_MAX);
    let names = if more > 0 { format!("{names} and {more} more") } else { names };
    (!paths.is_empty()).then(|| {
        format!("it may write to {names}: change no such file between prepare and fork, farfork cannot detect it")
    })
}

/// Maximum number of file names in a note for the user.
const UNVERIFIABLE_NAMES_MAX: usize = 5;

/// Whether a file was opened for reading, and is not a pseudo file.
pub(super) fn is_readable_by_owner(fd: &OpenFd, links: &FdDirectory) -> bool {
    const OWNER_MAY_READ: u32 = 0o400;
    let link = || statat(links, fd.number.to_string(), AtFlags::SYMLINK_NOFOLLOW);
    !is_pseudo_path(&fd.link) && link().is_ok_and(|link| link.st_mode & OWNER_MAY_READ != 0)
}

/// Returns the version of a regular open file. `None` for pseudo files, and for descriptors of a location only (O_PATH).
pub(super) fn open_file_version(fd: &OpenFd, file: &OpenFile, index: u32) -> Option<FileVersion> {
    let OpenFile::Regular { flags, .. } = file else { return None };
    let is_place = OFlags::from_bits_retain(*flags).contains(OFlags::PATH);
    if is_place || is_pseudo_path(&fd.link) {
        return None;
    }
    Some(FileVersion { reference: FileReference::OpenFile(index), identity: fd.version.clone()?, extent: None })
}

/// The state that completes file versions after the pause, when all processes run again.
#[derive(Debug)]
pub(in crate::capture) struct VersionCompletion<'a> {
    pub(in crate::capture) held_files: HeldFileMap,
    /// The processes that hold the memory, the first one first.
    pub(in crate::capture) templates: &'a [i32],
    /// [`file_time_ns`](farfork_sys::clock::file_time_ns) when all processes were stopped.
    pub(in crate::capture) stopped_ns: i64,
    /// The root of the processes, as a path of the node.
    pub(in crate::capture) node_root: &'a Path,
}

impl VersionCompletion<'_> {
    /// Adds to a descriptor the versions of executables and of files mapped for writing, digests of small files, and extents
    /// of the held files that children may copy. Returns the held files, in the order of the file versions.
    pub(in crate::capture) fn add_versions(mut self, descriptor: &mut Descriptor) -> Vec<Option<HeldFile>> {
        self.set_mapped_versions(descriptor);
        let mut held_files: Vec<Option<HeldFile>> = Vec::new();
        for index in 0..descriptor.file_versions.len() {
            let path = descriptor.referenced_path(&descriptor.file_versions[index]).to_owned();
            let version = &mut descriptor.file_versions[index];
            let file = self.held_files.take(&version.identity, &path);
            let opened = file.as_ref().and_then(|file| file.reopen().ok());
            add_digest(&mut version.identity, opened, &self.path_on_node(&path), self.stopped_ns);
            held_files.push(file);
        }
        self.add_mapped_versions(descriptor, &mut held_files);
        self.add_executable_versions(descriptor, &mut held_files);
        add_extents(descriptor, &held_files);
        held_files
    }

    fn set_mapped_versions(&self, descriptor: &mut Descriptor) {
        for file in &mut descriptor.mapped_files {
            // Open files were read in the pause: if one has the same times, this file has not changed since. Up to Linux
            // 6.12, a change before the pause in the same clock tick has the same time, so the time alone is not enough.
            let is_as_in_pause = |open: &FileVersion| has_same_times(&open.identity, &file.identity);
            let may_be_later = file.identity.changed_ns >= self.stopped_ns;
            if may_be_later && !descriptor.file_versions.iter().any(is_as_in_pause) {
                file_identity::mark_if_changed_since(self.stopped_ns, &mut file.identity);
            }
            let link = self.map_files_link(file.owner_range);
            let opened = || File::open(&link).ok();
            let is_wanted = file.identity.build_id.is_none();
            let path = self.path_on_node(&file.path);
            add_digest(&mut file.identity, is_wanted.then(opened).flatten(), &path, self.stopped_ns);
        }
    }

    /// The node's path of a file; an empty path, at which no file is, if the process does not find the file.
    fn path_on_node(&self, path: &str) -> PathBuf {
        resolve_on_node(self.node_root, Path::new(path), OFlags::empty()).unwrap_or_default()
    }

    fn map_files_link(&self, range: farfork_wire::descriptor::MappedRange) -> String {
        let template = self.templates.get(range.process as usize).copied().unwrap_or(0);
        format!("/proc/{template}/map_files/{:x}-{:x}", range.start, range.end)
    }

    /// Adds the versions of files with shared writable mappings. Each child gets its own copy if the path leads to another
    /// file.
    fn add_mapped_versions(&self, descriptor: &mut Descriptor, held_files: &mut Vec<Option<HeldFile>>) {
        let members = descriptor.descendants.iter().flat_map(|member| &member.mappings);
        let written = |mapping: &Mapping| match mapping.backing {
            Backing::SharedFile { file, writable: true, .. } => Some(file),
            _ => None,
        };
        let mut files: Vec<u32> = descriptor.mappings.iter().chain(members).filter_map(written).collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            let mapped = &descriptor.mapped_files[file as usize];
            let identity = mapped.identity.clone();
            held_files.push(HeldFile::open(&self.map_files_link(mapped.owner_range)));
            descriptor.file_versions.push(FileVersion {
                reference: FileReference::MappedFile(file),
                identity,
                extent: None,
            });
        }
    }

    fn add_executable_versions(&self, descriptor: &mut Descriptor, held_files: &mut Vec<Option<HeldFile>>) {
        for number in 0..descriptor.process_count() {
            let Some(process) = descriptor.processes().nth(number) else { continue };
            if process.exe_object.is_some() || is_pseudo_path(process.exe.as_bytes()) {
                continue;
            }
            let Some(file) = HeldFile::open(&format!("/proc/{}/exe", self.templates[number])) else { continue };
            let Ok(mut identity) = file_identity::stat_identity(&file) else { continue };
            file_identity::mark_if_changed_since(self.stopped_ns, &mut identity);
            set_node_numbers(&mut identity, &self.path_on_node(&process.exe), self.stopped_ns);
            // The executable's code is mapped, so the build id is known.
            let mut mapped = descriptor.mapped_files.iter().map(|mapped| &mapped.identity);
            let known = mapped.find(|mapped| (mapped.device, mapped.inode) == (identity.device, identity.inode));
            identity.build_id = known.and_then(|mapped| mapped.build_id.clone());
            let user = FileReference::Executable(number as u32);
            descriptor.file_versions.push(FileVersion { reference: user, identity, extent: None });
            held_files.push(Some(file));
        }
    }
}

/// Whether both have the same file, size and times.
fn has_same_times(one: &FileIdentity, other: &FileIdentity) -> bool {
    let state = |file: &FileIdentity| (file.device, file.inode, file.bytes, file.modified_ns, file.changed_ns);
    state(one) == state(other)
}

/// Adds the digest of a small file, and its device and inode on the node.
fn add_digest(version: &mut FileIdentity, file: Option<File>, path: &Path, stopped_ns: i64) {
    let digest = file.and_then(|file| {
        let is_as_then =
            || file_identity::stat_identity(&file).is_ok_and(|now| file_identity::has_same_content(version, &now));
        let digest = is_as_then().then(|| file_identity::compute_digest(&file).ok().flatten()).flatten();
        // The file may have been written while it was read, so check again.
        digest.filter(|_| is_as_then())
    });
    version.digest = version.digest.or(digest);
    set_node_numbers(version, path, stopped_ns);
}

/// Sets device and inode to the numbers on the node; in a container, the process sees others. A file that may have changed
/// since the stop keeps its numbers: rename(2) gives the old and the new file of a path the same time.
fn set_node_numbers(version: &mut FileIdentity, path: &Path, stopped_ns: i64) {
    if version.changed_ns >= stopped_ns {
        return;
    }
    let Ok(on_node) = file_identity::stat_path_identity(path) else { return };
    let times = |file: &FileIdentity| (file.bytes, file.modified_ns, file.changed_ns);
    if times(&on_node) == times(version) {
        (version.device, version.inode) = (on_node.device, on_node.inode);
    }
}

/// Adds an extent for each held file that is small enough for a copy. All versions of a file share one extent.
fn add_extents(descriptor: &mut Descriptor, held_files: &[Option<HeldFile>]) {
    let mut known: BTreeMap<(u64, u64), ExtentId> = BTreeMap::new();
    for (index, (version, held_file)) in descriptor.file_versions.iter_mut().zip(held_files).enumerate() {
        let identity = &version.identity;
        let key = (identity.device, identity.inode);
        if let Some(extent) = known.get(&key) {
            version.extent = Some(*extent);
            continue;
        }
        if held_file.is_none()
            || identity.bytes > COPIED_BYTES_MAX
            || identity.modified_ns == file_identity::CHANGED_MARKER_NS
        {
            continue;
        }
        let extents = &mut descriptor.extents;
        let bytes = identity.bytes.next_multiple_of(PAGE_SIZE);
        let pages = (bytes > 0).then_some(PageRun { first: 0, count: bytes / PAGE_SIZE });
        let source = ExtentSource::File { version: index as u32 };
        extents.push(Extent { source, bytes, populated: pages.into_iter().collect(), inherited: Vec::new() });
        let extent = ExtentId(extents.len() as u32 - 1);
        version.extent = Some(extent);
        known.insert(key, extent);
    }
}
