//! Compresses log data that is sent to the next replica: the option of a node, and the decision for each chunk. `link` sends
//! the chunks, and `compressed_chunk` is the receiving side.

use std::ops::AddAssign;

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use super::compressed_chunk::CHUNK_BYTES_MAX;
use crate::named_values::named_values;

/// Shorter data is sent uncompressed. For example, a record with one or two pages of data has up to 12 KiB. Compressing and
/// expanding it takes 32 µs. If it shrinks by half, this saves 49 µs on a network of 1 Gbit/s, but 5 µs at 10 Gbit/s.
pub(super) const COMPRESSED_BYTES_MIN: usize = 16 << 10;
/// Data that does not shrink by at least an eighth of its size is sent uncompressed: expanding it costs more than it saves.
const SAVED_PART_MIN: usize = 8;
/// Maximum number of chunks (1 MiB) that are sent uncompressed without an attempt, after data that did not shrink. Then a
/// sample decides whether the next chunk is compressed.
const PAUSE_CHUNKS_MAX: u32 = 16;
/// Number of pieces of a sample. They are spread over the chunk, because its first page may be the header of a record.
const SAMPLE_PIECES: usize = 4;
/// Size of a sample, in bytes: a sixteenth of a chunk.
const SAMPLE_BYTES: usize = 4 << 10;

/// How a node compresses the log data that it sends to the next replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogCompression {
    /// No compression.
    #[default]
    Off,
    /// The block format of LZ4.
    Lz4,
}

named_values!(LogCompression { Off = "off", Lz4 = "lz4" });

/// Amount of log data that was sent to the next replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedBytes {
    /// Number of bytes before compression.
    pub original: u64,
    /// Number of bytes that were sent instead. Equal to `original` without compression.
    pub compressed: u64,
}

impl AddAssign for ForwardedBytes {
    fn add_assign(&mut self, more: Self) {
        self.original += more.original;
        self.compressed += more.compressed;
    }
}

/// Compresses the chunks of one log. Remembers whether earlier chunks have shrunk.
pub struct LogCompressor {
    lz4: Option<Lz4Encoder>,
    /// Number of chunks to send uncompressed before the next sample.
    pause_left: u32,
    /// Length of the last pause, in chunks. 0 after a chunk that has shrunk.
    pause_chunks: u32,
    forwarded: ForwardedBytes,
}

/// The compressor with its buffers.
struct Lz4Encoder {
    table: CompressTable,
    /// Large enough for incompressible data, as the library requires.
    output: Box<[u8]>,
}

impl LogCompressor {
    /// Creates the compressor of one log.
    pub fn new(compression: LogCompression) -> Self {
        let lz4 = match compression {
            LogCompression::Off => None,
            LogCompression::Lz4 => Some(Lz4Encoder::new()),
        };
        Self { lz4, pause_left: 0, pause_chunks: 0, forwarded: ForwardedBytes::default() }
    }

    /// Returns the compressed data; none if the data must be sent uncompressed. Counts the data as forwarded in both cases.
    ///
    /// # Panics
    /// When the data has more than `CHUNK_BYTES_MAX` bytes.
    pub fn compress(&mut self, data: &[u8]) -> Option<&[u8]> {
        assert!(data.len() <= CHUNK_BYTES_MAX, "a chunk has {} bytes", data.len());
        let compressed_bytes = self.try_compress(data);
        self.forwarded.original += data.len() as u64;
        self.forwarded.compressed += compressed_bytes.unwrap_or(data.len()) as u64;
        Some(&self.lz4.as_ref()?.output[..compressed_bytes?])
    }

    /// Counts bytes as forwarded that are sent without an attempt to compress them.
    pub fn count_uncompressed(&mut self, bytes: usize) {
        self.forwarded.original += bytes as u64;
        self.forwarded.compressed += bytes as u64;
    }

    fn try_compress(&mut self, data: &[u8]) -> Option<usize> {
        let lz4 = self.lz4.as_mut().filter(|_| data.len() >= COMPRESSED_BYTES_MIN)?;
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return None;
        }
        let is_promising = self.pause_chunks == 0 || lz4.shrinks_sample(data);
        let compressed_bytes = if is_promising { lz4.shrink(data) } else { None };
        self.pause_chunks = match compressed_bytes {
            Some(_) => 0,
            None => (2 * self.pause_chunks).clamp(1, PAUSE_CHUNKS_MAX),
        };
        self.pause_left = self.pause_chunks;
        compressed_bytes
    }

    /// The bytes that were sent since the last call.
    pub fn take_forwarded(&mut self) -> ForwardedBytes {
        std::mem::take(&mut self.forwarded)
    }
}

impl Lz4Encoder {
    fn new() -> Self {
        let output = vec![0; get_maximum_output_size(CHUNK_BYTES_MAX)].into();
        Self { table: CompressTable::large(), output }
    }

    /// Compresses data into `output`. Returns the compressed size; none if the data shrinks too little (`SAVED_PART_MIN`).
    fn shrink(&mut self, data: &[u8]) -> Option<usize> {
        let bytes = compress_into_with_table(data, &mut self.output, &mut self.table);
        let bytes = bytes.expect("the output has room for the worst case");
        (bytes <= data.len() - data.len() / SAVED_PART_MIN).then_some(bytes)
    }

    fn shrinks_sample(&mut self, data: &[u8]) -> bool {
        let mut sample = [0; SAMPLE_BYTES];
        let stride = data.len() / SAMPLE_PIECES;
        for (index, piece) in sample.chunks_exact_mut(SAMPLE_BYTES / SAMPLE_PIECES).enumerate() {
            piece.copy_from_slice(&data[index * stride..][..piece.len()]);
        }
        self.shrink(&sample).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_data(bytes: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(1);
        std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
    }

    fn text(bytes: usize) -> Vec<u8> {
        b"a line of a log, and another one\n".iter().copied().cycle().take(bytes).collect()
    }

    #[test]
    fn names_are_read_back() {
        for &compression in LogCompression::ALL {
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        assert!("zstd".parse::<LogCompression>().unwrap_err().contains("lz4"));
    }

    #[test]
    fn short_data_and_data_that_does_not_shrink_is_sent_as_it_is() {
        let mut off = LogCompressor::new(LogCompression::Off);
        assert!(off.compress(&text(CHUNK_BYTES_MAX)).is_none());
        let mut lz4 = LogCompressor::new(LogCompression::Lz4);
        assert!(lz4.compress(&text(COMPRESSED_BYTES_MIN - 1)).is_none());
        assert!(lz4.compress(&text(COMPRESSED_BYTES_MIN)).is_some());
        assert!(lz4.compress(&random_data(CHUNK_BYTES_MAX)).is_none());
    }

    #[test]
    fn forwarded_bytes_are_counted_once() {
        let mut lz4 = LogCompressor::new(LogCompression::Lz4);
        let compressed = lz4.compress(&text(CHUNK_BYTES_MAX)).unwrap().len() as u64;
        lz4.compress(&random_data(1000));
        let expected = ForwardedBytes { original: CHUNK_BYTES_MAX as u64 + 1000, compressed: compressed + 1000 };
        assert_eq!(lz4.take_forwarded(), expected);
        assert_eq!(lz4.take_forwarded(), ForwardedBytes::default());
    }

    #[test]
    fn random_data_is_tried_rarely_and_text_again_after_a_pause() {
        let mut lz4 = LogCompressor::new(LogCompression::Lz4);
        let (random, text) = (random_data(CHUNK_BYTES_MAX), text(CHUNK_BYTES_MAX));
        let mut pauses = Vec::new();
        for _ in 0..200 {
            assert!(lz4.compress(&random).is_none());
            pauses.push(lz4.pause_chunks);
        }
        assert_eq!(pauses.last(), Some(&PAUSE_CHUNKS_MAX));
        let chunks = (0..).position(|_| lz4.compress(&text).is_some());
        assert!(chunks.is_some_and(|chunks| chunks <= PAUSE_CHUNKS_MAX as usize), "{chunks:?}");
        assert!(lz4.compress(&text).is_some(), "no pause follows a chunk that has shrunk");
    }
}
