//! The ring of a replica's log as a region that the predecessor writes. Bytes that are in use cannot be overwritten.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_fabric::Region;
use farfork_wire::descriptor::ExtentId;
use rustix::io::Errno;

use crate::log::RING_OFFSET;

/// The positions that the predecessor may write: from the end of the log on, but no byte that is not published yet.
#[derive(Debug, Default)]
pub struct WritableWindow {
    stored: AtomicU64,
    published: AtomicU64,
}

impl WritableWindow {
    /// The log ends at `stored`, and is published up to `published`.
    pub fn set(&self, stored: u64, published: u64) {
        self.stored.store(stored, Ordering::Release);
        self.published.store(published, Ordering::Release);
    }

    /// Whether so many bytes at an offset of the ring are free.
    fn contains(&self, ring_bytes: u64, offset: u64, bytes: u64) -> bool {
        let (stored, published) = (self.stored.load(Ordering::Acquire), self.published.load(Ordering::Acquire));
        // The first position from `stored` on that has this offset.
        let position = stored + (offset + ring_bytes - stored % ring_bytes) % ring_bytes;
        position + bytes <= published + ring_bytes
    }
}

/// A region with the ring as extent 0.
#[derive(Debug)]
pub struct LogRegion {
    /// The log. Writes to the file are seen in every mapping of it.
    pub file: File,
    /// Size of the ring.
    pub ring_bytes: u64,
    /// The bytes that the predecessor may write.
    pub window: Arc<WritableWindow>,
}

impl Region for LogRegion {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        (extent == ExtentId(0)).then_some(self.ring_bytes)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, RING_OFFSET + offset)
    }

    fn write(&self, _: ExtentId, offset: u64, from: &[u8]) -> io::Result<()> {
        let bytes = from.len() as u64;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.ring_bytes);
        if !is_inside || !self.window.contains(self.ring_bytes, offset, bytes) {
            return Err(Errno::ACCESS.into());
        }
        self.file.write_all_at(from, RING_OFFSET + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_free_bytes_are_writable() {
        let window = WritableWindow::default();
        window.set(1300, 1100);
        let contains = |offset, bytes| window.contains(1000, offset, bytes);
        assert!(contains(300, 700), "to the end of the lap");
        assert!(contains(0, 100), "of the next lap, up to unpublished bytes");
        assert!(!contains(0, 101));
        assert!(!contains(100, 1) && !contains(299, 1), "in use");
    }
}
