//! How the kernel reads and writes an open file: through its page cache, with a request for each call, or by passthrough.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use rustix::fs::OFlags;

use super::client::VolumeClient;
use super::conversion::error_of;
use crate::record::InodeNumber;

/// Bit of the handle of an open file that appends. The flags of the release request cannot replace it: fcntl(2) may have
/// changed them.
const APPENDING: u64 = 1;
/// Bit of the handle of an open file that the kernel has opened for passthrough.
const PASSTHROUGH: u64 = 2;
/// Bit of the handle of an open file that bypasses the kernel's page cache.
const UNCACHED: u64 = 4;

/// Longest wait of an open(2) with O_RDWR for the end of passthrough. The kernel sends the release request only after
/// close(2) has returned. So a program can have closed the file while its release is still on the way.
const PASSTHROUGH_WAIT_MAX: Duration = Duration::from_secs(1);

/// Which calls open(2) allows, by its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessMode {
    /// O_RDONLY.
    Read,
    /// O_WRONLY.
    Write,
    /// O_RDWR. Only such a file can have a shared mapping that is written.
    ReadWrite,
}

impl AccessMode {
    fn of(flags: i32) -> Self {
        let mode = OFlags::from_bits_retain(flags.cast_unsigned()) & OFlags::ACCMODE;
        match mode {
            OFlags::RDONLY => Self::Read,
            OFlags::WRONLY => Self::Write,
            _ => Self::ReadWrite,
        }
    }
}

/// Whether the flags of open(2) have O_APPEND.
pub(super) fn is_appending(flags: i32) -> bool {
    OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::APPEND)
}

/// Whether writes to an open file bypass the kernel's page cache. fcntl(2) does not change this.
pub(super) fn bypasses_cache(handle: FileHandle) -> bool {
    handle.0 & (UNCACHED | PASSTHROUGH) != 0
}

/// Whether the flags of open(2) permit only reading.
pub(super) fn only_reads(flags: i32) -> bool {
    AccessMode::of(flags) == AccessMode::Read
}

/// Whether the flags of open(2) permit reading.
pub(super) fn may_read(flags: i32) -> bool {
    AccessMode::of(flags) != AccessMode::Write
}

impl VolumeClient {
    /// Answers an open(2) with these flags. The file is counted as open already.
    pub(super) fn answer_opened(self: &Arc<Self>, inode: InodeNumber, flags: i32, reply: ReplyOpen) {
        if AccessMode::of(flags) == AccessMode::ReadWrite && self.base_files.has_passthrough(inode) {
            let client = Arc::clone(self);
            // No thread that serves requests may wait. If no thread can be started, dropping the reply answers EIO.
            let waiting = thread::Builder::new().name("open".to_owned());
            let _ = waiting.spawn(move || {
                client.base_files.wait_for_passthrough(inode, PASSTHROUGH_WAIT_MAX);
                client.answer_open_mode(inode, flags, reply);
            });
        } else {
            self.answer_open_mode(inode, flags, reply);
        }
    }

    fn answer_open_mode(&self, inode: InodeNumber, flags: i32, reply: ReplyOpen) {
        match self.begin_passthrough(inode, AccessMode::of(flags), &reply) {
            Ok(None) => {
                let (handle, cache_use) = self.choose_cache_use(inode, flags);
                reply.opened(handle, cache_use);
            }
            Ok(Some(backing)) => self.answer_passthrough(inode, flags, &backing, reply),
            Err(error) => {
                self.base_files.release(inode);
                reply.error(error_of(error));
            }
        }
    }

    /// The kernel reads by itself; it sends writes as requests. `FOPEN_DIRECT_IO` overrides passthrough for read(2) and
    /// write(2).
    fn answer_passthrough(&self, inode: InodeNumber, flags: i32, backing: &Arc<BackingId>, reply: ReplyOpen) {
        let is_reader = AccessMode::of(flags) == AccessMode::Read;
        let direct = if is_reader { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO };
        let handle = FileHandle(PASSTHROUGH | self.count_appender(inode, flags));
        reply.opened_passthrough(handle, direct, backing);
    }

    /// The handle of a file that is opened without passthrough, and how the kernel uses its page cache for it.
    ///
    /// The kernel would divide a buffered write that crosses a page, and another node could append between the parts. So a
    /// file that appends bypasses the cache. While one is open, other files of the inode are opened in this way too.
    /// Otherwise, a reader could combine a cached page from before an append with the size after it, and would get zeros.
    pub(super) fn choose_cache_use(&self, inode: InodeNumber, flags: i32) -> (FileHandle, FopenFlags) {
        let (handle, cached) = (self.count_appender(inode, flags), FopenFlags::FOPEN_KEEP_CACHE);
        if self.base_files.has_appender(inode) {
            (FileHandle(UNCACHED | handle), cached | FopenFlags::FOPEN_DIRECT_IO)
        } else {
            (FileHandle(handle), cached)
        }
    }

    /// Counts an open file that appends. Returns its bit of the handle.
    fn count_appender(&self, inode: InodeNumber, flags: i32) -> u64 {
        if !is_appending(flags) {
            return 0;
        }
        self.base_files.add_appender(inode);
        APPENDING
    }

    /// Removes an open file from the counts, after its last close(2).
    pub(super) fn release_file(&self, inode: InodeNumber, handle: FileHandle) {
        if handle.0 & APPENDING != 0 {
            self.base_files.remove_appender(inode);
        }
        if handle.0 & PASSTHROUGH != 0 {
            self.base_files.remove_passthrough(inode);
        }
        self.base_files.release(inode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_an_access_mode() {
        let of = |flags: OFlags| AccessMode::of(flags.bits().cast_signed());
        assert_eq!(of(OFlags::RDONLY | OFlags::CLOEXEC), AccessMode::Read);
        assert_eq!(of(OFlags::WRONLY | OFlags::APPEND), AccessMode::Write);
        assert_eq!(of(OFlags::RDWR | OFlags::TRUNC), AccessMode::ReadWrite);
        assert!(is_appending((OFlags::WRONLY | OFlags::APPEND).bits().cast_signed()));
    }
}
