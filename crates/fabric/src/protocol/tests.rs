//! Tests of requester and responder as a pair, without sockets and on a virtual clock. With any delays, cuts and
//! reconnections, each read ends once, with the right bytes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::change::ConnectionId;
use farfork_wire::frame::encode_hello;
use farfork_wire::{NodeName, SeedId, Token};
use proptest::prelude::*;

use super::{DecodeEvent, FrameDecoder, OwnerContext, PendingRequest, RequestOutcome, Requester, Responder, SendQueue};
use crate::buffer::BufferPool;
use crate::{Exporter, ReadMode, ReadRequest, Refusal, Region, SeedKey, Span};

const EXTENT_BYTES: u64 = 10_000;

/// A seed whose byte at offset N depends on N and the seed's number. Only seeds with even numbers exist.
struct NumberedPattern(u64);

impl Region for NumberedPattern {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        (extent.0 < 2).then_some(EXTENT_BYTES)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at * 31 + self.0 * 7) as u8);
        Ok(())
    }
}

struct Patterns;

impl Exporter for Patterns {
    fn open_region(&self, seed: &SeedId, _: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let number = seed.number();
        if number.is_multiple_of(2) { Ok(Arc::new(NumberedPattern(number))) } else { Err(Refusal::UnknownSeed) }
    }
}

fn requester() -> Requester {
    Requester::new(ConnectionId::from_bytes([3; 16]))
}

/// One connection: the owner's end, and the bytes in flight in both directions.
struct ConnectionPair {
    shared: OwnerContext,
    owner: Responder,
    owner_inbound: FrameDecoder,
    owner_outbound: SendQueue,
    requester_inbound: FrameDecoder,
    to_owner: Vec<u8>,
    to_requester: Vec<u8>,
    pool: BufferPool,
}

impl ConnectionPair {
    fn new() -> Self {
        let (mut pool, mut owner_outbound) = (BufferPool::default(), SendQueue::default());
        let exporter: Arc<dyn Exporter> = Arc::new(Patterns);
        Self {
            shared: OwnerContext::new(&exporter),
            owner: Responder::new("test".to_owned(), false, &mut owner_outbound, &mut pool),
            owner_inbound: FrameDecoder::new(200, 100),
            owner_outbound,
            requester_inbound: FrameDecoder::new(300, usize::MAX),
            to_owner: encode_hello().to_vec(),
            to_requester: Vec::new(),
            pool,
        }
    }

    /// Moves some bytes to the owner, and queues its replies for the requester.
    fn advance_owner(&mut self, bytes: usize) {
        let mut rest = &self.to_owner[..bytes.min(self.to_owner.len())];
        let moved = rest.len();
        while !rest.is_empty() {
            rest = &rest[feed(&mut self.owner_inbound, rest)..];
            while let Some(event) = self.owner_inbound.next_event(&mut self.pool).unwrap() {
                if let DecodeEvent::Frame(header, body) = event {
                    let (out, pool) = (&mut self.owner_outbound, &mut self.pool);
                    self.owner.serve_request(&header, &body, &self.shared, out, pool).unwrap();
                }
            }
        }
        self.to_owner.drain(..moved);
        while self.owner_outbound.queued_bytes() > 0 {
            let (slices, count, _) = self.owner_outbound.slices();
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            self.owner_outbound.mark_sent(bytes.len(), &mut self.pool);
            self.to_requester.extend(bytes);
        }
    }

    /// Moves some bytes to the requester. Returns the requests that these bytes complete.
    fn advance_requester(&mut self, bytes: usize, requester: &mut Requester) -> Vec<(PendingRequest, RequestOutcome)> {
        let mut rest = &self.to_requester[..bytes.min(self.to_requester.len())];
        let (moved, mut answers) = (rest.len(), Vec::new());
        while !rest.is_empty() {
            rest = &rest[feed(&mut self.requester_inbound, rest)..];
            while let Some(event) = self.requester_inbound.next_event(&mut self.pool).unwrap() {
                if let DecodeEvent::Frame(header, mut body) = event {
                    answers.extend(requester.handle_frame(&header, &mut body).unwrap());
                }
            }
        }
        self.to_requester.drain(..moved);
        answers
    }
}

/// Writes bytes to a decoder's buffers, as many as fit. Returns their number.
fn feed(decoder: &mut FrameDecoder, bytes: &[u8]) -> usize {
    let mut count = 0;
    for space in &mut decoder.receive_buffers() {
        let part = space.len().min(bytes.len() - count);
        space[..part].copy_from_slice(&bytes[count..count + part]);
        count += part;
    }
    decoder.mark_received(count);
    count
}

#[derive(Debug, Clone)]
enum Step {
    SubmitRead { seed: u64, offset: u64, bytes: u32, wait_ms: u64 },
    Send,
    AdvanceOwner(usize),
    AdvanceRequester(usize),
    Reconnect,
    Wait(u64),
    AbandonAll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pending = (0u64..100, 0..EXTENT_BYTES, 1u32..3000, 1u64..2000);
    let step = prop_oneof![
        6 => pending.prop_map(|(seed, offset, bytes, wait_ms)| Step::SubmitRead { seed, offset, bytes, wait_ms }),
        4 => Just(Step::Send),
        4 => (1usize..4000).prop_map(Step::AdvanceOwner),
        4 => (1usize..4000).prop_map(Step::AdvanceRequester),
        1 => Just(Step::Reconnect),
        2 => (1u64..300).prop_map(Step::Wait),
        1 => Just(Step::AbandonAll),
    ];
    prop::collection::vec(step, 1..150)
}

/// The state of a test run: requester, path, clock, and the number of times that each read has ended.
struct ReadTracker {
    requester: Requester,
    path: ConnectionPair,
    now: Instant,
    asked: u64,
    ended: HashMap<u64, usize>,
}

impl ReadTracker {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::SubmitRead { seed, offset, bytes, wait_ms } => self.submit_read(seed, offset, bytes, wait_ms),
            Step::Send => while self.requester.encode_next(self.now, &mut self.path.to_owner) {},
            Step::AdvanceOwner(bytes) => self.path.advance_owner(bytes),
            Step::AdvanceRequester(bytes) => {
                self.requester.mark_received(self.now);
                for (pending, outcome) in self.path.advance_requester(bytes, &mut self.requester) {
                    self.check_ended(&pending, Some(&outcome));
                }
            }
            Step::Reconnect => {
                self.requester.handle_disconnect();
                self.path = ConnectionPair::new();
            }
            Step::Wait(wait_ms) => {
                self.now += Duration::from_millis(wait_ms);
                while let Some((pending, _)) = self.requester.take_expired(self.now) {
                    self.check_ended(&pending, None);
                }
            }
            Step::AbandonAll => {
                for (pending, _) in self.requester.take_all() {
                    let PendingRequest::Read(request) = pending else { panic!("only reads were asked") };
                    *self.ended.entry(request.tag).or_default() += 1;
                }
            }
        }
    }

    fn submit_read(&mut self, seed: u64, offset: u64, bytes: u32, wait_ms: u64) {
        let seed = SeedId::new(NodeName::new("n1").unwrap(), seed);
        let key = Arc::new(SeedKey { seed, token: Token::from_bytes([1; 16]) });
        let mode = if self.asked.is_multiple_of(3) { ReadMode::Clip } else { ReadMode::Exact };
        let spans = vec![Span { extent: ExtentId(0), offset, bytes }];
        let deadline = self.now + Duration::from_millis(wait_ms);
        self.requester.enqueue(PendingRequest::Read(ReadRequest { tag: self.asked, key, mode, spans, deadline }));
        self.asked += 1;
    }

    /// Checks the end of a read; `None` means that its deadline passed.
    fn check_ended(&mut self, pending: &PendingRequest, outcome: Option<&RequestOutcome>) {
        let PendingRequest::Read(request) = pending else { panic!("only reads were asked") };
        *self.ended.entry(request.tag).or_default() += 1;
        let (span, seed) = (request.spans[0], request.key.seed.number());
        let beyond = span.offset + u64::from(span.bytes) > EXTENT_BYTES;
        match outcome {
            None => assert!(request.deadline <= self.now),
            Some(RequestOutcome::Refused(Refusal::UnknownSeed)) => assert!(seed % 2 == 1),
            Some(RequestOutcome::Refused(Refusal::OutOfBounds)) => assert!(beyond && request.mode == ReadMode::Exact),
            Some(RequestOutcome::Completed(reply)) => {
                let bytes = u64::from(span.bytes).min(EXTENT_BYTES - span.offset);
                let mut expected = vec![0; bytes as usize];
                NumberedPattern(seed).read(span.extent, span.offset, &mut expected).unwrap();
                assert!(*reply.data == *expected && reply.extent_bytes == EXTENT_BYTES);
                assert!(!beyond || request.mode == ReadMode::Clip);
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn each_read_completes_once_on_any_path(steps in steps()) {
        let (requester, path, now) = (requester(), ConnectionPair::new(), Instant::now());
        let mut run = ReadTracker { requester, path, now, asked: 0, ended: HashMap::new() };
        for step in &steps {
            run.step(step);
        }
        // The path is repaired: the remaining reads are answered, and no reply is due.
        for step in [Step::Send, Step::AdvanceOwner(usize::MAX), Step::AdvanceRequester(usize::MAX)] {
            run.step(&step);
        }
        prop_assert!(!run.requester.has_unanswered() && run.requester.unanswered_count() == 0);
        prop_assert_eq!(run.requester.silent_since(), None);
        prop_assert_eq!(run.requester.next_deadline(), None);
        prop_assert_eq!(run.ended.len() as u64, run.asked);
        prop_assert!(run.ended.values().all(|times| *times == 1));
    }
}

#[test]
fn silence_lasts_from_the_request_to_the_next_byte() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let (requester, path) = (requester(), ConnectionPair::new());
    let mut run = ReadTracker { requester, path, now: start, asked: 0, ended: HashMap::new() };
    run.submit_read(0, 0, 10, 10_000);
    assert_eq!(run.requester.silent_since(), None, "nothing was sent");
    run.now = at(1);
    run.step(&Step::Send);
    assert_eq!(run.requester.silent_since(), Some(at(1)));
    run.step(&Step::AdvanceOwner(usize::MAX));
    run.now = at(3);
    run.step(&Step::AdvanceRequester(20));
    assert_eq!(run.requester.silent_since(), Some(at(3)), "part of the reply was received");
    run.step(&Step::Wait(20_000));
    assert_eq!(run.requester.silent_since(), Some(at(3)), "an expired request still counts as unanswered");
    run.step(&Step::AdvanceRequester(usize::MAX));
    assert_eq!(run.requester.silent_since(), None);
    assert_eq!(run.ended[&0], 1);
}
