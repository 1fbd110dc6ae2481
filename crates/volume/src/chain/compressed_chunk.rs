//! The list of compressed parts of a log: encodes it for the sender, and decodes it for the receiver. Expands the parts.
//! Does no I/O: `log_region` reads and writes the ring. All received input is checked, because another node has sent it.

use std::ops::Range;

use lz4_flex::block::decompress_into;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::log::LOG_BYTES_MAX;

/// Maximum number of log bytes in one compressed chunk. Buffers for expanding have this size. Larger chunks shrink little
/// more, because LZ4 looks back at most 64 KiB.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of chunks in one call: all chunks of the largest log, and a shorter chunk at each end and at the end of
/// the lap.
const CHUNKS_MAX: usize = LOG_BYTES_MAX as usize / CHUNK_BYTES_MAX + 3;

/// A part of a log that was sent compressed. Its compressed bytes are in the ring, at the start of the part. They are fewer
/// than the expanded bytes, so the replica can expand them in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedChunk {
    /// Position of the first byte in the endless log.
    pub position: u64,
    /// Number of bytes after expansion.
    pub log_bytes: u32,
    /// Number of compressed bytes.
    pub compressed_bytes: u32,
}

/// Why compressed chunks are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The list ends within an element, or has too many elements.
    #[error("the list of compressed chunks has an invalid length: {0} bytes")]
    ListLength(usize),
    /// A chunk has an invalid size, overlaps another one, is outside of the new part of the log, or crosses the end of the
    /// ring.
    #[error("the compressed chunk at position {0} is out of bounds")]
    Bounds(u64),
    /// The compressed bytes are invalid, or do not expand to `log_bytes` bytes.
    #[error("the compressed chunk at position {0} is damaged")]
    Damaged(u64),
}

/// The new part of a log that the predecessor announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedRange {
    /// Positions of the new bytes in the endless log.
    pub positions: Range<u64>,
    /// Size of the ring, in bytes.
    pub ring_bytes: u64,
}

//  0          8           12                 16
//  │ position │ log bytes │ compressed bytes │ next chunk …
//
// Little-endian. A list has no count and no checksum, because the call that contains it has both.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct ChunkLayout {
    position: U64,
    log_bytes: U32,
    compressed_bytes: U32,
}

/// Encodes a list of chunks.
pub fn encode_chunks(chunks: &[CompressedChunk]) -> Vec<u8> {
    assert!(chunks.len() <= CHUNKS_MAX, "a call has {} compressed chunks", chunks.len());
    let layouts = chunks.iter().map(|chunk| ChunkLayout {
        position: chunk.position.into(),
        log_bytes: chunk.log_bytes.into(),
        compressed_bytes: chunk.compressed_bytes.into(),
    });
    layouts
        .flat_map(|layout| <[u8; size_of::<ChunkLayout>()]>::try_from(layout.as_bytes()).expect("its size"))
        .collect()
}

/// Decodes a list of chunks. Checks that they are in the announced part of the log, in order, and each contiguous in the
/// ring.
///
/// # Errors
/// `ListLength`, `Bounds`.
pub fn decode_chunks(bytes: &[u8], announced: &AnnouncedRange) -> Result<Vec<CompressedChunk>, ChunkError> {
    let list_length = ChunkError::ListLength(bytes.len());
    let layouts = <[ChunkLayout]>::ref_from_bytes(bytes).map_err(|_| list_length)?;
    if layouts.len() > CHUNKS_MAX {
        return Err(list_length);
    }
    let mut free = announced.positions.clone();
    // Limits the end that the peer has announced: a log has at most one ring of new bytes.
    free.end = free.end.min(free.start.saturating_add(announced.ring_bytes));
    let mut decode = |layout: &ChunkLayout| {
        let position = layout.position.get();
        let (log_bytes, compressed_bytes) = (layout.log_bytes.get(), layout.compressed_bytes.get());
        let is_compressed = (1..log_bytes).contains(&compressed_bytes) && log_bytes as usize <= CHUNK_BYTES_MAX;
        let end = position.checked_add(u64::from(log_bytes)).filter(|end| *end <= free.end);
        let is_contiguous = position % announced.ring_bytes + u64::from(log_bytes) <= announced.ring_bytes;
        match end {
            Some(end) if is_compressed && is_contiguous && position >= free.start => free.start = end,
            _ => return Err(ChunkError::Bounds(position)),
        }
        Ok(CompressedChunk { position, log_bytes, compressed_bytes })
    };
    layouts.iter().map(&mut decode).collect()
}

impl CompressedChunk {
    /// Expands the compressed bytes into exactly the bytes of the log.
    ///
    /// # Errors
    /// `Damaged` when the data is invalid, or expands to a size other than `log_bytes`. The contents of `into` are then
    /// undefined.
    pub fn expand(&self, compressed: &[u8], into: &mut [u8]) -> Result<(), ChunkError> {
        assert_eq!((compressed.len(), into.len()), (self.compressed_bytes as usize, self.log_bytes as usize));
        match decompress_into(compressed, into) {
            Ok(bytes) if bytes == into.len() => Ok(()),
            _ => Err(ChunkError::Damaged(self.position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::compression::{LogCompression, LogCompressor};
    use super::*;

    const RING_BYTES: u64 = 1 << 20;

    fn announced(positions: Range<u64>) -> AnnouncedRange {
        AnnouncedRange { positions, ring_bytes: RING_BYTES }
    }

    fn chunk(position: u64, log_bytes: u32, compressed_bytes: u32) -> CompressedChunk {
        CompressedChunk { position, log_bytes, compressed_bytes }
    }

    fn decode(chunks: &[CompressedChunk], positions: Range<u64>) -> Result<Vec<CompressedChunk>, ChunkError> {
        decode_chunks(&encode_chunks(chunks), &announced(positions))
    }

    #[test]
    fn chunks_of_the_announced_range_are_read_back() {
        let lap_end = 3 * RING_BYTES;
        let chunks = [chunk(lap_end - 9000, 9000, 1), chunk(lap_end, CHUNK_BYTES_MAX as u32, 8000)];
        let range = lap_end - 9000..lap_end + CHUNK_BYTES_MAX as u64;
        assert_eq!(decode(&chunks, range), Ok(chunks.to_vec()));
        assert_eq!(decode(&[], 5..5), Ok(Vec::new()));
    }

    #[test]
    fn chunks_outside_of_the_announced_range_are_refused() {
        let range = 10_000..200_000;
        for wrong in [
            chunk(9_999, 100, 10),
            chunk(199_901, 100, 10),
            chunk(u64::MAX - 50, 100, 10),
            chunk(20_000, CHUNK_BYTES_MAX as u32 + 1, 10),
            chunk(20_000, u32::MAX, 10),
            chunk(20_000, 100, 100),
            chunk(20_000, 100, 0),
            chunk(20_000, 0, 0),
        ] {
            assert_eq!(decode(&[wrong], range.clone()), Err(ChunkError::Bounds(wrong.position)), "{wrong:?}");
        }
        let overlapping = [chunk(20_000, 100, 10), chunk(20_099, 100, 10)];
        assert_eq!(decode(&overlapping, range), Err(ChunkError::Bounds(20_099)));
        let over_the_lap = chunk(RING_BYTES - 50, 100, 10);
        assert_eq!(decode(&[over_the_lap], 0..2 * RING_BYTES), Err(ChunkError::Bounds(RING_BYTES - 50)));
        let next_lap = chunk(RING_BYTES, 100, 10);
        assert_eq!(decode(&[next_lap], 0..u64::MAX), Err(ChunkError::Bounds(RING_BYTES)), "more than the ring has");
    }

    #[test]
    fn lists_of_wrong_length_are_refused() {
        let range = announced(0..RING_BYTES);
        let mut bytes = encode_chunks(&[chunk(0, 100, 10)]);
        bytes.pop();
        assert_eq!(decode_chunks(&bytes, &range), Err(ChunkError::ListLength(15)));
        let long = vec![0; 16 * (CHUNKS_MAX + 1)];
        assert_eq!(decode_chunks(&long, &range), Err(ChunkError::ListLength(long.len())));
    }

    /// Data that shrinks, because it has runs of few values.
    fn shrinking_data() -> impl Strategy<Value = Vec<u8>> {
        let runs = vec((0..4_u8, 40..400_usize), 200..400);
        runs.prop_map(|runs| {
            let mut data: Vec<u8> =
                runs.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count)).collect();
            data.truncate(CHUNK_BYTES_MAX);
            data.resize(data.len().max(32 << 10), 7);
            data
        })
    }

    fn compress(data: &[u8]) -> Vec<u8> {
        LogCompressor::new(LogCompression::Lz4).compress(data).expect("it shrinks").to_vec()
    }

    fn expand(compressed: &[u8], log_bytes: usize) -> Result<Vec<u8>, ChunkError> {
        let mut data = vec![0; log_bytes];
        let chunk = chunk(7, log_bytes as u32, compressed.len() as u32);
        chunk.expand(compressed, &mut data).map(|()| data)
    }

    proptest! {
        #[test]
        fn compressed_data_expands_to_the_same(data in shrinking_data()) {
            let compressed = compress(&data);
            prop_assert!(compressed.len() < data.len());
            prop_assert_eq!(expand(&compressed, data.len()), Ok(data));
        }

        #[test]
        fn truncated_data_is_an_error(data in shrinking_data(), part in 0.0..1.0) {
            let compressed = compress(&data);
            let bytes = (compressed.len() as f64 * part) as usize;
            prop_assert_eq!(expand(&compressed[..bytes], data.len()), Err(ChunkError::Damaged(7)));
        }

        #[test]
        fn data_of_another_size_is_an_error(data in shrinking_data(), difference in 1..5000_usize) {
            let compressed = compress(&data);
            prop_assert_eq!(expand(&compressed, data.len() - difference), Err(ChunkError::Damaged(7)));
            prop_assert_eq!(expand(&compressed, data.len() + difference), Err(ChunkError::Damaged(7)));
        }

        #[test]
        fn flipped_bits_never_panic(data in shrinking_data(), flips in vec((any::<prop::sample::Index>(), 0..8_u32), 1..20)) {
            let mut compressed = compress(&data);
            for (index, bit) in flips {
                let at = index.index(compressed.len());
                compressed[at] ^= 1 << bit;
            }
            // If damaged data still expands, the checksums of the records detect the damage.
            let _ = expand(&compressed, data.len());
        }

        #[test]
        fn any_bytes_never_panic(bytes in vec(any::<u8>(), 0..5000), log_bytes in 0..CHUNK_BYTES_MAX) {
            let _ = expand(&bytes, log_bytes);
            let _ = decode_chunks(&bytes, &announced(0..RING_BYTES));
        }
    }
}
