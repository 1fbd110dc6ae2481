//! Compressed log data that a replica gets from its predecessor: lists of chunks, and the chunks' bytes. No bytes panic. An
//! accepted list stays inside the announced range and encodes to the same bytes. Compressed data expands to the original.
#![no_main]

use farfork_volume::chain::{
    AnnouncedRange, CHUNK_BYTES_MAX, CompressedChunk, LogCompression, LogCompressor, decode_chunks, encode_chunks,
};
use libfuzzer_sys::fuzz_target;

const RING_BYTES: u64 = 8 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => decode_list(bytes),
        1 => expand(bytes),
        _ => compress_and_expand(bytes),
    }
});

fn decode_list(bytes: &[u8]) {
    let Some((numbers, list)) = bytes.split_first_chunk::<16>() else { return };
    let (start, end) = numbers.split_at(8);
    let [start, end] = [start, end].map(|number| u64::from_le_bytes(number.try_into().expect("8 bytes")));
    let announced = AnnouncedRange { positions: start..end, ring_bytes: RING_BYTES };
    let Ok(chunks) = decode_chunks(list, &announced) else { return };
    assert_eq!(encode_chunks(&chunks), list);
    let mut next = start;
    for CompressedChunk { position, log_bytes, compressed_bytes } in chunks {
        assert!(next <= position && compressed_bytes < log_bytes && log_bytes as usize <= CHUNK_BYTES_MAX);
        next = position + u64::from(log_bytes);
        assert!(next <= end && next - start <= RING_BYTES, "a chunk is outside of the announced range");
        assert!(position % RING_BYTES + u64::from(log_bytes) <= RING_BYTES, "a chunk is not contiguous in the ring");
    }
}

fn expand(bytes: &[u8]) {
    let Some((number, compressed)) = bytes.split_first_chunk::<2>() else { return };
    let log_bytes = u32::from(u16::from_le_bytes(*number)) + 1;
    let mut expanded = vec![0; log_bytes as usize];
    let chunk = CompressedChunk { position: 0, log_bytes, compressed_bytes: compressed.len() as u32 };
    let _ = chunk.expand(compressed, &mut expanded);
}

fn compress_and_expand(bytes: &[u8]) {
    let Some((repeats, data)) = bytes.split_first() else { return };
    let mut data = data.repeat(usize::from(*repeats) + 1);
    data.truncate(CHUNK_BYTES_MAX);
    let mut compressor = LogCompressor::new(LogCompression::Lz4);
    let Some(compressed) = compressor.compress(&data) else { return };
    assert!(compressed.len() < data.len());
    let (log_bytes, compressed_bytes) = (data.len() as u32, compressed.len() as u32);
    let mut expanded = vec![0; data.len()];
    CompressedChunk { position: 0, log_bytes, compressed_bytes }.expand(compressed, &mut expanded).expect("it is whole");
    assert!(expanded == data);
}
