//! Tests that would take too long in real time, or need a controllable network: on `sim` only.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use farfork_fabric::sim::world::{PathConditions, SimStream};
use farfork_fabric::transport::Stream as _;
use farfork_fabric::{Address, READ_BYTES_MAX, Span};
use farfork_wire::frame::encode_hello;
use farfork_wire::frame::request::{ReadMode, append_open, append_read};

use crate::seed::{MEMORY, PAGE, expected};
use crate::support::{Fixture, PATIENCE, Provider};

/// Makes the network lose the owner's further replies on existing connections.
fn swallow_replies(fixture: &Fixture) {
    let deaf = PathConditions { blackhole_chance: 1.0, ..PathConditions::default() };
    fixture.site.world.set_conditions(fixture.site.there, fixture.site.here, &deaf);
}

fn heal(fixture: &Fixture) {
    fixture.site.world.set_conditions(fixture.site.there, fixture.site.here, &PathConditions::default());
}

/// Sends a message that arrives, but whose reply is lost.
fn send_unanswered(fixture: &mut Fixture) {
    fixture.requester.tell(b"first", PATIENCE).unwrap();
    assert_eq!(fixture.seeds.inbox.receive().unwrap().bytes, b"first");
    swallow_replies(fixture);
    fixture.requester.send(5, b"second", PATIENCE);
    fixture.requester.poll();
    fixture.site.pass(Duration::from_millis(10));
    assert_eq!(fixture.seeds.inbox.receive().unwrap().bytes, b"second");
    heal(fixture);
}

#[test]
fn a_lost_answer_is_sent_again_without_repeating_the_change() {
    let mut fixture = Fixture::new(Provider::Sim);
    send_unanswered(&mut fixture);
    let ended = fixture.requester.finish();
    assert!(ended.len() == 1 && ended[0].0 == 5 && ended[0].1.is_ok(), "{ended:?}");
    assert!(fixture.seeds.inbox.receive().is_none(), "the message was delivered once");
}

#[test]
fn a_restarted_owner_reports_an_unknown_outcome() {
    let mut fixture = Fixture::new(Provider::Sim);
    send_unanswered(&mut fixture);
    fixture.restart(&fixture.seeds.clone());
    let ended = fixture.requester.finish();
    let error = ended[0].1.as_ref().unwrap_err();
    assert!(ended.len() == 1 && error.may_have_taken_effect() && error.is_permanent(), "{error}");
    assert!(error.to_string().contains("does not know whether it did this before"), "{error}");
    assert!(fixture.seeds.inbox.receive().is_none(), "the message was delivered once");
    fixture.requester.tell(b"third", PATIENCE).unwrap();
}

#[test]
fn silence_is_noticed_within_a_second_and_a_repaired_path_is_used() {
    let mut fixture = Fixture::new(Provider::Sim);
    fixture.read(MEMORY, 0, 8).unwrap();
    let (world, here, there) = (fixture.site.world.clone(), fixture.site.here, fixture.site.there);
    world.set_link_down(there, here, true);
    let began = world.now();
    let key = fixture.key.clone();
    fixture.requester.submit(1, &key, &[Span { extent: MEMORY, offset: 0, bytes: 64 }], PATIENCE);
    while world.now() < began + Duration::from_secs(5) {
        fixture.requester.poll();
        let until = fixture.requester.connection.next_timeout();
        fixture.requester.connection.wait(until.map(|at| at.min(began + Duration::from_secs(5)))).unwrap();
    }
    assert!(fixture.requester.completions.is_empty());
    world.set_link_down(there, here, false);
    let healed = world.now();
    assert_eq!(fixture.requester.finish()[0].1.as_ref().unwrap(), &expected(MEMORY, 0, 64));
    assert!(world.now() - healed < Duration::from_secs(3), "{:?}", world.now() - healed);
}

/// Opens a connection without the fabric's protocol.
fn dial(fixture: &Fixture) -> SimStream {
    let Address::Sim(place) = fixture.address else { panic!("it is in a world") };
    let world = &fixture.site.world;
    let mut attempt = world.dial(fixture.site.here, place);
    world.run_until(world.now() + Duration::from_secs(1), || attempt.is_ready());
    attempt.poll().unwrap().unwrap()
}

/// Receives all bytes that have arrived. Returns their number, and whether the stream has ended.
fn drain(stream: &mut SimStream) -> (usize, bool) {
    let (mut rest, mut taken) = (vec![0; 1 << 20], 0);
    loop {
        match stream.receive(&mut [IoSliceMut::new(&mut rest)]) {
            Ok(Some(0)) | Err(_) => return (taken, true),
            Ok(Some(count)) => taken += count,
            Ok(None) => return (taken, false),
        }
    }
}

#[test]
fn a_peer_that_never_reads_is_disconnected_in_half_a_minute() {
    let mut fixture = Fixture::new(Provider::Sim);
    let mut stream = dial(&fixture);
    let mut requests = encode_hello().to_vec();
    append_open(&mut requests, 0, &fixture.key.seed, &fixture.key.token);
    let span = [Span { extent: MEMORY, offset: 0, bytes: READ_BYTES_MAX as u32 }];
    (0..500).for_each(|id| append_read(&mut requests, id, 0, ReadMode::Exact, &span));
    assert_eq!(stream.send(&[IoSlice::new(&requests)]).unwrap(), Some(requests.len()));
    fixture.site.pass(Duration::from_secs(20));
    let served = fixture.seed.bytes.load(Ordering::Relaxed);
    assert!(served < 4 << 20, "{served} bytes were read for a requester that takes none");
    assert_eq!(fixture.read(MEMORY, 0, 64).unwrap(), expected(MEMORY, 0, 64));
    fixture.site.pass(Duration::from_secs(20));
    let (taken, ended) = drain(&mut stream);
    assert!(ended && taken < 1 << 20, "{taken} bytes were kept for it");
}

#[test]
fn a_peer_that_withholds_part_of_a_request_is_disconnected() {
    let mut fixture = Fixture::new(Provider::Sim);
    let mut stream = dial(&fixture);
    let mut request = encode_hello().to_vec();
    append_open(&mut request, 0, &fixture.key.seed, &fixture.key.token);
    let cut = request.len() - 1;
    stream.send(&[IoSlice::new(&request[..cut])]).unwrap();
    fixture.site.pass(Duration::from_secs(25));
    assert!(!drain(&mut stream).1, "a stopped requester has some time");
    fixture.site.pass(Duration::from_secs(10));
    assert!(drain(&mut stream).1);
    // A requester that is idle between requests is not disconnected.
    fixture.read(MEMORY, 0, 8).unwrap();
    let mut idle = dial(&fixture);
    idle.send(&[IoSlice::new(&request)]).unwrap();
    fixture.site.pass(Duration::from_secs(100));
    assert!(!drain(&mut idle).1);
}

#[test]
fn a_page_takes_one_round_trip_next_to_a_busy_connection() {
    let mut fixture = Fixture::new(Provider::Sim);
    let mut bulk = fixture.site.connect(&fixture.address);
    let key = fixture.key.clone();
    for tag in 0..100 {
        bulk.submit(tag, &key, &[Span { extent: MEMORY, offset: 0, bytes: READ_BYTES_MAX as u32 }], PATIENCE);
    }
    bulk.poll();
    fixture.site.pass(Duration::from_micros(300));
    let before = fixture.site.world.now();
    fixture.requester.read(&key, &[Span { extent: MEMORY, offset: 0, bytes: PAGE as u32 }], PATIENCE).unwrap();
    let took = fixture.site.world.now() - before;
    assert!(took < Duration::from_millis(3), "{took:?}");
}
