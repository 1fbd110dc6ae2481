//! The directories of a shared tree.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatVfs, Timespec, Timestamps, XattrFlags, fsetxattr, fstat, futimens, openat, statat,
};
use rustix::io::Errno;

use super::inode_record::{InodeRecord, XATTR_NAME};
use super::mark::{MarkFile, PublishedMark};
use crate::log::LogPoint;
use crate::record::{InodeNumber, Timestamp};
use crate::replica_file::find_metadata;

const TREE: &str = "tree";
const INODES: &str = "inodes";
const ORPHANS: &str = "orphans";
const PUBLISHED: &str = "published";
/// Number of directories in `inodes`: each one has only a part of the files.
const INODE_DIRECTORIES: u64 = 256;
/// The unit of `st_blocks`.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Free bytes that unprivileged processes may use.
pub fn available_bytes(state: &StatVfs) -> u64 {
    state.f_bavail.saturating_mul(state.f_frsize)
}

/// An open shared tree.
#[derive(Debug)]
pub struct SharedTree {
    path: PathBuf,
    pub(super) tree: OwnedFd,
    pub(super) inodes: OwnedFd,
    pub(super) orphans: OwnedFd,
}

impl SharedTree {
    /// The names of its directories.
    pub(crate) const DIRECTORIES: [&str; 4] = [TREE, INODES, ORPHANS, PUBLISHED];
    /// The one of its directories whose entries never change: these are the directories of inodes.
    pub(crate) const FIXED_DIRECTORY: &str = INODES;

    /// Creates an empty shared tree. The root directory belongs to the caller, and has mode 0755 and times of 0.
    ///
    /// # Errors
    /// As mkdir(2); EOPNOTSUPP when the file system has no trusted extended attributes; EPERM without CAP_SYS_ADMIN.
    pub fn create(path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(path)?;
        for directory in [TREE, INODES, ORPHANS] {
            fs::create_dir(path.join(directory))?;
        }
        for number in 0..INODE_DIRECTORIES {
            fs::create_dir(path.join(INODES).join(format!("{number:02x}")))?;
        }
        fs::set_permissions(path.join(TREE), fs::Permissions::from_mode(0o755))?;
        let tree = open_directory(&path.join(TREE))?;
        let record = InodeRecord { inode: InodeNumber::ROOT, changed: Timestamp::default() };
        fsetxattr(&tree, XATTR_NAME, &record.encode(), XattrFlags::empty())?;
        // The timestamps are equal on all replicas.
        let start = Timespec { tv_sec: 0, tv_nsec: 0 };
        futimens(&tree, &Timestamps { last_access: start, last_modification: start })?;
        fs::create_dir(path.join(PUBLISHED))
    }

    /// Opens a shared tree.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let [tree, inodes, orphans] = [TREE, INODES, ORPHANS].map(|name| open_directory(&path.join(name)));
        Ok(Self { path: path.to_owned(), tree: tree?, inodes: inodes?, orphans: orphans? })
    }

    /// Finds a directory of the shared tree at a path that is missing; none if it has all of them. Does not look at the
    /// directories in `inodes`, which are many.
    ///
    /// # Errors
    /// As lstat(2), except for missing directories.
    pub fn find_missing_part(path: &Path) -> io::Result<Option<String>> {
        find_missing_directory(path, Self::DIRECTORIES.map(str::to_owned))
    }

    /// As `find_missing_part`, for the directories in `inodes`.
    ///
    /// # Errors
    /// As `find_missing_part`.
    pub fn find_missing_inode_part(path: &Path) -> io::Result<Option<String>> {
        find_missing_directory(path, (0..INODE_DIRECTORIES).map(|number| format!("{INODES}/{number:02x}")))
    }

    /// Finds a client of `clients` whose mark is missing, of another type or too short at a path; none if all marks are
    /// there.
    ///
    /// # Errors
    /// As lstat(2), except for missing marks.
    pub fn find_missing_mark(path: &Path, clients: impl IntoIterator<Item = u16>) -> io::Result<Option<String>> {
        for client in clients {
            let name = format!("{PUBLISHED}/{client}");
            if !MarkFile::is_complete(&path.join(&name))? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Returns the name of the mark of a client's log, if it is missing, damaged or before `point` at a path. Reads the file,
    /// which a worker may write at the same time.
    ///
    /// # Errors
    /// As open(2), except for missing marks.
    pub fn find_damaged_mark(path: &Path, client: u16, point: LogPoint) -> io::Result<Option<String>> {
        let name = format!("{PUBLISHED}/{client}");
        Ok(if MarkFile::has_reached(&path.join(&name), point)? { None } else { Some(name) })
    }

    /// As `find_missing_mark`, but finds only marks in whose place there is a file of another type. A mark that is missing or
    /// too short can be created.
    ///
    /// # Errors
    /// As `find_missing_mark`.
    pub fn find_replaced_mark(path: &Path, clients: impl IntoIterator<Item = u16>) -> io::Result<Option<String>> {
        for client in clients {
            let name = format!("{PUBLISHED}/{client}");
            if find_metadata(&path.join(&name))?.is_some_and(|found| !found.is_file()) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Returns a number that distinguishes this tree from one that replaces it. No other tree has the number while this one
    /// is open.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn identity(&self) -> io::Result<u64> {
        Ok(fstat(&self.tree)?.st_ino)
    }

    /// As `identity`, of the tree at a path.
    ///
    /// # Errors
    /// As stat(2).
    pub fn identity_of(path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(Self::tree_path(path))?.ino())
    }

    /// The directory that ordinary tools list, of the shared tree at a path.
    pub fn tree_path(path: &Path) -> PathBuf {
        path.join(TREE)
    }

    /// Creates the mark of a client's log, with nothing published. An existing mark is kept.
    ///
    /// # Errors
    /// As open(2) and fsync(2).
    pub fn create_mark(&self, client: u16) -> io::Result<()> {
        let path = self.mark_path(client);
        if path.exists() { Ok(()) } else { MarkFile::create(&path, PublishedMark::start_of(client)) }
    }

    /// Replaces a damaged mark by one with nothing published. The caller then has the tree copied again.
    ///
    /// # Errors
    /// As `create_mark`.
    pub fn replace_mark(&self, client: u16) -> io::Result<PublishedMark> {
        let mark = PublishedMark::start_of(client);
        MarkFile::create(&self.mark_path(client), mark)?;
        Ok(mark)
    }

    /// Opens the file that contains the mark of a client's log.
    ///
    /// # Errors
    /// As open(2); [`is_damaged_mark`](super::is_damaged_mark) recognises the errors of a damaged file.
    pub fn open_mark(&self, client: u16) -> io::Result<MarkFile> {
        MarkFile::open(&self.mark_path(client))
    }

    fn mark_path(&self, client: u16) -> PathBuf {
        self.path.join(PUBLISHED).join(client.to_string())
    }

    /// The directory that ordinary tools list.
    pub fn tree(&self) -> &OwnedFd {
        &self.tree
    }

    /// Opens the data of a regular file for reading.
    ///
    /// # Errors
    /// ENOENT until the file is published.
    pub fn open_data(&self, inode: InodeNumber) -> io::Result<fs::File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
        Ok(openat(&self.inodes, inode_path(inode).as_bytes(), flags, Mode::empty())?.into())
    }

    /// Number of bytes that an inode takes, which is not a directory. 0 until it is published.
    ///
    /// # Errors
    /// As stat(2).
    pub fn allocated_bytes(&self, inode: InodeNumber) -> io::Result<u64> {
        match statat(&self.inodes, inode_path(inode).as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(state) => Ok(state.st_blocks.cast_unsigned() * SECTOR_BYTES),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// The path of an inode that is not a directory, for system calls that take no directory descriptor.
    pub(super) fn inode_call_path(&self, inode: InodeNumber) -> Vec<u8> {
        format!("/proc/self/fd/{}/{}", self.inodes.as_raw_fd(), inode_path(inode)).into_bytes()
    }
}

/// The path of an inode within `inodes`.
pub(super) fn inode_path(inode: InodeNumber) -> String {
    format!("{:02x}/{:016x}", inode.0 % INODE_DIRECTORIES, inode.0)
}

/// The name of a directory within `orphans`.
pub(super) fn orphan_name(inode: InodeNumber) -> String {
    format!("{:016x}", inode.0)
}

/// The number of an inode from its file name.
pub(super) fn number_of_name(name: &[u8]) -> Option<InodeNumber> {
    let number = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (number > 0).then_some(InodeNumber(number))
}

/// Returns the first of these names that is no directory. A symbolic link to a directory is none.
fn find_missing_directory(path: &Path, names: impl IntoIterator<Item = String>) -> io::Result<Option<String>> {
    for name in names {
        if !find_metadata(&path.join(&name))?.is_some_and(|found| found.is_dir()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOATIME;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
