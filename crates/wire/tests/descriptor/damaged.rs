//! Tests with arbitrary bytes, and with changed bodies under a correct checksum.

use farfork_wire::descriptor::{decode, encode};
use proptest::prelude::*;

use super::descriptor;

/// A changed body with a correct checksum: what an attacker who knows the format could send.
fn with_body(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = encode(&descriptor()).unwrap();
    let mut body = bytes.split_off(24);
    change(&mut body);
    bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&body);
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn decoding_any_body_does_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let bytes = with_body(|body| {
            for (index, value) in changes {
                let at = index.index(body.len());
                body[at] = value;
            }
        });
        let _ = decode(&bytes);
    }

    #[test]
    fn an_announced_length_allocates_nothing(at in 0_usize..400) {
        let bytes = with_body(|body| {
            let at = at.min(body.len());
            let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
            body.splice(at..at, huge);
        });
        let _ = decode(&bytes);
    }
}
