//! Property tests of the RPC's frames: every frame decodes to what was encoded, every damage is detected, and no
//! received bytes panic.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{
    ClientFrame, Frame, FrameHead, HEAD_CRC_PAYLOAD_BYTES_MAX, HELLO_BYTES, OpenOutcome, ReplyHead, RequestHead,
    RpcFrameError, SESSIONS_MAX, ServerFrame, SessionId, Status, VersionRange, WINDOW_MAX,
};

const SLOTS: std::ops::Range<u16> = 0..SESSIONS_MAX as u16;

fn request_heads() -> impl Strategy<Value = RequestHead> {
    let numbers = (SLOTS, any::<u32>(), WINDOW_MAX..u64::MAX, 0..WINDOW_MAX as u32, any::<u32>(), any::<bool>());
    numbers.prop_map(|(slot, handler, id, oldest_pending_distance, remaining_us, checked)| RequestHead {
        slot,
        handler,
        id,
        oldest_pending_distance,
        remaining_us,
        has_payload_crc: checked,
    })
}

fn reply_heads() -> impl Strategy<Value = ReplyHead> {
    (SLOTS, any::<u64>(), 0u32..8, any::<bool>()).prop_map(|(slot, id, status, checked)| ReplyHead {
        slot,
        id,
        status: Status::from_number(status).unwrap(),
        has_payload_crc: checked,
    })
}

fn bare_asks() -> impl Strategy<Value = ClientFrame> {
    prop_oneof![
        (SLOTS, any::<[u8; 16]>(), any::<u32>(), any::<bool>()).prop_map(|(slot, session, epoch, resumed)| {
            ClientFrame::Open { slot, session: SessionId::from_bytes(session), epoch, resumed }
        }),
        (SLOTS, any::<u64>()).prop_map(|(slot, id)| ClientFrame::Cancel { slot, id }),
        (SLOTS, any::<u64>()).prop_map(|(slot, below)| ClientFrame::Acknowledge { slot, below }),
        SLOTS.prop_map(|slot| ClientFrame::Close { slot }),
        Just(ClientFrame::Ping),
    ]
}

fn request_frame(head: &RequestHead, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; head.head_bytes()];
    frame.extend_from_slice(payload);
    head.seal(&mut frame, None);
    frame
}

fn reply_frame(head: &ReplyHead, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; head.head_bytes()];
    frame.extend_from_slice(payload);
    head.seal(&mut frame, None);
    frame
}

/// Decodes a whole frame, and verifies its payload's checksum.
fn receive<M: FrameHead>(bytes: &[u8]) -> Result<Option<Frame<M>>, RpcFrameError> {
    let Some(frame) = M::decode(bytes)? else { return Ok(None) };
    let Some(payload) = bytes.get(frame.head_bytes..frame.head_bytes + frame.payload_bytes) else { return Ok(None) };
    match frame.payload_crc {
        Some(crc) if crc != crc32c::crc32c(payload) => Err(RpcFrameError::PayloadChecksum),
        _ => Ok(Some(frame)),
    }
}

proptest! {
    #[test]
    fn a_request_is_decoded_as_encoded(head in request_heads(), payload in vec(any::<u8>(), 0..2000)) {
        let bytes = request_frame(&head, &payload);
        let frame = receive::<ClientFrame>(&bytes).unwrap().unwrap();
        prop_assert_eq!(frame.head, ClientFrame::Request(head));
        prop_assert_eq!(&bytes[frame.head_bytes..], &payload);
        prop_assert_eq!(frame.payload_crc.is_some(), head.has_payload_crc);
    }

    #[test]
    fn a_reply_is_decoded_as_encoded(head in reply_heads(), payload in vec(any::<u8>(), 0..2000)) {
        let bytes = reply_frame(&head, &payload);
        let frame = receive::<ServerFrame>(&bytes).unwrap().unwrap();
        prop_assert_eq!(frame.head, ServerFrame::Reply(head));
        prop_assert_eq!(&bytes[frame.head_bytes..], &payload);
    }

    #[test]
    fn other_frames_are_decoded_as_encoded(frame in bare_asks(), slot in SLOTS, epoch: u32, outcome in 0u32..5) {
        let mut bytes = Vec::new();
        frame.append(&mut bytes);
        prop_assert_eq!(receive::<ClientFrame>(&bytes).unwrap().unwrap().head, frame);
        let outcome = OpenOutcome::from_number(outcome).unwrap();
        for answer in [ServerFrame::Opened { slot, epoch, outcome }, ServerFrame::Pong] {
            bytes.clear();
            answer.append(&mut bytes);
            prop_assert_eq!(receive::<ServerFrame>(&bytes).unwrap().unwrap().head, answer);
        }
    }

    #[test]
    fn a_separate_payload_gives_the_same_head(head in request_heads(), payload in vec(any::<u8>(), 257..2000)) {
        let whole = request_frame(&head, &payload);
        let mut apart = vec![0; head.head_bytes()];
        head.seal(&mut apart, Some(&payload));
        prop_assert_eq!(&whole[..head.head_bytes()], &apart);
    }

    #[test]
    fn damage_is_detected(
        head in request_heads(),
        payload in vec(any::<u8>(), 0..600),
        at: prop::sample::Index,
        bit in 0u8..8,
    ) {
        // Only a long payload without a checksum of its own is not covered.
        let head = RequestHead { has_payload_crc: head.has_payload_crc || payload.len() > HEAD_CRC_PAYLOAD_BYTES_MAX, ..head };
        let mut bytes = request_frame(&head, &payload);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let received = receive::<ClientFrame>(&bytes);
        prop_assert!(!matches!(received, Ok(Some(_))), "{:?}", received);
    }

    #[test]
    fn a_truncated_frame_is_incomplete(head in reply_heads(), payload in vec(any::<u8>(), 0..600), at: prop::sample::Index) {
        let bytes = reply_frame(&head, &payload);
        prop_assert_eq!(receive::<ServerFrame>(&bytes[..at.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn garbage_is_refused_or_incomplete(bytes in vec(any::<u8>(), 0..400)) {
        prop_assert!(!matches!(receive::<ClientFrame>(&bytes), Ok(Some(_))));
        prop_assert!(!matches!(receive::<ServerFrame>(&bytes), Ok(Some(_))));
        if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>() {
            prop_assert!(VersionRange::decode(hello).is_err());
        }
    }

    /// Heads with a matching checksum and arbitrary fields: each is refused, or decodes to a valid frame.
    #[test]
    fn garbage_with_valid_checksums_does_not_panic(mut bytes in vec(any::<u8>(), 32..400), payload_bytes in 0u32..500, flags in 0u8..4) {
        bytes[4] %= 20;
        bytes[5] = flags;
        bytes[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
        for head_bytes in [24, 32] {
            let payload_at = head_bytes + usize::from(flags & 1) * 4;
            let covered = payload_at + if payload_bytes <= 256 { payload_bytes as usize } else { 0 };
            if let Some(part) = bytes.get(4..covered) {
                let checksum = crc32c::crc32c(part);
                bytes[..4].copy_from_slice(&checksum.to_le_bytes());
                let _ = receive::<ClientFrame>(&bytes);
                let _ = receive::<ServerFrame>(&bytes);
            }
        }
    }

    #[test]
    fn a_hello_is_decoded_as_encoded_and_damage_is_detected(newest: u16, oldest: u16, at in 0..HELLO_BYTES, bit in 0u8..8) {
        let versions = VersionRange { newest: newest.max(oldest), oldest: newest.min(oldest) };
        let mut bytes = versions.encode();
        prop_assert_eq!(VersionRange::decode(&bytes), Ok(versions));
        bytes[at] ^= 1 << bit;
        prop_assert!(VersionRange::decode(&bytes).is_err());
    }
}

#[test]
fn the_newest_common_version_is_negotiated() {
    let ours = VersionRange { newest: 5, oldest: 3 };
    assert_eq!(ours.negotiate(VersionRange { newest: 9, oldest: 4 }), Ok(5));
    assert_eq!(ours.negotiate(VersionRange { newest: 4, oldest: 1 }), Ok(4));
    for theirs in [VersionRange { newest: 2, oldest: 1 }, VersionRange { newest: 8, oldest: 6 }] {
        assert_eq!(ours.negotiate(theirs), Err(RpcFrameError::Version { theirs, ours }));
    }
}

#[test]
fn an_oversized_frame_is_refused_before_its_payload() {
    let head =
        RequestHead { slot: 0, handler: 1, id: 9, oldest_pending_distance: 0, remaining_us: 0, has_payload_crc: false };
    let mut frame = request_frame(&head, &[]);
    frame[8..12].copy_from_slice(&((16 << 20) + 1u32).to_le_bytes());
    assert_eq!(ClientFrame::decode(&frame), Err(RpcFrameError::TooLong { bytes: (16 << 20) + 1 }));
}

/// The bytes of version 1, kept so that a change of the format is noticed.
#[test]
fn the_bytes_of_version_1_are_unchanged() {
    let head = RequestHead {
        slot: 3,
        handler: 7,
        id: 9,
        oldest_pending_distance: 2,
        remaining_us: 500,
        has_payload_crc: true,
    };
    let bytes: String = request_frame(&head, b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(bytes, "04d1c29a010103000300000007000000090000000000000002000000f4010000b73f4b36616263");
    let head = ReplyHead { slot: 3, id: 9, status: Status::Failed, has_payload_crc: false };
    let bytes: String = reply_frame(&head, b"no").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(bytes, "e6f17c3410000300020000000100000009000000000000006e6f");
}
