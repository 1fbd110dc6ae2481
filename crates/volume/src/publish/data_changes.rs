//! Applies the data of a change set. Copies from the log are collected, so that one call can execute many of them. Other
//! changes of a file keep their order relative to its copies.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::calls::PublishError;
use super::layout::inode_path;
use super::publisher::Publisher;
use crate::change::{ChangeSet, DataChange, InodeChange};
use crate::record::{FileKind, InodeAttributes};

/// Maximum number of files whose copies are collected. Each one is open.
const LISTED_FILES_MAX: usize = 64;

/// Data of records that are not published yet.
pub trait LogData {
    /// Maximum number of copies that one call of `copy` executes.
    fn copies_max(&self) -> usize {
        1
    }

    /// Executes copies in any order. Those of one file do not overlap.
    ///
    /// # Errors
    /// As pwrite(2). Some of the bytes may have been copied.
    fn copy(&mut self, copies: &[DataCopy<'_>]) -> Result<(), Errno>;
}

/// A copy of bytes of a log to a file.
#[derive(Clone, Copy, Debug)]
pub struct DataCopy<'f> {
    /// Position of the first byte in the endless log.
    pub log_position: u64,
    /// Number of bytes.
    pub bytes: usize,
    /// The file.
    pub file: BorrowedFd<'f>,
    /// File offset of the first byte.
    pub offset: u64,
}

/// Calls `write` until all bytes are written. `write` gets the number of bytes that are already written, and returns how
/// many more it has written.
///
/// # Errors
/// As `write`, which is called again after EINTR.
pub(crate) fn write_fully(bytes: usize, write: impl Fn(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes {
        match write(written) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies that are not executed yet, and their files.
struct CopyList {
    /// The copies are executed when the list has this number of them.
    copies_max: usize,
    files: Vec<ChangedFile>,
    copies: Vec<ListedCopy>,
}

struct ChangedFile {
    file: OwnedFd,
    /// Size of the file after all its changes.
    size: u64,
}

struct ListedCopy {
    log_position: u64,
    bytes: usize,
    /// Index of the file in `CopyList::files`.
    file: usize,
    offset: u64,
}

impl Publisher {
    /// Gives each changed file its data and size.
    pub(super) fn change_data(&self, changes: &ChangeSet, log: &mut impl LogData) -> Result<(), PublishError> {
        // Copies that may overlap are executed one by one, in order.
        let copies_max = if changes.is_coalesced() { log.copies_max() } else { 1 };
        let mut list = CopyList { copies_max, files: Vec::new(), copies: Vec::new() };
        for (inode, change) in &changes.inodes {
            match &change.attributes {
                Some(InodeAttributes { kind: FileKind::Regular, size, .. }) => {
                    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                    let file = openat(&self.shared.inodes, inode_path(*inode).as_bytes(), flags, Mode::empty())
                        .map_err(PublishError::call("open a file"))?;
                    list.files.push(ChangedFile { file, size: *size });
                    self.change_file(change, &mut list, log)?;
                    if list.copies.is_empty() || list.files.len() >= LISTED_FILES_MAX {
                        self.copy_listed(&mut list, log)?;
                        self.finish_files(&mut list)?;
                    }
                }
                _ if !change.data.is_empty() => {
                    return Err(PublishError::Mismatch("data of an inode that is no file"));
                }
                _ => {}
            }
        }
        self.copy_listed(&mut list, log)?;
        self.finish_files(&mut list)
    }

    /// Applies the changes of the last file of the list. Copies that no other change of the file follows may stay in the
    /// list.
    fn change_file(
        &self,
        change: &InodeChange,
        list: &mut CopyList,
        log: &mut impl LogData,
    ) -> Result<(), PublishError> {
        let file = list.files.len() - 1;
        for data_change in &change.data {
            if let DataChange::Copy { offset, bytes, log_position } = *data_change {
                list.copies.push(ListedCopy { log_position, bytes: bytes as usize, file, offset });
                if list.copies.len() >= list.copies_max {
                    self.copy_listed(list, log)?;
                }
                continue;
            }
            self.copy_listed(list, log)?;
            let file = &list.files[file].file;
            match *data_change {
                DataChange::Copy { .. } => {}
                DataChange::PunchHole { offset, bytes } => {
                    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    self.calls.allocate(file, mode, offset, bytes)?;
                }
                DataChange::AllocateSpace { offset, bytes } => {
                    self.calls.allocate(file, FallocateFlags::KEEP_SIZE, offset, bytes)?;
                }
                DataChange::SetSize { bytes } => self.calls.truncate(file, bytes)?,
            }
        }
        Ok(())
    }

    /// Executes all copies of the list.
    fn copy_listed(&self, list: &mut CopyList, log: &mut impl LogData) -> Result<(), PublishError> {
        if list.copies.is_empty() {
            return Ok(());
        }
        let CopyList { files, copies, .. } = list;
        let listed = copies.iter().map(|copy| DataCopy {
            log_position: copy.log_position,
            bytes: copy.bytes,
            file: files[copy.file].file.as_fd(),
            offset: copy.offset,
        });
        let listed: Vec<DataCopy<'_>> = listed.collect();
        self.calls.make("write data", None, || log.copy(&listed))?;
        copies.clear();
        Ok(())
    }

    /// Gives the files of the list their final sizes, after all their changes. Empties the list.
    fn finish_files(&self, list: &mut CopyList) -> Result<(), PublishError> {
        for ChangedFile { file, size } in list.files.drain(..) {
            let current = fstat(&file).map_err(PublishError::call("stat a file"))?;
            if current.st_size as u64 != size {
                self.calls.truncate(&file, size)?;
            }
        }
        Ok(())
    }
}
