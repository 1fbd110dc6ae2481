//! Limits of a descriptor: its size, and the lengths of socket options.

use farfork_wire::descriptor::{
    DESCRIPTOR_BYTES_MAX, DecodeError, Descriptor, OpenFile, OversizedDescriptor, SocketOption, decode, encode,
};

use super::{descriptor, socket, thread};

/// Size of the extended state with AVX-512, in bytes.
const AVX512_BYTES: usize = 2696;

fn with_threads(count: u32) -> Descriptor {
    let mut descriptor = descriptor();
    let first = 10_000;
    let mut one = thread(first);
    one.xstate = vec![0; AVX512_BYTES];
    descriptor.threads.extend((first..first + count).map(|tid| {
        one.tid = tid;
        one.clone()
    }));
    descriptor
}

#[test]
fn a_descriptor_that_no_node_would_read_is_not_encoded() {
    let refused = encode(&with_threads(32_000)).unwrap_err();
    assert!(refused.bytes > 32_000 * AVX512_BYTES, "{refused}");
    assert_eq!(
        refused.to_string(),
        format!("the descriptor has {} bytes, {DESCRIPTOR_BYTES_MAX} at most", refused.bytes)
    );
    let descriptor = with_threads(20_000);
    assert!(decode(&encode(&descriptor).unwrap()).unwrap() == descriptor);
}

#[test]
fn a_received_descriptor_that_is_too_large_is_named() {
    let mut bytes = encode(&descriptor()).unwrap();
    bytes.resize(DESCRIPTOR_BYTES_MAX + 1, 0);
    let body_bytes = (bytes.len() - 24) as u64;
    bytes[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    let refused = decode(&bytes).unwrap_err();
    let size = DESCRIPTOR_BYTES_MAX + 1;
    assert!(matches!(refused, DecodeError::Oversized(OversizedDescriptor { bytes }) if bytes == size), "{refused}");
}

#[test]
fn only_a_filter_may_be_longer_than_other_socket_options() {
    const FILTER: (u32, u32) = (1, 26);
    const CONGESTION: (u32, u32) = (6, 13);
    let cases = [
        (CONGESTION, 256, true),
        (CONGESTION, 264, false),
        (FILTER, 0, false),
        (FILTER, 264, true),
        (FILTER, 265, false),
        (FILTER, 4096 * 8, true),
        (FILTER, 4097 * 8, false),
    ];
    for ((level, name), bytes, is_valid) in cases {
        let mut descriptor = descriptor();
        let OpenFile::Socket(mut socket) = socket(8, 0) else { unreachable!("it is one") };
        socket.options.push(SocketOption { level, name, value: vec![0; bytes] });
        descriptor.open_files.push(OpenFile::Socket(socket));
        assert_eq!(descriptor.validate().is_ok(), is_valid, "option {name} of level {level} with {bytes} bytes");
    }
}
