//! Tests that every provider handles registering, writing and revoking memory, messages, and closing in the same way.
//! Each test runs on each provider.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farfork_fabric::{
    CHANGE_BYTES_MAX, Exporter, FabricError, LocalTemplate, MESSAGE_BYTES_MAX, MessageRequest, QUEUE_MESSAGES_MAX,
    Refusal, Region, RegionRegistry, Registration, SeedKey, SharedMemory, Span, SubmitError, WRITE_BYTES_MAX,
    WriteRequest,
};
use farfork_wire::descriptor::ExtentId;

use crate::conformance::on_each_provider;
use crate::seed::{COPY, COPY_BYTES, MEMORY, PAGE, expected, key};
use crate::support::{Fixture, PATIENCE, refusal};

on_each_provider!(
    written_bytes_are_read_back,
    requests_are_served_in_order,
    refused_writes_name_the_cause,
    changes_above_the_limits_are_refused_before_sending,
    revoked_memory_is_not_accessed,
    memory_is_revoked_while_requests_are_in_flight,
    a_name_belongs_to_one_region_at_a_time,
    messages_arrive_once_and_in_order,
    a_full_message_queue_is_reported,
    a_peer_without_a_message_queue_refuses_messages,
    an_unsent_change_has_no_effect,
    an_owner_that_lost_its_sessions_repeats_no_change,
    a_closed_connection_ends_accepted_requests_and_accepts_no_more,
    a_closing_owner_answers_what_it_received,
);

const WORDS: ExtentId = ExtentId(0);
const BYTES: u64 = 2 << 20;

fn span(offset: u64, bytes: u64) -> Span {
    Span { extent: WORDS, offset, bytes: bytes as u32 }
}

/// Registers memory of [`BYTES`] zeroes.
fn register(fixture: &Fixture, number: u64) -> (Arc<SeedKey>, Registration) {
    let (key, memory) = (key(number), Arc::new(SharedMemory::new(BYTES).unwrap()));
    let registration = fixture.seeds.registry.register(&key, memory).unwrap();
    (key, registration)
}

fn pattern(salt: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at * 13 + salt * 101) as u8).collect()
}

fn written_bytes_are_read_back(mut fixture: Fixture) {
    let (key, _registration) = register(&fixture, 5);
    let spans = [span(100, 5000), span(BYTES - 7, 7), span(9000, 1)];
    let data = pattern(1, 5008);
    fixture.requester.write(&key, &spans, &data, PATIENCE).unwrap();
    let mut other = fixture.site.connect(&fixture.address);
    assert_eq!(other.read(&key, &spans, PATIENCE).unwrap(), data);
    assert_eq!(other.read(&key, &[span(95, 5)], PATIENCE).unwrap(), [0; 5]);
    assert_eq!(other.read(&key, &[span(5100, 5)], PATIENCE).unwrap(), [0; 5]);
    let most = pattern(2, WRITE_BYTES_MAX as u64);
    other.write(&key, &[span(3, WRITE_BYTES_MAX as u64)], &most, PATIENCE).unwrap();
    assert_eq!(fixture.requester.read(&key, &[span(3, WRITE_BYTES_MAX as u64)], PATIENCE).unwrap(), most);
    // If two spans of a write overlap, the later span is written last.
    fixture.requester.write(&key, &[span(0, 4), span(2, 4)], b"abcdefgh", PATIENCE).unwrap();
    assert_eq!(fixture.requester.read(&key, &[span(0, 6)], PATIENCE).unwrap(), b"abefgh");
}

fn requests_are_served_in_order(mut fixture: Fixture) {
    let (key, _registration) = register(&fixture, 5);
    for round in 0..300 {
        fixture.requester.submit_write(2 * round, &key, &[span(50, 3000)], &pattern(round, 3000), PATIENCE);
        fixture.requester.submit(2 * round + 1, &key, &[span(50, 3000)], PATIENCE);
    }
    let ended = fixture.requester.finish();
    assert_eq!(ended.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), (0..600).collect::<Vec<_>>());
    for (tag, result) in ended.into_iter().filter(|(tag, _)| tag % 2 == 1) {
        assert_eq!(result.unwrap(), pattern(tag / 2, 3000));
    }
}

fn refused_writes_name_the_cause(mut fixture: Fixture) {
    let (own, _registration) = register(&fixture, 5);
    let (seed, requester) = (fixture.key.clone(), &mut fixture.requester);
    let page = [Span { extent: MEMORY, offset: 0, bytes: 4 }];
    assert_eq!(refusal(requester.write(&seed, &page, b"evil", PATIENCE)), Refusal::ReadOnly);
    let copy = [Span { extent: COPY, offset: COPY_BYTES - 1, bytes: 2 }];
    assert_eq!(refusal(requester.write(&seed, &copy, b"ev", PATIENCE)), Refusal::OutOfBounds);
    assert_eq!(requester.read(&seed, &page, PATIENCE).unwrap(), expected(MEMORY, 0, 4));
    for wrong in [span(BYTES, 1), span(BYTES - 1, 2), span(u64::MAX, 2), Span { extent: ExtentId(1), ..span(0, 2) }] {
        let data = vec![9; 10 + wrong.bytes as usize];
        assert_eq!(refusal(requester.write(&own, &[span(0, 10), wrong], &data, PATIENCE)), Refusal::OutOfBounds);
    }
    assert_eq!(
        requester.read(&own, &[span(0, 10)], PATIENCE).unwrap(),
        [0; 10],
        "nothing is written if one span is out of bounds"
    );
    let wrong = Arc::new(SeedKey { token: key(9).token, ..(*own).clone() });
    assert_eq!(refusal(requester.write(&wrong, &[span(0, 1)], b"x", PATIENCE)), Refusal::WrongToken);
    assert_eq!(refusal(requester.write(&key(77), &[span(0, 1)], b"x", PATIENCE)), Refusal::UnknownSeed);
}

fn changes_above_the_limits_are_refused_before_sending(mut fixture: Fixture) {
    let (key, _registration) = register(&fixture, 5);
    let deadline = fixture.requester.in_time(PATIENCE);
    let connection = &mut fixture.requester.connection;
    let mut write = |spans: &[Span], bytes: usize| {
        let (key, spans, data) = (Arc::clone(&key), spans.to_vec(), vec![1; bytes]);
        connection.submit_write(WriteRequest { tag: 0, key, spans, data, deadline })
    };
    assert_eq!(write(&[span(0, 10)], 9), Err(SubmitError::LengthMismatch { data: 9, spans: 10 }));
    assert!(matches!(write(&[], 0), Err(SubmitError::InvalidSpans(_))));
    let whole = WRITE_BYTES_MAX as u64;
    assert!(matches!(write(&[span(0, whole), span(0, 1)], WRITE_BYTES_MAX + 1), Err(SubmitError::InvalidSpans(_))));
    for _ in 0..CHANGE_BYTES_MAX / WRITE_BYTES_MAX {
        write(&[span(0, whole)], WRITE_BYTES_MAX).unwrap();
    }
    assert_eq!(write(&[span(0, 1)], 1), Err(SubmitError::Full));
    let message = |bytes: usize| MessageRequest { tag: 0, bytes: vec![0; bytes], deadline };
    assert_eq!(connection.submit_message(message(1)), Err(SubmitError::Full));
    let too_long = MESSAGE_BYTES_MAX + 1;
    assert_eq!(connection.submit_message(message(too_long)), Err(SubmitError::MessageTooLong(too_long)));
    assert!(fixture.requester.finish().into_iter().all(|(_, result)| result.is_ok()));
    fixture.requester.tell(&[7; MESSAGE_BYTES_MAX], PATIENCE).unwrap();
}

/// Memory that counts accesses, and panics at an access after it was revoked.
#[derive(Default)]
struct Watched {
    revoked: AtomicBool,
    touched: AtomicU64,
}

impl Watched {
    fn touch(&self) {
        assert!(!self.revoked.load(Ordering::SeqCst), "revoked memory is touched");
        self.touched.fetch_add(1, Ordering::SeqCst);
    }
}

impl Region for Watched {
    fn extent_bytes(&self, _: ExtentId) -> Option<u64> {
        Some(BYTES)
    }

    fn read(&self, _: ExtentId, _: u64, into: &mut [u8]) -> io::Result<()> {
        self.touch();
        into.fill(1);
        // Sleep, so that the memory may be revoked between the two checks.
        std::thread::sleep(Duration::from_micros(20));
        self.touch();
        Ok(())
    }

    fn write(&self, _: ExtentId, _: u64, _: &[u8]) -> io::Result<()> {
        self.touch();
        Ok(())
    }

    fn local_template(&self) -> Option<LocalTemplate> {
        // The registry must not pass this template on, because a requester could keep the grant.
        let template = farfork_sys::pidfd::open(std::process::id() as i32).unwrap();
        Some(LocalTemplate { template, extents: vec![(WORDS, 4096)] })
    }
}

fn revoked_memory_is_not_accessed(mut fixture: Fixture) {
    let (key, watched) = (key(5), Arc::new(Watched::default()));
    let registration = fixture.seeds.registry.register(&key, watched.clone()).unwrap();
    for _ in 0..3 {
        assert_eq!(fixture.requester.read(&key, &[span(9, 2)], PATIENCE).unwrap(), [1; 2]);
        fixture.requester.write(&key, &[span(9, 2)], b"ab", PATIENCE).unwrap();
    }
    drop(registration);
    watched.revoked.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(refusal(fixture.requester.read(&key, &[span(9, 2)], PATIENCE)), Refusal::UnknownSeed);
        assert_eq!(refusal(fixture.requester.write(&key, &[span(9, 2)], b"ab", PATIENCE)), Refusal::UnknownSeed);
    }
    assert_eq!(watched.touched.load(Ordering::SeqCst), 9);
}

fn memory_is_revoked_while_requests_are_in_flight(mut fixture: Fixture) {
    for round in 0..20u64 {
        let (key, watched) = (key(100 + round), Arc::new(Watched::default()));
        let registration = fixture.seeds.registry.register(&key, watched.clone()).unwrap();
        for tag in 0..200 {
            fixture.requester.submit(2 * tag, &key, &[span(0, PAGE), span(PAGE, PAGE)], PATIENCE);
            fixture.requester.submit_write(2 * tag + 1, &key, &[span(0, PAGE)], &pattern(tag, PAGE), PATIENCE);
        }
        for _ in 0..1 + round % 4 {
            fixture.requester.poll();
            fixture.site.pass(Duration::from_micros(round * 50));
        }
        drop(registration);
        watched.revoked.store(true, Ordering::SeqCst);
        let ended = fixture.requester.finish();
        assert_eq!(ended.len(), 400);
        let mut refused = false;
        for (tag, result) in ended {
            // Once a request is refused, all later requests are refused.
            refused |= result.is_err();
            if refused {
                assert_eq!(refusal(result), Refusal::UnknownSeed, "{tag}");
            }
        }
    }
}

fn a_name_belongs_to_one_region_at_a_time(mut fixture: Fixture) {
    let (own, registration) = register(&fixture, 5);
    fixture.requester.write(&own, &[span(0, 3)], b"old", PATIENCE).unwrap();
    let taken = fixture.seeds.registry.register(&own, Arc::new(SharedMemory::new(10).unwrap()));
    assert!(taken.unwrap_err().to_string().contains(&own.seed.to_string()));
    drop(registration);
    let (own, _registration) = register(&fixture, 5);
    assert_eq!(
        fixture.requester.read(&own, &[span(0, 3)], PATIENCE).unwrap(),
        [0; 3],
        "the id refers to the new region"
    );
}

fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    let mut message = vec![number as u8; bytes.max(8)];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

fn number_of(message: &[u8]) -> u64 {
    u64::from_le_bytes(*message.first_chunk().unwrap())
}

fn messages_arrive_once_and_in_order(mut fixture: Fixture) {
    let mut other = fixture.site.connect(&fixture.address);
    for number in 0..400 {
        fixture.requester.send(number, &numbered(number, number as usize * 20), PATIENCE);
        other.send(number, &numbered(1000 + number, 9), PATIENCE);
    }
    for requester in [&mut fixture.requester, &mut other] {
        let ended = requester.finish();
        assert!(ended.iter().zip(0..).all(|((tag, result), number)| *tag == number && result.is_ok()));
    }
    let mut received = Vec::new();
    while let Some(message) = fixture.seeds.inbox.receive() {
        assert!(!message.sender.is_empty());
        let number = number_of(&message.bytes);
        let bytes = if number < 1000 { number as usize * 20 } else { 9 };
        assert_eq!(message.bytes, numbered(number, bytes));
        received.push(number);
    }
    let of = |from: u64| received.iter().copied().filter(|number| number / 1000 == from).collect::<Vec<_>>();
    assert_eq!(of(0), (0..400).collect::<Vec<_>>());
    assert_eq!(of(1), (1000..1400).collect::<Vec<_>>());
}

fn a_full_message_queue_is_reported(mut fixture: Fixture) {
    for number in 0..QUEUE_MESSAGES_MAX as u64 {
        fixture.requester.send(number, b"m", PATIENCE);
    }
    assert!(fixture.requester.finish().into_iter().all(|(_, result)| result.is_ok()));
    let full = fixture.requester.tell(b"one more", PATIENCE);
    assert!(!full.as_ref().unwrap_err().may_have_taken_effect());
    assert_eq!(refusal(full), Refusal::MessageQueueFull);
    fixture.seeds.inbox.receive().unwrap();
    fixture.requester.tell(b"one more", PATIENCE).unwrap();
}

fn a_peer_without_a_message_queue_refuses_messages(mut fixture: Fixture) {
    fixture.server = None;
    let exporter: Arc<dyn Exporter> = RegionRegistry::new(None);
    fixture.server = Some(fixture.site.serve(Some(&fixture.address), &exporter));
    let mut requester = fixture.site.connect(&fixture.address);
    assert_eq!(refusal(requester.tell(b"hello?", PATIENCE)), Refusal::NoReceiver);
}

fn an_unsent_change_has_no_effect(mut fixture: Fixture) {
    fixture.server = None;
    let mut requester = fixture.site.connect(&fixture.address);
    let wait = Duration::from_millis(300);
    let unsent = requester.tell(b"anybody?", wait).unwrap_err();
    let unwritten = requester.write(&key(1), &[span(0, 1)], b"x", wait).unwrap_err();
    for error in [unsent, unwritten] {
        assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");
        assert!(!error.is_permanent() && !error.may_have_taken_effect());
    }
}

fn an_owner_that_lost_its_sessions_repeats_no_change(mut fixture: Fixture) {
    let mut uncertain = 0;
    for round in 0..10 {
        for number in 0..50 {
            fixture.requester.send(number, &numbered(round * 100 + number, 8), PATIENCE);
        }
        for _ in 0..round % 3 {
            fixture.requester.poll();
            fixture.site.pass(Duration::from_micros(30 * round));
        }
        // The message queue outlives the server, as the effects of a message would.
        let seeds = fixture.seeds.clone();
        fixture.restart(&seeds);
        let ended: HashMap<u64, _> = fixture.requester.finish().into_iter().collect();
        let mut arrived = HashMap::new();
        while let Some(message) = fixture.seeds.inbox.receive() {
            *arrived.entry(number_of(&message.bytes) - round * 100).or_insert(0) += 1;
        }
        assert_eq!(ended.len(), 50);
        for (number, result) in ended {
            match (result, arrived.get(&number).copied().unwrap_or(0)) {
                (Ok(_), times) => assert_eq!(times, 1),
                (Err(error), times) => {
                    assert!(error.may_have_taken_effect() && times <= 1, "{error}, {times} times");
                    uncertain += 1;
                }
            }
        }
    }
    assert!(uncertain < 500, "a new owner makes changes that were never sent before");
}

fn a_closed_connection_ends_accepted_requests_and_accepts_no_more(mut fixture: Fixture) {
    for number in 0..50 {
        fixture.requester.send(number, &numbered(number, 8), PATIENCE);
    }
    fixture.requester.connection.close();
    assert!(!fixture.requester.connection.is_closed());
    let deadline = fixture.requester.in_time(PATIENCE);
    let late = MessageRequest { tag: 0, bytes: Vec::new(), deadline };
    assert_eq!(fixture.requester.connection.submit_message(late), Err(SubmitError::Closed));
    let ended = fixture.requester.finish();
    assert!(ended.len() == 50 && ended.into_iter().all(|(_, result)| result.is_ok()));
    fixture.requester.poll();
    assert!(fixture.requester.connection.is_closed());
    assert_eq!(fixture.requester.connection.next_timeout(), None);
}

fn a_closing_owner_answers_what_it_received(mut fixture: Fixture) {
    for number in 0..300 {
        let spans = [Span { extent: COPY, offset: number, bytes: 60_000 }];
        fixture.requester.submit(number, &fixture.key.clone(), &spans, Duration::from_secs(2));
    }
    while fixture.seed.reads.load(Ordering::Relaxed) == 0 {
        fixture.requester.poll();
        fixture.site.pass(Duration::from_micros(200));
    }
    let server = fixture.server.take().unwrap();
    // The requester does not receive, so the server can send only as many bytes as fit into the kernel's buffers.
    server.close(Duration::from_millis(300));
    let served = fixture.seed.reads.load(Ordering::Relaxed);
    let answered = fixture.requester.finish().into_iter().filter(|(_, result)| result.is_ok()).count() as u64;
    assert!(answered > 0 && answered <= served, "{answered} of {served}");
    fixture.site.pass(Duration::from_millis(10));
    assert_eq!(fixture.seed.reads.load(Ordering::Relaxed), served, "a closed owner serves nothing");
}
