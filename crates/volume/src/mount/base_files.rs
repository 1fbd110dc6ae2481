//! Files of the shared tree that open files of the mount read from.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::BackingId;

use crate::publish::{SECTOR_BYTES, SharedTree};
use crate::record::InodeNumber;

/// The files of the shared tree, one for each inode that is open in the mount.
#[derive(Debug, Default)]
pub(super) struct BaseFiles {
    files: Mutex<HashMap<InodeNumber, BaseFile>>,
    /// Number of inodes that are open for passthrough.
    passthrough_inodes: AtomicU64,
    /// Notified when an inode is no longer open for passthrough.
    passthrough_ended: Condvar,
}

#[derive(Debug, Default)]
struct BaseFile {
    open_count: u64,
    /// Number of open files that append (O_APPEND).
    appender_count: u64,
    /// The file of the shared tree. None until `get` or `open_with` stores it.
    file: Option<Arc<File>>,
    /// `Some` while the inode is open for passthrough.
    passthrough: Option<PassthroughFiles>,
}

/// Open files of an inode that is open for passthrough.
#[derive(Debug)]
struct PassthroughFiles {
    count: u64,
    /// The kernel accepts only one registration of an inode at a time.
    backing: Arc<BackingId>,
}

impl BaseFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<InodeNumber, BaseFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self, inode: InodeNumber) {
        self.lock().entry(inode).or_default().open_count += 1;
    }

    /// Counts an open file, as `open` does. `data` is its file of the shared tree, which another client may have dropped.
    pub(super) fn open_with(&self, inode: InodeNumber, data: Arc<File>) {
        let mut files = self.lock();
        let base = files.entry(inode).or_default();
        base.open_count += 1;
        base.file.get_or_insert(data);
    }

    pub(super) fn is_open(&self, inode: InodeNumber) -> bool {
        self.lock().contains_key(&inode)
    }

    /// Counts an open file that appends.
    pub(super) fn add_appender(&self, inode: InodeNumber) {
        if let Some(base) = self.lock().get_mut(&inode) {
            base.appender_count += 1;
        }
    }

    /// Whether an open file of an inode appends.
    pub(super) fn has_appender(&self, inode: InodeNumber) -> bool {
        let files = self.lock();
        files.get(&inode).is_some_and(|base| base.appender_count > 0)
    }

    /// Removes an open file that appends from the count, before its release.
    pub(super) fn remove_appender(&self, inode: InodeNumber) {
        if let Some(base) = self.lock().get_mut(&inode) {
            base.appender_count -= 1;
        }
    }

    /// Starts passthrough for an inode: `register` registers the shared tree's file with the kernel. Returns None if that
    /// fails, or if the inode has another open file, because the kernel would then fail this open(2) with EIO.
    pub(super) fn start_passthrough(
        &self,
        inode: InodeNumber,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let mut files = self.lock();
        let base = files.get_mut(&inode).filter(|base| base.open_count == 1)?;
        let registered =
            register().inspect_err(|error| tracing::debug!(%error, ?inode, "passthrough is not available"));
        let backing = Arc::new(registered.ok()?);
        base.passthrough = Some(PassthroughFiles { count: 1, backing: Arc::clone(&backing) });
        self.passthrough_inodes.fetch_add(1, Ordering::Relaxed);
        Some(backing)
    }

    /// Counts one more open file of an inode with passthrough. Returns None if passthrough has just ended.
    pub(super) fn add_passthrough(&self, inode: InodeNumber) -> Option<Arc<BackingId>> {
        let mut files = self.lock();
        let passthrough = files.get_mut(&inode)?.passthrough.as_mut()?;
        passthrough.count += 1;
        Some(Arc::clone(&passthrough.backing))
    }

    /// Whether the kernel reads the data of an inode by itself.
    pub(super) fn has_passthrough(&self, inode: InodeNumber) -> bool {
        self.passthrough_inodes.load(Ordering::Relaxed) > 0
            && self.lock().get(&inode).is_some_and(|base| base.passthrough.is_some())
    }

    /// Waits until an inode is not open for passthrough, at most for `limit`.
    pub(super) fn wait_for_passthrough(&self, inode: InodeNumber, limit: Duration) {
        let is_open = |files: &mut HashMap<InodeNumber, BaseFile>| {
            files.get(&inode).is_some_and(|base| base.passthrough.is_some())
        };
        drop(self.passthrough_ended.wait_timeout_while(self.lock(), limit, is_open));
    }

    /// Removes an open file of an inode with passthrough from the count. After the last one, passthrough ends.
    pub(super) fn remove_passthrough(&self, inode: InodeNumber) {
        let mut files = self.lock();
        let Some(base) = files.get_mut(&inode) else { return };
        let Some(passthrough) = &mut base.passthrough else { return };
        passthrough.count -= 1;
        if passthrough.count == 0 {
            base.passthrough = None;
            self.passthrough_inodes.fetch_sub(1, Ordering::Relaxed);
            self.passthrough_ended.notify_all();
        }
    }

    /// Whether an inode is open more than once.
    pub(super) fn is_shared(&self, inode: InodeNumber) -> bool {
        let files = self.lock();
        files.get(&inode).is_some_and(|base| base.open_count > 1)
    }

    pub(super) fn release(&self, inode: InodeNumber) {
        let mut files = self.lock();
        let Some(base) = files.get_mut(&inode) else { return };
        base.open_count -= 1;
        if base.open_count == 0 {
            files.remove(&inode);
        }
    }

    /// Number of bytes that an inode takes in the shared tree. 0 before the inode is published.
    pub(super) fn allocated_bytes(&self, shared: &SharedTree, inode: InodeNumber) -> io::Result<u64> {
        let opened = self.lock().get(&inode).and_then(|base| base.file.clone());
        match opened {
            // Another client may have dropped the file.
            Some(file) => Ok(file.metadata()?.blocks() * SECTOR_BYTES),
            None => shared.allocated_bytes(inode),
        }
    }

    /// Returns the file of an inode in the shared tree; none before the inode is published.
    pub(super) fn get(&self, shared: &SharedTree, inode: InodeNumber) -> io::Result<Option<Arc<File>>> {
        let mut files = self.lock();
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
