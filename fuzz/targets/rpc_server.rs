//! An RPC server and a malicious peer, on any number of connections: whatever the peer sends, no request runs twice, and
//! other clients are served.
#![no_main]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfork_fuzz::calls::{Speaker, streams};
use farfork_fuzz::stage::Stage;
use farfork_rpc::sim::{SimConnector, SimServer};
use farfork_rpc::{Client, DeferredReply, HandlerTable, OutgoingRequest, RequestPayload, SessionId};
use farfork_wire::rpc::VersionRange;
use libfuzzer_sys::fuzz_target;

const ECHO: u32 = 1;
const LONG: u32 = 2;
const LATER: u32 = 3;

/// Maximum number of connections of the malicious peer in a run.
const CONNECTIONS_MAX: usize = 8;

fuzz_target!(|input: &[u8]| {
    let (stage, later) = (Stage::default(), Arc::<Mutex<Vec<DeferredReply>>>::default());
    let handlers = || {
        let (mut handlers, later) = (HandlerTable::default(), Arc::clone(&later));
        handlers.add_handler(ECHO, |payload, reply| reply.write(payload));
        handlers.add_handler(LONG, |payload, reply| reply.set_payload(vec![5; payload.len() * 100]));
        handlers.add_deferred_handler(LATER, move |_, deferred| later.lock().expect("no panic").push(deferred));
        handlers
    };
    let server = SimServer::start(&stage.world, stage.address, 2, None, handlers).expect("the address is free");
    // The first byte selects which parts of the protocol the peer follows.
    let (manners, input) = input.split_first().unwrap_or((&0, &[]));
    for rest in streams(input, Speaker::Client).into_iter().take(CONNECTIONS_MAX) {
        let mut attempt = stage.world.dial(stage.stranger, stage.address);
        stage.world.run_until(stage.world.now() + Duration::from_secs(1), || attempt.is_ready());
        let mut stream = attempt.poll().expect("the server listens").expect("it has ended");
        let mut bytes = if manners & 1 == 0 { VersionRange::SUPPORTED.encode().to_vec() } else { Vec::new() };
        bytes.extend(rest);
        stage.talk(&mut stream, &bytes);
        if manners & 2 == 0 {
            for deferred in later.lock().expect("no panic").drain(..) {
                deferred.answer(vec![7; 20]);
            }
        }
    }
    assert_is_served(&stage);
    drop(server);
});

fn assert_is_served(stage: &Stage) {
    let now = stage.world.local_time(stage.friend);
    let connector = Box::new(SimConnector::new(&stage.world, stage.friend, stage.address, None));
    let mut friend = Client::with_session_ids(connector, false, now, Box::new(|| SessionId::from_bytes([77; 16])));
    let session = friend.open_session(4).expect("it is the first");
    for tag in 0..3 {
        let request = OutgoingRequest { handler: ECHO, tag, ..OutgoingRequest::default() };
        friend.submit(now, session, &request, RequestPayload::Borrowed(b"friend")).expect("there is room");
    }
    let (mut answered, until) = (BTreeSet::new(), stage.world.now() + Duration::from_secs(20));
    while friend.unanswered_count() > 0 {
        friend.poll(stage.world.local_time(stage.friend), |completion| {
            assert_eq!(&*completion.result.expect("other clients are served"), b"friend");
            assert!(answered.insert(completion.tag), "it is answered once");
        });
        assert!(stage.world.now() < until, "other clients are served");
        stage.world.step(until);
    }
}
