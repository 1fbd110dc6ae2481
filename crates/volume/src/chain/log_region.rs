//! The ring of a replica's log as a memory region. The predecessor writes to it, and this node expands compressed chunks in
//! it. Bytes that are not published yet cannot be overwritten.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farfork_fabric::Region;
use farfork_wire::descriptor::ExtentId;
use rustix::io::Errno;

use super::compressed_chunk::CompressedChunk;
use crate::log::{RING_OFFSET, file_offset};

/// The positions that the predecessor may write: from the end of the log up to the position that would overwrite the first
/// unpublished byte.
#[derive(Debug, Default)]
pub struct WritableWindow {
    stored: AtomicU64,
    published: AtomicU64,
}

impl WritableWindow {
    /// Sets the end of the log, and the position up to which it is published.
    pub fn set(&self, stored: u64, published: u64) {
        self.stored.store(stored, Ordering::Release);
        self.published.store(published, Ordering::Release);
    }

    /// Whether `bytes` bytes at an offset of the ring are free.
    fn contains(&self, ring_bytes: u64, offset: u64, bytes: u64) -> bool {
        let (stored, published) = (self.stored.load(Ordering::Acquire), self.published.load(Ordering::Acquire));
        // The lowest position with this offset that is not less than `stored`.
        let position = stored + (offset + ring_bytes - stored % ring_bytes) % ring_bytes;
        position + bytes <= published + ring_bytes
    }

    /// Whether the expanded bytes of a chunk may be written.
    fn contains_chunk(&self, ring_bytes: u64, chunk: &CompressedChunk) -> bool {
        let (stored, published) = (self.stored.load(Ordering::Acquire), self.published.load(Ordering::Acquire));
        chunk.position >= stored && chunk.position + u64::from(chunk.log_bytes) <= published + ring_bytes
    }
}

/// The region of one log. Extent 0 is the ring.
#[derive(Debug)]
pub struct LogRegion {
    /// The log file. Writes to the file are visible in every mapping of it.
    pub file: File,
    /// Size of the ring.
    pub ring_bytes: u64,
    /// The bytes that the predecessor may write.
    pub window: Arc<WritableWindow>,
}

/// The buffers for expanding chunks. They are empty until the first chunk, because compression is off by default.
#[derive(Debug, Default)]
pub struct ChunkBuffers {
    compressed: Vec<u8>,
    expanded: Vec<u8>,
}

impl LogRegion {
    /// Expands chunks in place, from a list that `decode_chunks` has accepted. Writes through `exported`, the registered
    /// form of this region. After the region is revoked, such writes fail, because another predecessor may write the same
    /// bytes.
    ///
    /// # Errors
    /// Stops at the first chunk that is damaged, that may not be written (EACCES), or when the region is revoked (ESRCH).
    /// This chunk and all later ones stay compressed.
    pub fn expand(
        &self,
        chunks: &[CompressedChunk],
        exported: &dyn Region,
        buffers: &mut ChunkBuffers,
    ) -> io::Result<()> {
        let ChunkBuffers { compressed, expanded } = buffers;
        for chunk in chunks {
            if !self.window.contains_chunk(self.ring_bytes, chunk) {
                return Err(Errno::ACCESS.into());
            }
            compressed.resize(chunk.compressed_bytes as usize, 0);
            expanded.resize(chunk.log_bytes as usize, 0);
            self.file.read_exact_at(compressed, file_offset(chunk.position, self.ring_bytes))?;
            chunk.expand(compressed, expanded).map_err(io::Error::other)?;
            exported.write(ExtentId(0), chunk.position % self.ring_bytes, expanded)?;
        }
        Ok(())
    }
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
    use farfork_fabric::{RegionRegistry, SeedKey};
    use farfork_wire::token::TOKEN_BYTES;
    use farfork_wire::{NodeName, SeedId, Token};

    use super::super::compression::{LogCompression, LogCompressor};
    use super::*;

    #[test]
    fn only_free_bytes_are_writable() {
        let window = WritableWindow::default();
        window.set(1300, 1100);
        let contains = |offset, bytes| window.contains(1000, offset, bytes);
        assert!(contains(300, 700), "to the end of the lap");
        assert!(contains(0, 100), "in the next lap, up to unpublished bytes");
        assert!(!contains(0, 101));
        assert!(!contains(100, 1) && !contains(299, 1), "unpublished bytes");
    }

    const RING_BYTES: u64 = 256 << 10;
    const LOG_BYTES: u32 = 50_000;

    /// A region without unpublished bytes, with a compressed chunk at a position.
    fn region_with_chunk(position: u64) -> (LogRegion, CompressedChunk, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(RING_OFFSET + RING_BYTES).unwrap();
        let window = Arc::new(WritableWindow::default());
        window.set(position, position);
        let region = LogRegion { file, ring_bytes: RING_BYTES, window };
        let data: Vec<u8> = (0..LOG_BYTES).map(|index| (index / 100) as u8).collect();
        let mut compressor = LogCompressor::new(LogCompression::Lz4);
        let compressed = compressor.compress(&data).unwrap();
        region.write(ExtentId(0), position % RING_BYTES, compressed).unwrap();
        let compressed_bytes = compressed.len() as u32;
        (region, CompressedChunk { position, log_bytes: LOG_BYTES, compressed_bytes }, data)
    }

    fn read(region: &LogRegion, position: u64) -> Vec<u8> {
        let mut found = vec![0; LOG_BYTES as usize];
        region.read(ExtentId(0), position % RING_BYTES, &mut found).unwrap();
        found
    }

    #[test]
    fn chunks_are_expanded_in_place() {
        let position = 3 * RING_BYTES + 1000;
        let (region, chunk, data) = region_with_chunk(position);
        expand(&region, &[chunk]).unwrap();
        assert!(read(&region, position) == data);
    }

    #[test]
    fn a_damaged_chunk_and_all_later_ones_stay_as_they_are() {
        let (region, chunk, _) = region_with_chunk(0);
        let before = read(&region, 0);
        let short = CompressedChunk { compressed_bytes: chunk.compressed_bytes - 1, ..chunk };
        let error = expand(&region, &[short, chunk]).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        assert!(read(&region, 0) == before);
    }

    fn expand(region: &LogRegion, chunks: &[CompressedChunk]) -> io::Result<()> {
        region.expand(chunks, region, &mut ChunkBuffers::default())
    }

    #[test]
    fn bytes_in_use_are_not_expanded() {
        let (region, chunk, _) = region_with_chunk(1000);
        let before = read(&region, 1000);
        region.window.set(1001, 1001);
        assert_eq!(expand(&region, &[chunk]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // The last byte of the chunk would overwrite an unpublished byte of the previous lap.
        region.window.set(RING_BYTES, u64::from(LOG_BYTES) - 1);
        let next_lap = CompressedChunk { position: RING_BYTES, ..chunk };
        assert!(!region.window.contains_chunk(RING_BYTES, &next_lap));
        assert!(read(&region, 1000) == before);
    }

    #[test]
    fn chunks_of_a_revoked_region_are_not_expanded() {
        let (region, chunk, _) = region_with_chunk(1000);
        let before = read(&region, 1000);
        let region = Arc::new(region);
        let key =
            SeedKey { seed: SeedId::new(NodeName::new("n1").unwrap(), 1), token: Token::from_bytes([1; TOKEN_BYTES]) };
        let registration = RegionRegistry::new(None).register(&key, Arc::clone(&region) as Arc<dyn Region>).unwrap();
        let exported = registration.region();
        drop(registration);
        let error = region.expand(&[chunk], &*exported, &mut ChunkBuffers::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
        assert!(read(&region, 1000) == before);
    }
}
