//! An inode of the view: its attributes, and the content that its kind has.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use super::directory::DirectoryEntries;
use super::extent_map::ExtentMap;
use crate::record::{FileKind, InodeAttributes, InodeNumber, XattrName};

/// The content of an inode, by its kind.
#[derive(Clone, Debug)]
pub enum InodeContent {
    /// The unpublished extents of a regular file.
    File(ExtentMap),
    /// The entries of a directory.
    Directory {
        /// The entries by name.
        entries: DirectoryEntries,
        /// Number of entries that are directories.
        subdirectories: u32,
    },
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// Pipes, sockets and devices have no content.
    Special,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Attributes after all records, including unpublished ones.
    pub attributes: InodeAttributes,
    /// Number of entries that lead to the inode.
    pub entry_count: u32,
    /// The directory of the entry that was set last. For a directory, this is `..`.
    pub parent: InodeNumber,
    /// The directories of the other entries.
    pub other_parents: Vec<InodeNumber>,
    /// Content by kind of file.
    pub content: InodeContent,
    /// Extended attributes.
    pub xattrs: BTreeMap<XattrName, ByteBuf>,
    /// Number of lookups that the kernel has not forgotten.
    pub lookups: u64,
    /// Whether another client has removed the last entry. That client drops the inode when its kernel has forgotten it.
    pub is_unlinked_elsewhere: bool,
    /// Whether another client has changed owner or mode while the kernel knew the inode. The kernel may have checked a call
    /// with the old ones.
    pub has_foreign_permissions: bool,
    /// Sequence number of the record of this client's log that created the inode. None if the inode was read from the shared
    /// tree.
    pub created_by: Option<u64>,
}

impl Inode {
    /// Creates an inode that no entry leads to yet.
    pub fn new(attributes: InodeAttributes) -> Self {
        let content = match attributes.kind {
            FileKind::Regular => InodeContent::File(ExtentMap::default()),
            FileKind::Directory => InodeContent::Directory { entries: DirectoryEntries::default(), subdirectories: 0 },
            FileKind::Symlink => InodeContent::Symlink(Vec::new()),
            _ => InodeContent::Special,
        };
        Self {
            attributes,
            entry_count: 0,
            parent: InodeNumber::ROOT,
            other_parents: Vec::new(),
            content,
            xattrs: BTreeMap::new(),
            lookups: 0,
            is_unlinked_elsewhere: false,
            has_foreign_permissions: false,
            created_by: None,
        }
    }

    /// Adds an entry of a directory that leads to this inode.
    pub(super) fn add_entry(&mut self, directory: InodeNumber) {
        if self.entry_count > 0 {
            self.other_parents.push(self.parent);
        }
        self.entry_count += 1;
        self.parent = directory;
    }

    /// Removes an entry of a directory that led to this inode. After the last entry, `parent` keeps this directory.
    pub(super) fn remove_entry(&mut self, directory: InodeNumber) {
        self.entry_count -= 1;
        if self.parent == directory {
            self.parent = self.other_parents.pop().unwrap_or(directory);
        } else if let Some(at) = self.other_parents.iter().position(|parent| *parent == directory) {
            self.other_parents.swap_remove(at);
        }
    }

    /// `st_nlink`.
    pub fn link_count(&self) -> u32 {
        match self.content {
            InodeContent::Directory { subdirectories, .. } if self.entry_count > 0 => 2 + subdirectories,
            _ => self.entry_count,
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }
}
