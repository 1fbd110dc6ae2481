//! Files of the shared tree that open files of the mount read from.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::publish::SharedTree;
use crate::record::InodeNumber;

/// One per inode that is open in the mount.
#[derive(Debug, Default)]
pub(super) struct BaseFiles {
    files: Mutex<HashMap<InodeNumber, BaseFile>>,
}

#[derive(Debug, Default)]
struct BaseFile {
    open_count: u64,
    /// How many of them append (O_APPEND).
    appender_count: u64,
    /// None until it is read, or published.
    file: Option<Arc<File>>,
}

impl BaseFiles {
    pub(super) fn open(&self, inode: InodeNumber) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).entry(inode).or_default().open_count += 1;
    }

    /// As `open`, for a file whose data may be gone from the shared tree by now.
    pub(super) fn open_with(&self, inode: InodeNumber, data: Arc<File>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let base = files.entry(inode).or_default();
        base.open_count += 1;
        base.file.get_or_insert(data);
    }

    pub(super) fn is_open(&self, inode: InodeNumber) -> bool {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&inode)
    }

    /// An open file appends.
    pub(super) fn add_appender(&self, inode: InodeNumber) {
        if let Some(base) = self.files.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&inode) {
            base.appender_count += 1;
        }
    }

    /// Whether an open file of an inode appends.
    pub(super) fn has_appender(&self, inode: InodeNumber) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&inode).is_some_and(|base| base.appender_count > 0)
    }

    /// An open file that appends is about to be released.
    pub(super) fn remove_appender(&self, inode: InodeNumber) {
        if let Some(base) = self.files.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&inode) {
            base.appender_count -= 1;
        }
    }

    /// Whether an inode is open more than once.
    pub(super) fn is_shared(&self, inode: InodeNumber) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&inode).is_some_and(|base| base.open_count > 1)
    }

    pub(super) fn release(&self, inode: InodeNumber) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(base) = files.get_mut(&inode) else { return };
        base.open_count -= 1;
        if base.open_count == 0 {
            files.remove(&inode);
        }
    }

    /// The file's data as it is published; none before it is.
    pub(super) fn get(&self, shared: &SharedTree, inode: InodeNumber) -> io::Result<Option<Arc<File>>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&inode).and_then(|base| base.file.clone()) {
            return Ok(Some(file));
        }
        let file = match shared.open_data(inode) {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(base) = files.get_mut(&inode) {
            base.file = Some(Arc::clone(&file));
        }
        Ok(Some(file))
    }
}
