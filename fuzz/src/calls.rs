//! Builds streams of RPC frames from a fuzzer's input, with computed checksums, which a fuzzer could hardly guess.
//!
//! ```text
//!   piece: op u8 │ length u16 │ bytes   op 0: raw; 255: the connection ends, the next one begins; else a frame:
//!                                       flags u8 │ slot u8 │ code u8 │ id u8 │ behind u8 │ remaining u8 │ payload
//! ```

use farfork_wire::rpc::{HEAD_CRC_PAYLOAD_BYTES_MAX, REPLY_HEAD_BYTES, REQUEST_HEAD_BYTES};

use crate::script;

/// Number of header fields of a piece that is a frame.
const FIELDS: usize = 6;

const FLAG_CHECKED: u8 = 1;
const CONNECTION_ENDS: u8 = 255;

/// The sender. Requests and replies have frame headers of different lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A client.
    Client,
    /// A server.
    Server,
}

/// The bytes that a fuzzer's input describes, for each connection in turn.
pub fn streams(mut script: &[u8], speaker: Speaker) -> Vec<Vec<u8>> {
    let mut streams = vec![Vec::new()];
    while let Some((op, length, rest)) = script::head(script) {
        let (piece, rest) = rest.split_at(length.min(rest.len()));
        script = rest;
        let stream = streams.last_mut().expect("there is one");
        match op {
            0 => stream.extend_from_slice(piece),
            CONNECTION_ENDS => streams.push(Vec::new()),
            kind => append_frame(stream, speaker, kind, piece),
        }
    }
    streams
}

/// Appends a frame of any kind, including kinds that do not exist.
pub fn append_frame(stream: &mut Vec<u8>, speaker: Speaker, kind: u8, piece: &[u8]) {
    let Some(([flags, slot, code, id, behind, remaining], payload)) = piece.split_first_chunk::<FIELDS>() else {
        return;
    };
    let head_bytes = if speaker == Speaker::Client { REQUEST_HEAD_BYTES } else { REPLY_HEAD_BYTES };
    let mut frame = vec![0; head_bytes];
    frame[4] = kind;
    frame[5] = *flags;
    // Include slots that no session can have.
    let slot = if *slot < 250 { u16::from(*slot) } else { u16::from(*slot) * 5 };
    frame[6..8].copy_from_slice(&slot.to_le_bytes());
    frame[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&(script::wide(*code) as u32).to_le_bytes());
    frame[16..24].copy_from_slice(&script::wide(*id).to_le_bytes());
    if speaker == Speaker::Client {
        frame[24..28].copy_from_slice(&(u32::from(*behind) * 17).to_le_bytes());
        frame[28..32].copy_from_slice(&(u32::from(*remaining) * 1000).to_le_bytes());
    }
    if flags & FLAG_CHECKED != 0 {
        frame.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    }
    let payload_at = frame.len();
    frame.extend_from_slice(payload);
    let covered_to = if payload.len() <= HEAD_CRC_PAYLOAD_BYTES_MAX { frame.len() } else { payload_at };
    let checksum = crc32c::crc32c(&frame[4..covered_to]);
    frame[..4].copy_from_slice(&checksum.to_le_bytes());
    stream.extend_from_slice(&frame);
}
