//! Builds a stream of the fabric from a fuzzer's input: raw pieces, and frames with computed checksums, which a fuzzer could
//! hardly guess.
//!
//! ```text
//!   piece: op u8 │ length u16 │ bytes          op 0: raw; else a frame: bytes begin with its id (u8)
//! ```

use farfork_wire::descriptor::DESCRIPTOR_VERSION;
use farfork_wire::frame::HEADER_BYTES;

/// The bytes that a fuzzer's input describes.
pub fn stream(mut script: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((op, length, rest)) = head(script) {
        let (piece, rest) = rest.split_at(length.min(rest.len()));
        script = rest;
        match op {
            0 => stream.extend_from_slice(piece),
            kind => append_frame(&mut stream, kind, piece),
        }
    }
    stream
}

pub(crate) fn head(script: &[u8]) -> Option<(u8, usize, &[u8])> {
    let ([op, low, high], rest) = script.split_first_chunk()?;
    Some((*op, usize::from(u16::from_le_bytes([*low, *high])), rest))
}

/// Appends a frame of any kind, including kinds that do not exist. The first byte of the piece gives its id.
pub fn append_frame(stream: &mut Vec<u8>, kind: u8, piece: &[u8]) {
    let (id, body) = piece.split_first().map_or((0, piece), |(id, body)| (wide(*id), body));
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header[16..20].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let checksum = crc32c::crc32c(&header[..20]);
    header[20..].copy_from_slice(&checksum.to_le_bytes());
    stream.extend_from_slice(&header);
    stream.extend_from_slice(body);
}

/// Maps a byte to a small number, or to one of the largest numbers.
pub(crate) fn wide(byte: u8) -> u64 {
    if byte < 250 { u64::from(byte) } else { u64::MAX - u64::from(255 - byte) }
}

/// A descriptor with this body, with valid length and checksum.
pub fn descriptor(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"FARFORK\0".to_vec();
    bytes.extend_from_slice(&DESCRIPTOR_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}
