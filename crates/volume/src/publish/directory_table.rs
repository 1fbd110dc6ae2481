//! The location of each directory of the volume in the shared tree. A directory has only one name, so the publisher keeps
//! this table in memory. It reads the table from the shared tree when it starts.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, fgetxattr, unlinkat};
use rustix::io::Errno;

use super::calls::{PublishError, errno_of};
use super::directory_walk::{DirectoryWalk, open_directory};
use super::inode_record::{InodeRecord, XATTR_NAME};
use super::layout::{SharedTree, number_of_name, orphan_name};
use crate::record::{EntryKey, EntryName, InodeNumber};

/// Number of open directories above which all are closed.
const OPEN_DIRECTORIES_MAX: usize = 512;

/// The entry that leads to a directory; none for the root and for orphans.
type DirectoryLocation = Option<EntryKey>;

/// All directories by number and by entry.
#[derive(Debug)]
pub(super) struct DirectoryTable {
    locations: HashMap<InodeNumber, DirectoryLocation>,
    by_entry: HashMap<EntryKey, InodeNumber>,
    open: HashMap<InodeNumber, Arc<OwnedFd>>,
}

impl DirectoryTable {
    /// Reads all directories.
    pub(super) fn load(shared: &SharedTree) -> Result<Self, PublishError> {
        let mut table = Self { locations: HashMap::new(), by_entry: HashMap::new(), open: HashMap::new() };
        table.locations.insert(InodeNumber::ROOT, None);
        let duplicate = |fd: &OwnedFd| fd.try_clone().map_err(cannot_duplicate);
        table.load_below(InodeNumber::ROOT, duplicate(&shared.tree)?)?;
        for_each_subdirectory(&shared.orphans, |name, directory| {
            let inode = number_of_name(name.as_bytes()).ok_or(PublishError::Mismatch("an orphan has no number"))?;
            // A crash occurred before its number was written. The directory is empty, and is created again if it is still
            // needed.
            if read_number(&directory).is_err() {
                return unlinkat(&shared.orphans, name.as_bytes(), AtFlags::REMOVEDIR)
                    .map_err(PublishError::call("remove a directory"));
            }
            table.locations.insert(inode, None);
            table.load_below(inode, directory)
        })?;
        Ok(table)
    }

    fn load_below(&mut self, top: InodeNumber, directory: OwnedFd) -> Result<(), PublishError> {
        let mut walk = DirectoryWalk::start(top, directory);
        while let Some(directory) = walk.next().map_err(PublishError::call("open a directory"))? {
            for_each_subdirectory(&directory.file, |name, child| {
                let inode = read_number(&child)?;
                self.set_location(inode, Some(EntryKey { parent: directory.inode, name: name.clone() }));
                walk.add(&directory, name, inode);
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(super) fn contains(&self, inode: InodeNumber) -> bool {
        self.locations.contains_key(&inode)
    }

    /// The directory that an entry leads to; none if it leads to no directory.
    pub(super) fn at(&self, entry: &EntryKey) -> Option<InodeNumber> {
        self.by_entry.get(entry).copied()
    }

    /// Opens the parent of a directory in the shared tree. Returns the parent and the directory's name in it.
    pub(super) fn place(
        &mut self,
        shared: &SharedTree,
        inode: InodeNumber,
    ) -> Result<(Arc<OwnedFd>, Vec<u8>), PublishError> {
        match self.locations.get(&inode) {
            Some(Some(EntryKey { parent, name })) => {
                let (parent, name) = (*parent, name.as_bytes().to_vec());
                Ok((self.open(shared, parent)?, name))
            }
            Some(None) if inode != InodeNumber::ROOT => {
                let orphans = shared.orphans.try_clone().map_err(cannot_duplicate)?;
                Ok((Arc::new(orphans), orphan_name(inode).into_bytes()))
            }
            _ => Err(PublishError::Mismatch("a directory is missing")),
        }
    }

    /// Records that a directory is at an entry now, or is an orphan.
    pub(super) fn set_location(&mut self, inode: InodeNumber, location: DirectoryLocation) {
        if let Some(previous) = self.locations.insert(inode, location.clone()).flatten() {
            self.by_entry.remove(&previous);
        }
        if let Some(entry) = location {
            self.by_entry.insert(entry, inode);
        }
    }

    pub(super) fn remove(&mut self, inode: InodeNumber) {
        if let Some(location) = self.locations.remove(&inode).flatten() {
            self.by_entry.remove(&location);
        }
        self.open.remove(&inode);
    }

    /// Opens a directory. An open directory stays valid when it is renamed.
    pub(super) fn open(&mut self, shared: &SharedTree, inode: InodeNumber) -> Result<Arc<OwnedFd>, PublishError> {
        let mut missing = Vec::new();
        let mut current = inode;
        let mut directory = loop {
            if let Some(open) = self.open.get(&current) {
                break Arc::clone(open);
            }
            let location = self.locations.get(&current).ok_or(PublishError::Mismatch("a directory is missing"))?;
            match location {
                Some(EntryKey { parent, name }) => {
                    missing.push((current, name.as_bytes().to_vec()));
                    current = *parent;
                }
                None => break self.open_top(shared, current)?,
            }
        };
        if self.open.len() > OPEN_DIRECTORIES_MAX {
            self.close_all();
        }
        for (number, name) in missing.into_iter().rev() {
            let child = open_directory(&directory, name.as_slice());
            directory = Arc::new(child.map_err(PublishError::call("open a directory"))?);
            self.open.insert(number, Arc::clone(&directory));
        }
        Ok(directory)
    }

    /// Closes every directory.
    pub(super) fn close_all(&mut self) {
        self.open.clear();
    }

    fn open_top(&mut self, shared: &SharedTree, inode: InodeNumber) -> Result<Arc<OwnedFd>, PublishError> {
        let opened = match inode {
            InodeNumber::ROOT => open_directory(&shared.tree, b"."),
            _ => open_directory(&shared.orphans, orphan_name(inode).as_bytes()),
        };
        let directory = Arc::new(opened.map_err(PublishError::call("open a directory"))?);
        self.open.insert(inode, Arc::clone(&directory));
        Ok(directory)
    }
}

/// Calls `visit` for each directory in a directory.
fn for_each_subdirectory(
    directory: &OwnedFd,
    mut visit: impl FnMut(EntryName, OwnedFd) -> Result<(), PublishError>,
) -> Result<(), PublishError> {
    for entry in Dir::read_from(directory).map_err(PublishError::call("read a directory"))? {
        let entry = entry.map_err(PublishError::call("read a directory"))?;
        let Some(name) = EntryName::new(entry.file_name().to_bytes()) else { continue };
        if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            match open_directory(directory, name.as_bytes()) {
                Ok(child) => visit(name, child)?,
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(PublishError::call("open a directory")(error)),
            }
        }
    }
    Ok(())
}

fn cannot_duplicate(error: io::Error) -> PublishError {
    PublishError::Call { operation: "duplicate the descriptor of a directory", source: errno_of(error) }
}

fn read_number(directory: &OwnedFd) -> Result<InodeNumber, PublishError> {
    let mut value = [0; 64];
    let length = fgetxattr(directory, XATTR_NAME, &mut value[..]).unwrap_or(0);
    let record = InodeRecord::decode(&value[..length]);
    Ok(record.ok_or(PublishError::Mismatch("a directory has no inode number"))?.inode)
}
