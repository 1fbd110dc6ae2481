//! Tests that every provider reads memory in the same way. Each test runs on each provider, with a real process as the
//! template; [`crate::changes`] has the other tests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::seed::{COPY, COPY_BYTES, DESCRIPTOR_BYTES, MEMORY, PAGE, PAGES, PROTECTED_PAGE, Seeds, expected, key};
use crate::support::{BUSY_MACHINE, Fixture, PATIENCE, Provider, refusal};
use farfork_fabric::{
    BlockingError, FabricError, READ_BYTES_MAX, REQUESTS_MAX, ReadMode, ReadRequest, Refusal, SPANS_MAX, Span,
    SubmitError, fetch_extent, read_blocking,
};
use farfork_wire::descriptor::ExtentId;

/// Defines a test for each provider.
macro_rules! on_each_provider {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[test] fn $name() { super::$name(crate::support::Fixture::new(crate::support::Provider::Tcp)); })*
        }
        mod shm {
            $(#[test] fn $name() { super::$name(crate::support::Fixture::new(crate::support::Provider::Shm)); })*
        }
        mod sim {
            $(#[test] fn $name() { super::$name(crate::support::Fixture::new(crate::support::Provider::Sim)); })*
        }
    };
}

pub(crate) use on_each_provider;

on_each_provider!(
    reads_return_the_memory_of_the_template,
    spans_arrive_in_the_order_of_the_request,
    many_reads_in_flight_all_end_once,
    long_extents_are_read_in_pieces,
    a_descriptor_is_fetched_without_knowing_its_length,
    refused_reads_name_the_cause,
    reads_above_the_limits_are_refused_before_sending,
    a_dropped_seed_is_unknown,
    a_template_that_ended_is_an_unknown_seed,
    a_stopped_owner_is_unreachable_by_the_deadline,
    a_restarted_owner_answers_waiting_requests,
    an_owner_that_was_restarted_does_not_know_the_seed,
    more_seeds_than_handles_are_distinguished,
    a_server_ends_at_once,
    abandoned_reads_do_not_complete,
);

fn page(number: u64) -> Span {
    Span { extent: MEMORY, offset: number * PAGE, bytes: PAGE as u32 }
}

/// Reads a few times, so that a provider with direct reads (`shm`) has its grants.
fn warm_up(fixture: &mut Fixture) {
    for _ in 0..3 {
        fixture.read(MEMORY, 0, 8).unwrap();
    }
}

fn reads_return_the_memory_of_the_template(mut fixture: Fixture) {
    for round in 0..3 {
        for number in [0, 1, PROTECTED_PAGE, PAGES - 1] {
            let bytes = fixture.read(MEMORY, number * PAGE, PAGE as u32).unwrap();
            assert_eq!(bytes, expected(MEMORY, number * PAGE, PAGE), "page {number}, round {round}");
        }
        // This range includes the page without read permission, and starts and ends within pages.
        let (offset, bytes) = (3 * PAGE + 100, 4 * PAGE);
        assert_eq!(fixture.read(MEMORY, offset, bytes as u32).unwrap(), expected(MEMORY, offset, bytes));
    }
    let through_owner = fixture.seed.reads.load(Ordering::Relaxed);
    fixture.read(MEMORY, 0, 8).unwrap();
    let owner_read_again = fixture.seed.reads.load(Ordering::Relaxed) > through_owner;
    assert_eq!(owner_read_again, fixture.site.provider != Provider::Shm, "only shm reads without the owner");
}

fn spans_arrive_in_the_order_of_the_request(mut fixture: Fixture) {
    let copy = Span { extent: COPY, offset: 11, bytes: 5000 };
    let spans = [page(7), copy, page(3), page(PROTECTED_PAGE)];
    let whole: Vec<u8> = spans.iter().flat_map(|span| expected(span.extent, span.offset, span.bytes.into())).collect();
    let (key, template_only) = (Arc::clone(&fixture.key), [page(9), page(2)]);
    for _ in 0..3 {
        assert_eq!(fixture.requester.read(&key, &spans, PATIENCE).unwrap(), whole);
        let bytes = fixture.requester.read(&key, &template_only, PATIENCE).unwrap();
        assert_eq!(bytes, [expected(MEMORY, 9 * PAGE, PAGE), expected(MEMORY, 2 * PAGE, PAGE)].concat());
    }
    let most: Vec<_> = (0..SPANS_MAX as u64).map(page).collect();
    let bytes = fixture.requester.read(&key, &most, PATIENCE).unwrap();
    assert_eq!(bytes, expected(MEMORY, 0, READ_BYTES_MAX as u64));
}

fn many_reads_in_flight_all_end_once(mut fixture: Fixture) {
    let mut ended = vec![0; REQUESTS_MAX];
    let position = |tag: u64| (tag * 31 % PAGES, 1 + tag * 53 % 9000 % (PAGE * 4));
    for tag in 0..REQUESTS_MAX as u64 {
        let (number, bytes) = position(tag);
        let bytes = bytes.min((PAGES - number) * PAGE) as u32;
        let spans = [Span { extent: MEMORY, offset: number * PAGE, bytes }];
        fixture.requester.submit(tag, &fixture.key, &spans, PATIENCE);
    }
    assert_eq!(fixture.requester.connection.unanswered_count(), REQUESTS_MAX);
    while fixture.requester.connection.unanswered_count() > 0 {
        fixture.requester.wait();
        for completion in std::mem::take(&mut fixture.requester.completions) {
            let data = completion.result.unwrap().data;
            let (number, _) = position(completion.tag);
            assert_eq!(*data, expected(MEMORY, number * PAGE, data.len() as u64));
            ended[completion.tag as usize] += 1;
            fixture.requester.connection.recycle_buffer(data);
        }
    }
    assert!(ended.iter().all(|times| *times == 1));
}

fn long_extents_are_read_in_pieces(mut fixture: Fixture) {
    let connection = &mut *fixture.requester.connection;
    for (extent, whole) in [(MEMORY, PAGES * PAGE), (COPY, COPY_BYTES)] {
        let mut bytes = vec![0; whole as usize - 3];
        let deadline = connection.now() + PATIENCE;
        read_blocking(connection, &fixture.key, extent, 3, &mut bytes, deadline).unwrap();
        assert_eq!(bytes, expected(extent, 3, whole - 3));
    }
}

fn a_descriptor_is_fetched_without_knowing_its_length(mut fixture: Fixture) {
    let connection = &mut *fixture.requester.connection;
    let deadline = connection.now() + PATIENCE;
    let whole = fetch_extent(connection, &fixture.key, ExtentId::DESCRIPTOR, DESCRIPTOR_BYTES, deadline).unwrap();
    assert_eq!(whole, expected(ExtentId::DESCRIPTOR, 0, DESCRIPTOR_BYTES as u64));
    let reads_before = fixture.seed.reads.load(Ordering::Relaxed);
    assert_eq!(fetch_extent(connection, &fixture.key, COPY, usize::MAX, deadline).unwrap().len() as u64, COPY_BYTES);
    assert_eq!(fixture.seed.reads.load(Ordering::Relaxed), reads_before + 1, "a short extent takes one read");
    let too_long = fetch_extent(connection, &fixture.key, ExtentId::DESCRIPTOR, DESCRIPTOR_BYTES - 1, deadline);
    assert!(matches!(too_long, Err(BlockingError::TooLong { .. })));
}

fn refused_reads_name_the_cause(mut fixture: Fixture) {
    let end = PAGES * PAGE;
    for _ in 0..3 {
        for (extent, offset, bytes) in [
            (MEMORY, end, 1),
            (MEMORY, end - 10, 11),
            (MEMORY, u64::MAX, 1),
            (MEMORY, u64::MAX - 4095, 4096),
            (COPY, COPY_BYTES - 1, 2),
            (ExtentId(2), 0, 1),
        ] {
            assert_eq!(refusal(fixture.read(extent, offset, bytes)), Refusal::OutOfBounds, "{extent:?} {offset}");
        }
        assert_eq!(fixture.read(MEMORY, end - 10, 10).unwrap(), expected(MEMORY, end - 10, 10));
    }
    let mut wrong = (*fixture.key).clone();
    wrong.token = key(2).token;
    let spans = [page(0)];
    assert_eq!(refusal(fixture.requester.read(&Arc::new(wrong), &spans, PATIENCE)), Refusal::WrongToken);
    let unknown = fixture.requester.read(&key(2), &spans, PATIENCE);
    let text = unknown.as_ref().unwrap_err().to_string();
    assert!(text.contains("n1.s0000000000000002") && text.contains(&fixture.address.to_string()), "{text}");
    assert_eq!(refusal(unknown), Refusal::UnknownSeed);
}

fn reads_above_the_limits_are_refused_before_sending(mut fixture: Fixture) {
    let mut submit = |mode, spans: Vec<Span>| {
        let (key, deadline) = (Arc::clone(&fixture.key), fixture.requester.in_time(PATIENCE));
        fixture.requester.connection.submit_read(ReadRequest { tag: 0, key, mode, spans, deadline })
    };
    assert!(matches!(submit(ReadMode::Exact, vec![]), Err(SubmitError::InvalidSpans(_))));
    assert!(matches!(submit(ReadMode::Exact, vec![page(0); SPANS_MAX + 1]), Err(SubmitError::InvalidSpans(_))));
    assert!(matches!(submit(ReadMode::Clip, vec![page(0); 2]), Err(SubmitError::InvalidSpans(_))));
    for _ in 0..REQUESTS_MAX {
        submit(ReadMode::Exact, vec![page(0)]).unwrap();
    }
    assert_eq!(submit(ReadMode::Exact, vec![page(0)]), Err(SubmitError::Full));
}

fn a_dropped_seed_is_unknown(mut fixture: Fixture) {
    warm_up(&mut fixture);
    fixture.seeds.remove(&fixture.key.clone());
    assert_eq!(refusal(fixture.read(COPY, 0, 8)), Refusal::UnknownSeed);
    // Dropping a seed ends its template.
    fixture.seed.template.kill();
    assert_eq!(refusal(fixture.read(MEMORY, 0, 8)), Refusal::UnknownSeed);
}

fn a_template_that_ended_is_an_unknown_seed(mut fixture: Fixture) {
    warm_up(&mut fixture);
    fixture.seed.template.kill();
    for _ in 0..3 {
        assert_eq!(refusal(fixture.read(MEMORY, 0, 8)), Refusal::UnknownSeed);
    }
}

fn a_stopped_owner_is_unreachable_by_the_deadline(mut fixture: Fixture) {
    warm_up(&mut fixture);
    fixture.server = None;
    let (key, wait) = (Arc::clone(&fixture.key), Duration::from_millis(300));
    let gone_at = fixture.requester.in_time(Duration::ZERO);
    for _ in 0..2 {
        let before = fixture.requester.in_time(Duration::ZERO);
        let spans = [Span { extent: COPY, offset: 0, bytes: 8 }];
        let error = fixture.requester.read(&key, &spans, wait).unwrap_err();
        let now = fixture.requester.in_time(Duration::ZERO);
        let waited = now - before;
        assert!(waited >= wait && waited < wait + BUSY_MACHINE, "{waited:?}");
        assert!(matches!(&error, FabricError::Unreachable { silence, .. } if *silence <= now - gone_at), "{error:?}");
        assert!(!error.is_permanent() && error.to_string().contains(&fixture.address.to_string()), "{error}");
    }
}

fn a_restarted_owner_answers_waiting_requests(mut fixture: Fixture) {
    warm_up(&mut fixture);
    fixture.server = None;
    for tag in 0..100 {
        fixture.requester.submit(tag, &fixture.key, &[Span { extent: COPY, offset: tag, bytes: 100 }], PATIENCE);
    }
    let mut completions = Vec::new();
    for _ in 0..50 {
        let now = fixture.requester.in_time(Duration::ZERO);
        fixture.requester.connection.poll(now, &mut completions);
        fixture.site.pass(Duration::from_millis(2));
    }
    assert!(completions.is_empty());
    fixture.restart(&fixture.seeds.clone());
    while fixture.requester.connection.unanswered_count() > 0 {
        fixture.requester.wait();
        completions.append(&mut fixture.requester.completions);
    }
    assert_eq!(completions.len(), 100);
    for completion in completions {
        assert_eq!(*completion.result.unwrap().data, expected(COPY, completion.tag, 100));
    }
}

fn an_owner_that_was_restarted_does_not_know_the_seed(mut fixture: Fixture) {
    warm_up(&mut fixture);
    // The templates of a daemon end with it.
    fixture.seed.template.kill();
    fixture.restart(&Arc::new(Seeds::default()));
    assert_eq!(refusal(fixture.read(MEMORY, 0, 8)), Refusal::UnknownSeed);
    assert_eq!(refusal(fixture.read(COPY, 0, 8)), Refusal::UnknownSeed);
}

fn more_seeds_than_handles_are_distinguished(mut fixture: Fixture) {
    let keys: Vec<_> = (100..300).map(key).collect();
    for known in keys.iter().step_by(2) {
        fixture.seeds.add(known, &fixture.seed);
    }
    for (tag, key) in keys.iter().enumerate() {
        fixture.requester.submit(tag as u64, key, &[page(3)], PATIENCE);
    }
    let mut ended = 0;
    while fixture.requester.connection.unanswered_count() > 0 {
        fixture.requester.wait();
        for completion in std::mem::take(&mut fixture.requester.completions) {
            ended += 1;
            match completion.result {
                Ok(reply) if completion.tag % 2 == 0 => assert_eq!(*reply.data, expected(MEMORY, 3 * PAGE, PAGE)),
                other => assert_eq!(refusal(other), Refusal::UnknownSeed, "{}", completion.tag),
            }
        }
    }
    assert_eq!(ended, keys.len());
}

fn a_server_ends_at_once(mut fixture: Fixture) {
    warm_up(&mut fixture);
    let before = Instant::now();
    fixture.server = None;
    assert!(before.elapsed() < BUSY_MACHINE);
}

fn abandoned_reads_do_not_complete(mut fixture: Fixture) {
    for tag in 0..100 {
        fixture.requester.submit(tag, &fixture.key, &[page(tag)], PATIENCE);
    }
    fixture.requester.poll();
    fixture.requester.connection.abandon_all();
    assert_eq!(fixture.requester.connection.unanswered_count(), 0);
    for number in [8, 9, 10] {
        let bytes = fixture.read(MEMORY, number * PAGE, PAGE as u32).unwrap();
        assert_eq!(bytes, expected(MEMORY, number * PAGE, PAGE));
    }
}
