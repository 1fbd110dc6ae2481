//! An inode of the view: its attributes, and whatever else its kind has.

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
        /// By name.
        entries: DirectoryEntries,
        /// How many entries are directories.
        subdirectories: u32,
    },
    /// The target of a symbolic link.
    Symlink(Vec<u8>),
    /// A pipe, a socket or a device has nothing.
    Special,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// As the log or the shared tree has them.
    pub attributes: InodeAttributes,
    /// How many entries lead here.
    pub entry_count: u32,
    /// The directory of the entry that was set last. For a directory, `..` leads there.
    pub parent: InodeNumber,
    /// The directories of the other entries.
    pub other_parents: Vec<InodeNumber>,
    /// By kind.
    pub content: InodeContent,
    /// Extended attributes.
    pub xattrs: BTreeMap<XattrName, ByteBuf>,
    /// How often the kernel has looked it up and not forgotten it.
    pub lookups: u64,
    /// Another client has removed the last entry, and drops the inode when its kernel has forgotten it.
    pub is_unlinked_elsewhere: bool,
    /// The record of this client's log that has created it. None when it was published before.
    pub created_by: Option<u64>,
}

impl Inode {
    /// An inode that no entry leads to yet.
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
            created_by: None,
        }
    }

    /// An entry of a directory leads here.
    pub(super) fn add_entry(&mut self, directory: InodeNumber) {
        if self.entry_count > 0 {
            self.other_parents.push(self.parent);
        }
        self.entry_count += 1;
        self.parent = directory;
    }

    /// An entry of a directory leads here no longer. The last parent stays.
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
