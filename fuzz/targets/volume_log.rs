//! The log of a volume's client: headers, the ring, and the effects of a record. No bytes panic, replay ends inside the
//! ring, and decoded effects encode unchanged.
#![no_main]

use farfork_volume::log::{LogHeader, LogPoint, LogStorage, RING_OFFSET};
use farfork_volume::record::{RecordEffect, PAGE_BYTES, decode_body, encode_body};
use farfork_volume::replay::LogReplay;
use libfuzzer_sys::fuzz_target;

const RING_BYTES: u64 = 4 * PAGE_BYTES;

/// A log whose bytes after the input are zero.
struct InputLog<'a>(&'a [u8]);

impl LogStorage for InputLog<'_> {
    fn store(&mut self, _: u64, _: &[u8]) {
        unreachable!("replay stores nothing");
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        let ring_offset = offset.checked_sub(RING_OFFSET).expect("replay reads the ring");
        assert!(ring_offset + into.len() as u64 <= RING_BYTES, "replay reads inside the ring");
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = self.0.get(ring_offset as usize + index).copied().unwrap_or(0);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => _ = LogHeader::decode(bytes),
        1 => decode_and_encode(bytes),
        _ => replay(bytes),
    }
});

fn decode_and_encode(body: &[u8]) {
    for data_bytes in [0, 1] {
        let Ok(decoded) = decode_body(body, data_bytes) else { continue };
        let again = decode_body(&encode_body(&decoded.effects), data_bytes);
        assert_eq!(again.as_ref(), Ok(&decoded));
        let writes = decoded.effects.iter().filter(|effect| matches!(effect, RecordEffect::WriteData { .. }));
        assert!(writes.count() <= 1, "a record has more than one write");
    }
}

fn replay(bytes: &[u8]) {
    let log = InputLog(bytes);
    let mut replay = LogReplay::new(RING_BYTES, LogPoint::START, 0);
    while replay.read_record(&log).is_ok() {
        assert!(replay.next_point().position <= RING_BYTES, "replay has read more than the ring");
    }
}
