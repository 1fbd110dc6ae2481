//! Checks that the files which the restorer opens by path exist on this node, before anything is started.
//! [`PathSnapshot`] records these files, and checks later whether a path leads to another file.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use farfork_container::resolve_on_node;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Mapping, OpenFile};
use rustix::fs::OFlags;

use super::{LocalNode, RestoreError};
use crate::file_use::FileKey;

/// O_NOFOLLOW. With O_PATH, it opens a symbolic link itself.
const O_NOFOLLOW: u32 = OFlags::NOFOLLOW.bits();

/// The type that a required path must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathKind {
    /// Any file.
    Any,
    /// A directory, which can be entered.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe. The restorer would write the pipe's contents to any other file.
    NamedPipe,
}

/// A path that the restorer opens or enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RequiredPath<'a> {
    path: &'a str,
    kind: PathKind,
}

impl<'a> RequiredPath<'a> {
    fn new(kind: PathKind, path: &'a str) -> Self {
        Self { path, kind }
    }
}

/// Returns the paths that the processes of a seed need on the node.
fn required_paths(descriptor: &Descriptor) -> impl Iterator<Item = RequiredPath<'_>> {
    let own = descriptor.processes().flat_map(|process| {
        let cwd = process.deleted_cwd.is_none().then_some(&process.cwd);
        let exe = process.exe_object.is_none().then_some(&process.exe);
        let directories = cwd.into_iter().chain(&process.root);
        let directories = directories.map(|path| RequiredPath::new(PathKind::Directory, path));
        exe.into_iter().map(|path| RequiredPath::new(PathKind::Any, path)).chain(directories)
    });
    let mapped = descriptor.descendants.iter().flat_map(|member| &member.mappings).chain(&descriptor.mappings);
    let mapped = mapped.filter_map(|mapping: &Mapping| match mapping.backing {
        Backing::SharedFile { file, .. } => {
            Some(RequiredPath::new(PathKind::Any, &descriptor.mapped_files[file as usize].path))
        }
        _ => None,
    });
    own.chain(mapped).chain(descriptor.open_files.iter().filter_map(required_path))
}

fn required_path(file: &OpenFile) -> Option<RequiredPath<'_>> {
    let (kind, path) = match file {
        OpenFile::Regular { path, flags, .. } if flags & O_NOFOLLOW != 0 => (PathKind::Symlink, path),
        OpenFile::Regular { path, .. } | OpenFile::Device { path, .. } => (PathKind::Any, path),
        OpenFile::Directory { path, .. } => (PathKind::Directory, path),
        OpenFile::NamedPipe { path, .. } => (PathKind::NamedPipe, path),
        _ => return None,
    };
    Some(RequiredPath::new(kind, path))
}

/// Checks each path that the restorer opens, so that a missing file is reported by name before anything is started.
pub(super) fn check_paths(descriptor: &Descriptor, node: &LocalNode) -> Result<(), RestoreError> {
    // Skip paths below the child's /proc/PID: they exist in the child's container, independently of the node's
    // processes.
    let own = format!("/proc/{}", descriptor.process.pid);
    for RequiredPath { path, kind } in required_paths(descriptor) {
        if matches!(kind, PathKind::Any | PathKind::Directory) && Path::new(path).starts_with(&own) {
            continue;
        }
        let flags = if kind == PathKind::Symlink { OFlags::NOFOLLOW } else { OFlags::empty() };
        let found = resolve_on_node(&node.root, Path::new(path), flags).and_then(|here| match kind {
            PathKind::Any => here.metadata().map(drop),
            PathKind::Directory => check_directory(&here),
            PathKind::Symlink => here.symlink_metadata().map(drop),
            PathKind::NamedPipe => check_named_pipe(&here),
        });
        found.map_err(|cause| RestoreError::MissingFile { path: path.to_owned(), cause })?;
    }
    Ok(())
}

fn check_named_pipe(here: &Path) -> io::Result<()> {
    let is_pipe = here.metadata()?.file_type().is_fifo();
    if is_pipe { Ok(()) } else { Err(io::Error::other("another file is at this path, not a named pipe")) }
}

fn check_directory(here: &Path) -> io::Result<()> {
    let is_directory = here.metadata()?.is_dir();
    if is_directory { Ok(()) } else { Err(io::Error::other("another file is at this path, not a directory")) }
}

/// The files that a child opens by path, as they were when it was made.
#[derive(Debug)]
pub struct PathSnapshot {
    /// Root of the child.
    root: PathBuf,
    files: Vec<(Option<FileKey>, PathBuf)>,
}

impl PathSnapshot {
    /// Records the files that are now at the paths of a child.
    pub fn record(descriptor: &Descriptor, node: &LocalNode) -> Self {
        let seen = required_paths(descriptor).map(|RequiredPath { path, .. }| {
            let path = PathBuf::from(path);
            (file_key_at(&node.root, &path), path)
        });
        Self { root: node.root.clone(), files: seen.collect() }
    }

    /// Whether each path still leads to the same file. If not, further children must not get the recorded files.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|(number, path)| file_key_at(&self.root, path) == *number)
    }
}

fn file_key_at(root: &Path, path: &Path) -> Option<FileKey> {
    let here = resolve_on_node(root, path, OFlags::empty()).ok()?;
    here.metadata().ok().map(|found| (found.dev(), found.ino()))
}
