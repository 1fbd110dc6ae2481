//! Property tests of the fabric's frames: every frame decodes to what was encoded, and every damage is detected.

use proptest::collection::vec;
use proptest::prelude::*;

use super::change::{Change, ConnectionId, append_introduce, append_message, append_write};
use super::hello::encode_version;
use super::reply::{
    Grant, Refusal, Reply, append_arrived, append_granted, append_refused, append_written, data_frame_bytes, seal_data,
    seal_data_without_checksum,
};
use super::request::{HANDLES_MAX, ReadMode, Request, Span, append_ask_grants, append_open, append_read, check_spans};
use super::{FabricFrameError, HEADER_BYTES, HELLO_BYTES, Header, READ_BYTES_MAX, VERSION, decode_hello, encode_hello};
use crate::descriptor::ExtentId;
use crate::{NodeName, SeedId, Token};

/// Decodes one whole frame as its receiver does.
fn decode(frame: &[u8]) -> Result<(Header, String), FabricFrameError> {
    let head = frame.first_chunk::<HEADER_BYTES>().ok_or(FabricFrameError::HeaderChecksum)?;
    let header = Header::decode(head)?;
    let body = &frame[HEADER_BYTES..];
    if body.len() != header.body_bytes as usize {
        return Err(FabricFrameError::BodyChecksum { id: header.id });
    }
    header.check_body(body)?;
    let meaning = if header.kind.is_change() {
        format!("{:?}", Change::decode(&header, body)?)
    } else if header.kind.is_request() {
        format!("{:?}", Request::decode(&header, body)?)
    } else {
        format!("{:?}", Reply::decode(&header, body)?)
    };
    Ok((header, meaning))
}

fn decode_request(frame: &[u8]) -> Request {
    let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
    header.check_body(&frame[HEADER_BYTES..]).unwrap();
    Request::decode(&header, &frame[HEADER_BYTES..]).unwrap()
}

fn decode_change(frame: &[u8]) -> Change<'_> {
    let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
    header.check_body(&frame[HEADER_BYTES..]).unwrap();
    Change::decode(&header, &frame[HEADER_BYTES..]).unwrap()
}

/// Spans, and data of the same total length.
fn spans_with_data() -> impl Strategy<Value = (Vec<Span>, Vec<u8>)> {
    vec((any::<u32>(), any::<u64>(), 1u32..300), 1..20).prop_map(|spans| {
        let span = |(extent, offset, bytes)| Span { extent: ExtentId(extent), offset, bytes };
        let spans: Vec<_> = spans.into_iter().map(span).collect();
        let bytes = spans.iter().map(|span| span.bytes).sum::<u32>();
        (spans, (0..bytes).map(|at| at as u8).collect())
    })
}

fn decode_reply(frame: &[u8]) -> Reply<'_> {
    let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
    header.check_body(&frame[HEADER_BYTES..]).unwrap();
    Reply::decode(&header, &frame[HEADER_BYTES..]).unwrap()
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let span = (any::<u32>(), any::<u64>(), 1u32..4096);
    vec(span.prop_map(|(extent, offset, bytes)| Span { extent: ExtentId(extent), offset, bytes }), 1..256)
}

fn refusals() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::UnknownSeed),
        Just(Refusal::WrongToken),
        Just(Refusal::OutOfBounds),
        any::<i32>().prop_map(|errno| Refusal::Unreadable { errno }),
        any::<i32>().prop_map(|errno| Refusal::Unwritable { errno }),
        Just(Refusal::ReadOnly),
        Just(Refusal::NoReceiver),
        Just(Refusal::MessageQueueFull),
        Just(Refusal::OutcomeForgotten),
    ]
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0..HANDLES_MAX, any::<u64>(), any::<[u8; 16]>()).prop_map(|(handle, number, token)| {
            let mut out = Vec::new();
            append_open(&mut out, handle, &seed(number), &Token::from_bytes(token));
            out
        }),
        (any::<u64>(), 0..HANDLES_MAX, spans()).prop_map(|(id, handle, spans)| {
            let mut out = Vec::new();
            append_read(&mut out, id, handle, ReadMode::Exact, &spans);
            out
        }),
        (any::<u64>(), vec(any::<u8>(), 0..9000), any::<u64>())
            .prop_map(|(id, data, extent_bytes)| { data_frame(id, &data, extent_bytes) }),
        (any::<u64>(), refusals()).prop_map(|(id, refusal)| {
            let mut out = Vec::new();
            append_refused(&mut out, id, refusal);
            out
        }),
        (any::<u64>(), 0..HANDLES_MAX, spans_with_data()).prop_map(|(id, handle, (spans, data))| {
            let mut out = Vec::new();
            append_write(&mut out, id, handle, &spans, &data);
            out
        }),
        (any::<u64>(), vec(any::<u8>(), 0..3000)).prop_map(|(id, bytes)| {
            let mut out = Vec::new();
            append_message(&mut out, id, &bytes);
            out
        }),
        any::<u64>().prop_map(|id| {
            let mut out = Vec::new();
            append_written(&mut out, id);
            out
        }),
    ]
}

fn seed(number: u64) -> SeedId {
    SeedId::new(NodeName::new("n1").unwrap(), number)
}

fn data_frame(id: u64, data: &[u8], extent_bytes: u64) -> Vec<u8> {
    let mut frame = vec![0; data_frame_bytes(data.len())];
    frame[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
    seal_data(&mut frame, id, extent_bytes);
    frame
}

#[test]
fn data_without_checksum_differs_only_in_the_checksum() {
    let (summed, mut proven) = (data_frame(7, &[5; 100], 9), data_frame(7, &[5; 100], 9));
    seal_data_without_checksum(&mut proven, 7, 9);
    let header = |frame: &[u8]| Header::decode(frame.first_chunk().unwrap()).unwrap();
    assert_eq!(header(&proven), Header { body_crc: 0, ..header(&summed) });
    assert_eq!(proven[HEADER_BYTES..], summed[HEADER_BYTES..]);
}

proptest! {
    #[test]
    fn an_open_frame_is_decoded_as_encoded(handle in 0..HANDLES_MAX, number: u64, token: [u8; 16]) {
        let (seed, token) = (seed(number), Token::from_bytes(token));
        let mut out = Vec::new();
        append_open(&mut out, handle, &seed, &token);
        prop_assert_eq!(decode_request(&out), Request::Open { handle, seed, token });
    }

    #[test]
    fn a_read_frame_is_decoded_as_encoded(id: u64, handle in 0..HANDLES_MAX, spans in spans()) {
        let mut out = Vec::new();
        append_read(&mut out, id, handle, ReadMode::Exact, &spans);
        prop_assert_eq!(Header::decode(out.first_chunk().unwrap()).unwrap().id, id);
        prop_assert_eq!(decode_request(&out), Request::Read { handle, mode: ReadMode::Exact, spans });
    }

    #[test]
    fn a_data_frame_is_decoded_as_encoded(id: u64, data in vec(any::<u8>(), 0..9000), extent_bytes: u64) {
        let frame = data_frame(id, &data, extent_bytes);
        prop_assert_eq!(decode_reply(&frame), Reply::Data { data: &data, extent_bytes });
    }

    #[test]
    fn a_refusal_frame_is_decoded_as_encoded(id: u64, refusal in refusals()) {
        let mut out = Vec::new();
        append_refused(&mut out, id, refusal);
        prop_assert_eq!(decode_reply(&out), Reply::Refused(refusal));
    }

    #[test]
    fn grant_frames_are_decoded_as_encoded(id: u64, grants in vec(any::<(u32, u64, u64)>(), 0..100)) {
        let grant = |(extent, address, bytes)| Grant { extent: ExtentId(extent), address, bytes };
        let grants: Vec<_> = grants.into_iter().map(grant).collect();
        let mut out = Vec::new();
        append_granted(&mut out, id, &grants);
        prop_assert_eq!(decode_reply(&out), Reply::Granted(grants));
    }

    #[test]
    fn change_frames_are_decoded_as_encoded(
        id: u64, handle in 0..HANDLES_MAX, (spans, data) in spans_with_data(), name: [u8; 16], sent_below: u64,
    ) {
        let mut out = Vec::new();
        append_write(&mut out, id, handle, &spans, &data);
        prop_assert_eq!(decode_change(&out), Change::Write { handle, spans, data: &data });
        out.clear();
        append_message(&mut out, id, &data);
        prop_assert_eq!(decode_change(&out), Change::Message { bytes: &data });
        out.clear();
        let connection = ConnectionId::from_bytes(name);
        append_introduce(&mut out, connection, sent_below);
        prop_assert_eq!(decode_change(&out), Change::Introduce { connection, sent_below });
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..200), kind in 0u8..24) {
        let _ = decode(&bytes);
        // Decode the bytes again after a header whose checksums match, so that the body's decoder gets them.
        let mut out = Vec::new();
        append_ask_grants(&mut out, 7, 0);
        let mut header = Header::decode(out.first_chunk().unwrap()).unwrap();
        header.body_bytes = bytes.len() as u32;
        header.body_crc = crc32c::crc32c(&bytes);
        let mut frame = header.encode().to_vec();
        frame[0] = kind;
        let checksum = crc32c::crc32c(&frame[..20]);
        frame[20..24].copy_from_slice(&checksum.to_le_bytes());
        frame.extend_from_slice(&bytes);
        let _ = decode(&frame);
    }

    #[test]
    fn a_flipped_bit_is_detected(frame in frames(), at: prop::sample::Index, bit in 0u8..8) {
        prop_assert!(decode(&frame).is_ok());
        let mut damaged = frame.clone();
        damaged[at.index(frame.len())] ^= 1 << bit;
        prop_assert!(decode(&damaged).is_err());
    }

    #[test]
    fn a_truncated_frame_is_detected(frame in frames(), at: prop::sample::Index) {
        prop_assert!(decode(&frame[..at.index(frame.len())]).is_err());
    }

    #[test]
    fn a_damaged_hello_is_detected(at in 0..HELLO_BYTES, bit in 0u8..8) {
        let mut hello = encode_hello();
        hello[at] ^= 1 << bit;
        let refused = decode_hello(&hello);
        prop_assert!(matches!(refused, Err(FabricFrameError::BadMagic | FabricFrameError::HelloChecksum)));
    }
}

#[test]
fn a_hello_of_another_version_names_both_versions() {
    assert_eq!(decode_hello(&encode_hello()), Ok(()));
    let refused = decode_hello(&encode_version(9)).unwrap_err();
    assert_eq!(refused, FabricFrameError::Version { theirs: 9 });
    let text = refused.to_string();
    assert!(text.contains("version 9") && text.contains(&format!("version {VERSION}")), "{text}");
}

#[test]
fn the_layout_of_frames_is_unchanged() {
    let mut out = Vec::new();
    append_read(&mut out, 0x0102, 3, ReadMode::Clip, &[Span { extent: ExtentId::DESCRIPTOR, offset: 5, bytes: 6 }]);
    let body = [3, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 6, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(out[..16], [2, 0, 0, 0, 24, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[16..20], crc32c::crc32c(&body).to_le_bytes());
    assert_eq!(out[24..], body);
    assert_eq!(&encode_hello()[..12], b"FFABRIC\0\x03\0\0\0");
    out.clear();
    append_write(&mut out, 9, 3, &[Span { extent: ExtentId(1), offset: 5, bytes: 2 }], b"ab");
    assert_eq!(out[..16], [5, 0, 0, 0, 26, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[24..], [3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
    out.clear();
    append_introduce(&mut out, ConnectionId::from_bytes([7; 16]), 258);
    assert_eq!((out[0], &out[24..]), (4, &[[7; 16].as_slice(), &[2, 1, 0, 0, 0, 0, 0, 0]].concat()[..]));
    for (append, kind) in [(append_written as fn(&mut Vec<u8>, u64), 19), (append_arrived, 20)] {
        out.clear();
        append(&mut out, 1);
        assert_eq!((out[0], out.len()), (kind, HEADER_BYTES));
    }
}

#[test]
fn a_write_that_does_not_fill_its_spans_is_refused() {
    let mut out = Vec::new();
    append_write(&mut out, 9, 3, &[Span { extent: ExtentId(1), offset: 5, bytes: 2 }], b"ab");
    let body = out.split_off(HEADER_BYTES);
    for wrong in [&body[..body.len() - 1], &[body.as_slice(), b"c"].concat(), &body[..7], &body[..20]] {
        let header = Header::for_body(super::FrameKind::Write, 9, wrong);
        assert!(matches!(Change::decode(&header, wrong), Err(FabricFrameError::InvalidBody { .. })), "{wrong:?}");
    }
}

#[test]
fn spans_outside_the_limits_are_refused() {
    let span = |bytes| Span { extent: ExtentId(0), offset: u64::MAX, bytes };
    assert!(check_spans(ReadMode::Exact, &[]).is_err());
    assert!(check_spans(ReadMode::Exact, &[span(0)]).is_err());
    assert!(check_spans(ReadMode::Exact, &[span(1); 257]).is_err());
    assert!(check_spans(ReadMode::Clip, &[span(1); 2]).is_err());
    assert!(check_spans(ReadMode::Exact, &[span(READ_BYTES_MAX as u32), span(1)]).is_err());
    assert_eq!(check_spans(ReadMode::Exact, &[span(READ_BYTES_MAX as u32)]), Ok(READ_BYTES_MAX));
}
