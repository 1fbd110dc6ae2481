//! Tests with peers that violate the protocol: nothing panics, nothing is executed twice, and memory stays bounded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use farfork_wire::rpc::{
    ClientFrame, FrameHead, PAYLOAD_BYTES_MAX, RequestHead, RpcFrameError, ServerFrame, SessionId, Status, VersionRange,
};
use proptest::prelude::*;

use crate::client::{ClientProtocol, Completion, OutgoingRequest, RequestPayload};
use crate::frame_decoder::{ReceivedPayload, StagingBuffer};
use crate::server::{
    ClaimOutcome, ConnectionLocation, HELD_BYTES_MAX, ReplyWriter, RequestExecutor, RequestKey, ServerProtocol,
    SessionRegistry, SessionRequest,
};

/// Counts the executions of each request. Handler 0 echoes the payload; handler N replies with N bytes. Every tenth
/// request never gets a reply.
#[derive(Default)]
struct CountingExecutor {
    executed: HashMap<(SessionId, u64), u32>,
}

impl RequestExecutor for CountingExecutor {
    fn execute(&mut self, handler: u32, ticket: RequestKey, payload: ReceivedPayload<'_>, reply: &mut ReplyWriter<'_>) {
        *self.executed.entry((ticket.session, ticket.id)).or_default() += 1;
        match (ticket.id % 10, handler) {
            (7, _) => reply.defer(Default::default()),
            (_, 0) => reply.write(&payload),
            (_, bytes) => drop(reply.append_zeroed(bytes as usize)),
        }
    }
}

/// The server's end of one connection, with a registry.
struct ServerEnd {
    protocol: ServerProtocol,
    staging: StagingBuffer,
    registry: SessionRegistry,
    service: CountingExecutor,
    now: Instant,
}

impl ServerEnd {
    fn new() -> Self {
        let now = Instant::now();
        let (peer, staging) = (ServerProtocol::new(now), StagingBuffer::default());
        Self {
            protocol: peer,
            staging,
            registry: SessionRegistry::default(),
            service: CountingExecutor::default(),
            now,
        }
    }

    /// Passes bytes to the server while it may receive. Returns the number of bytes that it received.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<usize, RpcFrameError> {
        let mut taken = 0;
        while !bytes.is_empty() && self.protocol.can_receive() {
            self.protocol.restore_partial(&mut self.staging);
            let mut count = 0;
            for space in &mut self.protocol.receive_buffers(&mut self.staging) {
                let part = space.len().min(bytes.len());
                space[..part].copy_from_slice(&bytes[..part]);
                (bytes, count) = (&bytes[part..], count + part);
            }
            self.protocol.mark_received(&mut self.staging, count, self.now);
            let now = self.now;
            self.protocol.handle_received(&mut self.staging, &|| now, &mut self.service)?;
            taken += count;
            self.grant_claims();
        }
        Ok(taken)
    }

    fn grant_claims(&mut self) {
        let location = ConnectionLocation { worker: 0, connection: 1 };
        for session_request in self.protocol.take_session_requests() {
            match session_request {
                SessionRequest::Close(session) => self.registry.remove(&session),
                SessionRequest::Claim(claim) => match self.registry.claim(&claim, location) {
                    ClaimOutcome::Granted(session) => self.protocol.attach_session(claim.slot, session),
                    ClaimOutcome::Refused(outcome) => self.protocol.refuse_session(&claim, outcome),
                    ClaimOutcome::HeldBy(_) => {}
                },
            }
        }
    }

    /// Takes all bytes that the server sends. Returns the frames' heads, without payloads.
    fn take_sent(&mut self) -> Vec<ServerFrame> {
        let mut bytes = Vec::new();
        while self.protocol.unsent_bytes() > 0 {
            let mut slices = [std::io::IoSlice::new(&[]); crate::retransmit::SLICES_MAX];
            let count = self.protocol.slices(&mut slices);
            let before = bytes.len();
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            self.protocol.mark_sent(bytes.len() - before, self.now);
        }
        let mut rest = bytes.strip_prefix(&VersionRange::SUPPORTED.encode()).unwrap_or(&bytes);
        let mut answers = Vec::new();
        while let Some(frame) = ServerFrame::decode(rest).unwrap() {
            answers.push(frame.head);
            rest = &rest[frame.head_bytes + frame.payload_bytes..];
        }
        answers
    }

    fn greeted(slots: u16) -> Self {
        let mut end = Self::new();
        end.feed(&VersionRange::SUPPORTED.encode()).unwrap();
        for slot in 0..slots {
            end.feed(&open(slot, slot as u8, 0, false)).unwrap();
        }
        end
    }
}

fn open(slot: u16, session: u8, epoch: u32, resumed: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    ClientFrame::Open { slot, session: SessionId::from_bytes([session; 16]), epoch, resumed }.append(&mut bytes);
    bytes
}

fn request(slot: u16, id: u64, oldest_pending_distance: u32, handler: u32, payload: &[u8]) -> Vec<u8> {
    let head = RequestHead { slot, handler, id, oldest_pending_distance, remaining_us: 0, has_payload_crc: false };
    let mut frame = vec![0; head.head_bytes()];
    frame.extend_from_slice(payload);
    head.seal(&mut frame, None);
    frame
}

/// Frames that are valid by themselves, in any order.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let appended = |frame: ClientFrame| {
        let mut bytes = Vec::new();
        frame.append(&mut bytes);
        bytes
    };
    prop_oneof![
        8 => (0u16..4, 0u64..200, 0u32..200, 0u32..3000).prop_map(|(slot, id, oldest_pending_distance, handler)| {
            request(slot, id, oldest_pending_distance.min(id as u32), handler, &[1; 40])
        }),
        1 => (0u16..4, 0u8..6, 0u32..4, any::<bool>()).prop_map(|(slot, id, epoch, known)| open(slot, id, epoch, known)),
        1 => (0u16..4, 0u64..300).prop_map(move |(slot, id)| appended(ClientFrame::Cancel { slot, id })),
        1 => (0u16..4, 0u64..300).prop_map(move |(slot, below)| appended(ClientFrame::Acknowledge { slot, below })),
        1 => (0u16..4).prop_map(move |slot| appended(ClientFrame::Close { slot })),
        1 => Just(ClientFrame::Ping).prop_map(appended),
    ]
}

proptest! {
    #[test]
    fn garbage_ends_the_connection_or_waits(bytes in prop::collection::vec(any::<u8>(), 0..5000), greeted: bool) {
        let mut end = if greeted { ServerEnd::greeted(1) } else { ServerEnd::new() };
        let fed = end.feed(&bytes);
        prop_assert!(end.service.executed.is_empty());
        prop_assert!(fed.is_err() || bytes.len() < 5000);
    }

    #[test]
    fn sound_frames_in_any_order_do_no_harm(frames in prop::collection::vec(frames(), 0..300)) {
        let mut end = ServerEnd::greeted(3);
        for frame in &frames {
            if end.feed(frame).is_err() {
                break;
            }
        }
        // A session that was closed and opened again may reuse an id. Without a CLOSE frame, no id is reused.
        let closed = frames.iter().any(|frame| frame[4] == 5);
        prop_assert!(closed || end.service.executed.values().all(|times| *times == 1));
        end.protocol.into_sessions().for_each(|session| end.registry.park(session, end.now));
    }

    #[test]
    fn a_client_survives_any_server(bytes in prop::collection::vec(any::<u8>(), 0..3000), greeted: bool) {
        let mut client = ClientProtocol::new(Instant::now(), Box::new(|| SessionId::from_bytes([1; 16])));
        let session = client.open_session(8).unwrap();
        let now = Instant::now();
        client.submit(now, session, &OutgoingRequest::default(), RequestPayload::Borrowed(b"x")).unwrap();
        client.handle_connected(now);
        let mut staging = StagingBuffer::default();
        let stream = if greeted { [&VersionRange::SUPPORTED.encode()[..], &bytes].concat() } else { bytes };
        client.restore_partial(&mut staging);
        let count = {
            let space = &mut client.receive_buffers(&mut staging)[1];
            space[..stream.len()].copy_from_slice(&stream);
            stream.len()
        };
        let mut answered = 0;
        let _ = client.handle_received(&mut staging, count, now, &mut |_: Completion<'_>| answered += 1);
        prop_assert_eq!((answered, client.unanswered_count()), (0, 1));
    }
}

#[test]
fn a_replayed_request_is_executed_once_and_answered_each_time() {
    let mut end = ServerEnd::greeted(1);
    let frame = request(0, 3, 3, 0, b"again");
    end.feed(&frame).unwrap();
    let once = end.protocol.unsent_bytes();
    for _ in 0..10 {
        end.feed(&frame).unwrap();
    }
    assert_eq!(end.service.executed.values().copied().collect::<Vec<_>>(), [1]);
    assert!(end.protocol.unsent_bytes() > once);
}

#[test]
fn requests_of_a_client_that_never_reads_are_not_read() {
    let mut end = ServerEnd::greeted(1);
    let mut fed = 0;
    for id in 0..4000 {
        let frame = request(0, id, id.min(4000) as u32, 100_000, &[]);
        if end.feed(&frame).unwrap() < frame.len() {
            break;
        }
        fed += 1;
    }
    assert!(fed < 100, "{fed} requests were taken");
    assert!(!end.protocol.can_receive() && end.protocol.unsent_bytes() < 6 << 20, "{}", end.protocol.unsent_bytes());
    assert!(end.protocol.is_stalled(end.now + Duration::from_secs(31)));
}

#[test]
fn requests_outside_the_window_end_the_connection() {
    let is_refused = |bytes: &[u8]| ServerEnd::greeted(1).feed(bytes).is_err();
    assert!(!is_refused(&request(0, 5000, 0, 0, &[])), "it acknowledges all earlier requests");
    assert!(is_refused(&[request(0, 0, 0, 7, &[]), request(0, 4095, 4095, 0, &[]), request(1, 0, 0, 0, &[])].concat()));
    assert!(is_refused(&open(0, 9, 0, false)), "the slot is taken");
    assert!(is_refused(&[&[0u8; 32][..]].concat()), "no kind, no checksum");
    let mut end = ServerEnd::greeted(1);
    end.feed(&request(0, 10, 10, 0, &[])).unwrap();
    end.feed(&request(0, 4095, 0, 0, &[])).unwrap();
}

#[test]
fn announced_bytes_use_no_memory() {
    let mut end = ServerEnd::greeted(1);
    let head =
        RequestHead { slot: 0, handler: 0, id: 0, oldest_pending_distance: 0, remaining_us: 0, has_payload_crc: true };
    let payload = vec![9; 16 << 20];
    let mut frame = vec![0; head.head_bytes()];
    head.seal(&mut frame, Some(&payload));
    end.feed(&frame).unwrap();
    assert!(end.service.executed.is_empty());
    assert!(!end.protocol.is_stalled(end.now) && end.protocol.is_stalled(end.now + Duration::from_secs(31)));
    end.feed(&payload).unwrap();
    assert_eq!(end.service.executed.len(), 1);
}

#[test]
fn an_oversized_payload_ends_the_connection_at_its_head() {
    let mut frame = request(0, 0, 0, 0, &[]);
    frame[8..12].copy_from_slice(&(PAYLOAD_BYTES_MAX as u32 + 1).to_le_bytes());
    let refused = ServerEnd::greeted(1).feed(&frame).unwrap_err();
    assert_eq!(refused, RpcFrameError::TooLong { bytes: PAYLOAD_BYTES_MAX as u32 + 1 });
}

#[test]
fn a_client_that_withholds_part_of_a_frame_is_disconnected() {
    let frame = request(0, 0, 0, 0, &[1; 100]);
    for withheld in [1, 50, 100, frame.len() - 1] {
        let mut end = ServerEnd::greeted(1);
        end.take_sent();
        end.feed(&frame[..frame.len() - withheld]).unwrap();
        assert!(end.service.executed.is_empty());
        assert!(!end.protocol.is_stalled(end.now + Duration::from_secs(25)), "a stopped client has some time");
        assert!(end.protocol.is_stalled(end.now + Duration::from_secs(31)), "{withheld} bytes are kept");
        // The rest of the frame arrives after all.
        end.feed(&frame[frame.len() - withheld..]).unwrap();
        end.take_sent();
        assert_eq!(end.service.executed.len(), 1);
        assert!(!end.protocol.is_stalled(end.now + Duration::from_secs(1000)), "an idle client stays");
    }
}

#[test]
fn a_damaged_long_payload_is_not_executed() {
    let mut end = ServerEnd::greeted(1);
    let head =
        RequestHead { slot: 0, handler: 0, id: 0, oldest_pending_distance: 0, remaining_us: 0, has_payload_crc: true };
    let mut payload = vec![9; 1 << 20];
    let mut frame = vec![0; head.head_bytes()];
    head.seal(&mut frame, Some(&payload));
    payload[777_777] ^= 4;
    end.feed(&frame).unwrap();
    assert_eq!(end.feed(&payload), Err(RpcFrameError::PayloadChecksum));
    assert!(end.service.executed.is_empty());
}

#[test]
fn a_peer_of_another_version_gets_ours_before_the_end() {
    let mut end = ServerEnd::new();
    let theirs = VersionRange { newest: 9, oldest: 8 };
    assert_eq!(end.feed(&theirs.encode()), Err(RpcFrameError::Version { theirs, ours: VersionRange::SUPPORTED }));
    let mut slices = [std::io::IoSlice::new(&[]); crate::retransmit::SLICES_MAX];
    let count = end.protocol.slices(&mut slices);
    assert_eq!(
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>(),
        VersionRange::SUPPORTED.encode()
    );
}

#[test]
fn an_answer_that_is_too_long_is_refused() {
    let mut end = ServerEnd::greeted(1);
    end.feed(&request(0, 0, 0, (16 << 20) + 1, &[])).unwrap();
    assert!(end.protocol.unsent_bytes() < 1000);
    let ticket = RequestKey { session: SessionId::from_bytes([0; 16]), id: 7, checked: false };
    assert!(
        end.protocol.complete_deferred(ticket, Status::Answered, Vec::new()).is_ok(),
        "a reply without a request is ignored"
    );
}

#[test]
fn a_client_that_acknowledges_nothing_is_refused_at_a_limit() {
    const SLOTS: u16 = 8;
    let mut end = ServerEnd::greeted(SLOTS);
    end.take_sent();
    let mut refused = 0;
    // Skip the requests that never get a reply.
    let ids = (0..60u64).filter(|id| id % 10 != 7);
    for (id, slot) in ids.flat_map(|id| (0..SLOTS).map(move |slot| (id, slot))) {
        end.feed(&request(slot, id, id as u32, 1 << 20, &[])).unwrap();
        let answer = end.take_sent();
        let [ServerFrame::Reply(head)] = answer[..] else { panic!("{answer:?}") };
        assert!(matches!(head.status, Status::Answered | Status::Overloaded), "{:?}", head.status);
        refused += usize::from(head.status == Status::Overloaded);
        assert!(end.protocol.held_bytes() <= HELD_BYTES_MAX + (2 << 20), "{} bytes", end.protocol.held_bytes());
    }
    assert!(refused > 100, "{refused} requests were refused");
    assert_eq!(end.service.executed.len() + refused, 54 * usize::from(SLOTS), "nothing refused is executed");
    // Once the client acknowledges, it is served again, including refused requests.
    let acknowledge = |slot| {
        let mut bytes = Vec::new();
        ClientFrame::Acknowledge { slot, below: 59 }.append(&mut bytes);
        bytes
    };
    (0..SLOTS).for_each(|slot| _ = end.feed(&acknowledge(slot)).unwrap());
    end.feed(&request(0, 59, 0, 1 << 20, &[])).unwrap();
    assert!(matches!(end.take_sent()[..], [ServerFrame::Reply(head)] if head.status == Status::Answered));
    assert!(end.service.executed.values().all(|times| *times == 1));
}
