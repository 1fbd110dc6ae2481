//! Checks that the files which the restorer opens by path exist on this node, before anything is started.
//! [`PathSnapshot`] tells later whether the same files are still at these paths.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Mapping, OpenFile};
use rustix::fs::OFlags;

use super::{LocalNode, RestoreError};
use crate::file_use::FileKey;

/// Stands for a symbolic link itself (with O_PATH).
const O_NOFOLLOW: u32 = OFlags::NOFOLLOW.bits();

/// A path that the restorer opens, or enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequiredPath<'a> {
    /// What it leads to, whatever that is.
    Any(&'a str),
    /// A directory: nothing else can be entered.
    Directory(&'a str),
    /// The symbolic link that is there.
    Symlink(&'a str),
    /// A named pipe: anything else would be written to.
    NamedPipe(&'a str),
}

/// What of the node's files the processes of a seed need.
fn required_paths(descriptor: &Descriptor) -> impl Iterator<Item = RequiredPath<'_>> {
    let own = descriptor.processes().flat_map(|process| {
        let cwd = process.deleted_cwd.is_none().then_some(&process.cwd);
        let exe = process.exe_object.is_none().then_some(&process.exe);
        let directories = cwd.into_iter().chain(&process.root).map(|path| RequiredPath::Directory(path));
        exe.into_iter().map(|path| RequiredPath::Any(path)).chain(directories)
    });
    let mapped = descriptor.descendants.iter().flat_map(|member| &member.mappings).chain(&descriptor.mappings);
    let mapped = mapped.filter_map(|mapping: &Mapping| match mapping.backing {
        Backing::SharedFile { file, .. } => Some(RequiredPath::Any(&descriptor.mapped_files[file as usize].path)),
        _ => None,
    });
    own.chain(mapped).chain(descriptor.open_files.iter().filter_map(required_path))
}

fn required_path(file: &OpenFile) -> Option<RequiredPath<'_>> {
    Some(match file {
        OpenFile::Regular { path, flags, .. } if flags & O_NOFOLLOW != 0 => RequiredPath::Symlink(path),
        OpenFile::Regular { path, .. } | OpenFile::Device { path, .. } => RequiredPath::Any(path),
        OpenFile::Directory { path, .. } => RequiredPath::Directory(path),
        OpenFile::NamedPipe { path, .. } => RequiredPath::NamedPipe(path),
        _ => return None,
    })
}

/// Each path that the restorer opens must lead somewhere: better said now, by name, than half-way.
pub(super) fn check_paths(descriptor: &Descriptor, node: &LocalNode) -> Result<(), RestoreError> {
    // What is told of the process itself is there as soon as the child is, whether a parent of its number is here or not.
    let own = format!("/proc/{}", descriptor.process.pid);
    for file in required_paths(descriptor) {
        let (path, found) = match file {
            RequiredPath::Any(path) | RequiredPath::Directory(path) if Path::new(path).starts_with(&own) => continue,
            RequiredPath::Any(path) => (path, node.resolve_path(path).metadata().map(drop)),
            RequiredPath::Directory(path) => (path, check_directory(&node.resolve_path(path))),
            RequiredPath::Symlink(path) => (path, node.resolve_path(path).symlink_metadata().map(drop)),
            RequiredPath::NamedPipe(path) => (path, check_named_pipe(&node.resolve_path(path))),
        };
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

/// Which files were at these paths when a child was made.
#[derive(Debug)]
pub struct PathSnapshot(Vec<(Option<FileKey>, PathBuf)>);

impl PathSnapshot {
    /// Those that a child has which is made now.
    pub fn record(descriptor: &Descriptor, node: &LocalNode) -> Self {
        let seen = required_paths(descriptor).map(|file| {
            let (RequiredPath::Any(path)
            | RequiredPath::Directory(path)
            | RequiredPath::Symlink(path)
            | RequiredPath::NamedPipe(path)) = file;
            let here = node.resolve_path(path);
            (file_key_at(&here), here)
        });
        Self(seen.collect())
    }

    /// Whether each path leads to the same file still: who replaces one wants the next child to have the new one.
    pub fn is_current(&self) -> bool {
        self.0.iter().all(|(number, path)| file_key_at(path) == *number)
    }
}

fn file_key_at(path: &Path) -> Option<FileKey> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}
