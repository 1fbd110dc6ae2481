//! Inodes of a change set: creation, attributes, removal.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, openat, statat};
use rustix::io::Errno;

use super::calls::PublishError;
use super::inode_record::{InodeRecord, XATTR_NAME};
use super::layout::{SharedTree, inode_path, number_of_name, orphan_name};
use super::publisher::Publisher;
use crate::change::{ChangeSet, InodeChange};
use crate::record::{FileKind, InodeAttributes, InodeNumber, Timestamp};

impl Publisher {
    /// Creates the inodes that do not exist and are not dropped. A new inode has no entry yet.
    pub(super) fn create_inodes(&mut self, changes: &ChangeSet) -> Result<(), PublishError> {
        for (inode, change) in changes.inodes.iter().filter(|(_, change)| !change.is_dropped) {
            match &change.attributes {
                Some(InodeAttributes { kind: FileKind::Directory, .. }) => self.create_directory(*inode)?,
                Some(attributes) => self.create_file(*inode, attributes, change)?,
                None => {}
            }
        }
        Ok(())
    }

    fn create_directory(&mut self, inode: InodeNumber) -> Result<(), PublishError> {
        if self.directories.contains(inode) {
            return Ok(());
        }
        self.calls.make_directory(&self.shared.orphans, orphan_name(inode).as_bytes())?;
        self.directories.set_location(inode, None);
        // A directory must have its number before it may be moved into the tree.
        let directory = self.directories.open(&self.shared, inode)?;
        let record = InodeRecord { inode, changed: Timestamp::default() };
        self.calls.set_directory_xattr(&*directory, XATTR_NAME, Some(&record.encode()))
    }

    fn create_file(
        &self,
        inode: InodeNumber,
        attributes: &InodeAttributes,
        change: &InodeChange,
    ) -> Result<(), PublishError> {
        let (inodes, path) = (&self.shared.inodes, inode_path(inode));
        if let Some(target) = &change.symlink_target {
            return self.calls.make_symlink(target, inodes, path.as_bytes());
        }
        let kind = match attributes.kind {
            // An existing link: its target never changes.
            FileKind::Symlink | FileKind::Directory => return Ok(()),
            FileKind::Regular => FileType::RegularFile,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharacterDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
        };
        self.calls.make_node(inodes, path.as_bytes(), kind, attributes.device)
    }

    /// Sets extended attributes, then owner, mode and timestamps. Called after the changes of entries and data, because
    /// these change timestamps.
    pub(super) fn set_attributes(&mut self, changes: &ChangeSet) -> Result<(), PublishError> {
        for (inode, change) in changes.inodes.iter().filter(|(_, change)| !change.is_dropped) {
            let is_directory = self.directories.contains(*inode);
            let record = change
                .attributes
                .as_ref()
                .map(|attributes| InodeRecord { inode: *inode, changed: attributes.changed }.encode());
            let record = record.as_ref().map(|record| (XATTR_NAME, Some(record.as_slice())));
            let xattrs = change.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_ref().map(|v| &v[..])));
            if is_directory {
                let directory = self.directories.open(&self.shared, *inode)?;
                for (name, value) in record.into_iter().chain(xattrs) {
                    self.calls.set_directory_xattr(&*directory, name, value)?;
                }
                if let Some(attributes) = &change.attributes {
                    self.calls.set_directory_attributes(directory.as_fd(), attributes, &timestamps(attributes))?;
                }
            } else {
                let path = self.shared.inode_call_path(*inode);
                for (name, value) in record.into_iter().chain(xattrs) {
                    self.calls.set_xattr(&path, name, value)?;
                }
                if let Some(attributes) = &change.attributes {
                    self.set_file_attributes(*inode, attributes)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the owner first, because chown(2) clears the set-user-ID bit.
    fn set_file_attributes(&self, inode: InodeNumber, attributes: &InodeAttributes) -> Result<(), PublishError> {
        let (inodes, path) = (&self.shared.inodes, inode_path(inode));
        let path = path.as_bytes();
        self.calls.set_owner(inodes, path, attributes.user, attributes.group)?;
        if attributes.kind != FileKind::Symlink {
            self.calls.set_mode(inodes, path, attributes.mode)?;
        }
        self.calls.set_times(inodes, path, &timestamps(attributes))
    }

    /// Removes dropped inodes, to which no entry leads.
    pub(super) fn drop_inodes(&mut self, changes: &ChangeSet) -> Result<(), PublishError> {
        for (inode, _) in changes.inodes.iter().filter(|(_, change)| change.is_dropped) {
            if self.directories.contains(*inode) {
                let (parent, name) = self.directories.place(&self.shared, *inode)?;
                self.calls.remove_directory(&*parent, &name)?;
                self.directories.remove(*inode);
            } else {
                self.calls.unlink(&self.shared.inodes, inode_path(*inode).as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Finds the inodes that no entry leads to: files that a client had open when it died, and directories that it had removed.
///
/// # Errors
/// As the system calls.
pub fn find_unlinked_inodes(shared: &SharedTree) -> Result<Vec<InodeNumber>, PublishError> {
    Ok(find_unentered(shared)?.unlinked)
}

/// Files in `inodes` and `orphans` that no entry of the volume leads to.
#[derive(Debug, Default)]
pub(super) struct UnenteredFiles {
    /// Inodes of the volume.
    pub(super) unlinked: Vec<InodeNumber>,
    /// Paths in the shared tree of files that no publisher creates.
    pub(super) foreign: Vec<String>,
}

/// As `find_unlinked_inodes`, and finds foreign files, too.
pub(super) fn find_unentered(shared: &SharedTree) -> Result<UnenteredFiles, PublishError> {
    let mut found = UnenteredFiles::default();
    for group in names_in(&shared.inodes)? {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(&shared.inodes, group.as_slice(), flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                found.foreign.push(format!("inodes/{}", group.escape_ascii()));
                continue;
            }
            opened => opened.map_err(PublishError::call("open a directory"))?,
        };
        for name in names_in(&directory)? {
            let path = format!("{}/{}", group.escape_ascii(), name.escape_ascii());
            match number_of_name(&name).filter(|number| inode_path(*number) == path) {
                None => found.foreign.push(format!("inodes/{path}")),
                Some(number) => {
                    let state = statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(PublishError::call("stat a file"))?;
                    if state.st_nlink == 1 {
                        found.unlinked.push(number);
                    }
                }
            }
        }
    }
    for name in names_in(&shared.orphans)? {
        match number_of_name(&name).filter(|number| orphan_name(*number).as_bytes() == name) {
            None => found.foreign.push(format!("orphans/{}", name.escape_ascii())),
            Some(number) => found.unlinked.push(number),
        }
    }
    Ok(found)
}

fn names_in(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, PublishError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(PublishError::call("read a directory"))? {
        let entry = entry.map_err(PublishError::call("read a directory"))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn timestamps(attributes: &InodeAttributes) -> Timestamps {
    let timespec = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: timespec(attributes.accessed), last_modification: timespec(attributes.modified) }
}
