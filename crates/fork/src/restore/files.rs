//! The node's files that a child is given by their paths: whether they are there, and still the same.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, Mapping, OpenFile};
use rustix::fs::OFlags;

use super::{LocalNode, RestoreError};

/// Stands for a symbolic link itself (with O_PATH).
const O_NOFOLLOW: u32 = OFlags::NOFOLLOW.bits();

/// A path that the restorer opens, or enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needed<'a> {
    /// What it leads to, whatever that is.
    Any(&'a str),
    /// The symbolic link that is there.
    Link(&'a str),
    /// A named pipe: anything else would be written to.
    Pipe(&'a str),
}

/// What of the node's files the processes of a seed need.
fn needed(descriptor: &Descriptor) -> impl Iterator<Item = Needed<'_>> {
    let own = descriptor.processes().flat_map(|process| {
        let cwd = process.deleted_cwd.is_none().then_some(&process.cwd);
        let exe = process.exe_object.is_none().then_some(&process.exe);
        exe.into_iter().chain(cwd).chain(&process.root)
    });
    let mapped = descriptor.members.iter().flat_map(|member| &member.mappings).chain(&descriptor.mappings);
    let mapped = mapped.filter_map(|mapping: &Mapping| match mapping.backing {
        Backing::SharedFile { file, .. } => Some(&descriptor.mapped_files[file as usize].path),
        _ => None,
    });
    let paths = own.chain(mapped).map(|path| Needed::Any(path));
    paths.chain(descriptor.open_files.iter().filter_map(needed_by))
}

fn needed_by(file: &OpenFile) -> Option<Needed<'_>> {
    Some(match file {
        OpenFile::Regular { path, flags, .. } if flags & O_NOFOLLOW != 0 => Needed::Link(path),
        OpenFile::Regular { path, .. } | OpenFile::Directory { path, .. } | OpenFile::Device { path, .. } => {
            Needed::Any(path)
        }
        OpenFile::NamedPipe { path, .. } => Needed::Pipe(path),
        _ => return None,
    })
}

/// Each path that the restorer opens must lead somewhere: better said now, by name, than half-way.
pub(super) fn check(descriptor: &Descriptor, node: &LocalNode) -> Result<(), RestoreError> {
    // What is told of the process itself is there as soon as the child is, whether a parent of its number is here or not.
    let own = format!("/proc/{}", descriptor.process.pid);
    for file in needed(descriptor) {
        let (path, found) = match file {
            Needed::Any(path) if Path::new(path).starts_with(&own) => continue,
            Needed::Any(path) => (path, node.shows(path).metadata().map(drop)),
            Needed::Link(path) => (path, node.shows(path).symlink_metadata().map(drop)),
            Needed::Pipe(path) => (path, find_pipe(&node.shows(path))),
        };
        found.map_err(|cause| RestoreError::MissingFile { path: path.to_owned(), cause })?;
    }
    Ok(())
}

fn find_pipe(here: &Path) -> io::Result<()> {
    let is_pipe = here.metadata()?.file_type().is_fifo();
    if is_pipe { Ok(()) } else { Err(io::Error::other("it is no named pipe here")) }
}

/// Which files were at these paths when a child was made.
#[derive(Debug)]
pub struct FilesThere(Vec<(Option<FileNumber>, PathBuf)>);

/// Device and inode.
type FileNumber = (u64, u64);

impl FilesThere {
    /// Those that a child has which is made now.
    pub fn look(descriptor: &Descriptor, node: &LocalNode) -> Self {
        let seen = needed(descriptor).map(|file| {
            let (Needed::Any(path) | Needed::Link(path) | Needed::Pipe(path)) = file;
            let here = node.shows(path);
            (number_of(&here), here)
        });
        Self(seen.collect())
    }

    /// Whether each path leads to the same file still: who replaces one wants the next child to have the new one.
    pub fn are_the_same(&self) -> bool {
        self.0.iter().all(|(number, path)| number_of(path) == *number)
    }
}

fn number_of(path: &Path) -> Option<FileNumber> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}
