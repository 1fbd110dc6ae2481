//! Free space of the shared tree, as far as the log will not use it. A write that could not be published is refused with
//! ENOSPC when it is made, not lost later.

use std::os::fd::OwnedFd;

use rustix::fs::{StatVfs, fstatvfs};
use rustix::io::Errno;

/// Kept free for metadata of the shared tree, and for what others write to the same file system meanwhile.
const RESERVE_BYTES: u64 = 16 << 20;
/// Metadata of one record in the shared tree: a block of a directory and one of an inode.
const RECORD_BYTES: u64 = 2 * 4096;

/// An estimate of free space, refreshed when it runs low and when the log is published.
#[derive(Debug, Default)]
pub(super) struct SpaceEstimate {
    free_bytes: u64,
    /// Bytes that records have used since the last refresh.
    taken_bytes: u64,
}

impl SpaceEstimate {
    /// Takes space for one record.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn take(&mut self, tree: &OwnedFd, bytes: u64, log_bytes: u64) -> Result<(), Errno> {
        let needed = bytes.saturating_add(RECORD_BYTES);
        if self.has_room_for(needed) {
            self.taken_bytes += needed;
            return Ok(());
        }
        // Records in the log still need their space in the shared tree.
        self.free_bytes = available_bytes(&fstatvfs(tree)?).saturating_sub(log_bytes);
        self.taken_bytes = 0;
        if !self.has_room_for(needed) {
            return Err(Errno::NOSPC);
        }
        self.taken_bytes = needed;
        Ok(())
    }

    /// Everything is published: the next record asks the file system again.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    fn has_room_for(&self, needed: u64) -> bool {
        self.taken_bytes.saturating_add(needed).saturating_add(RESERVE_BYTES) <= self.free_bytes
    }
}

/// Bytes that processes without privileges may use.
pub(super) fn available_bytes(state: &StatVfs) -> u64 {
    state.f_bavail.saturating_mul(state.f_frsize)
}
