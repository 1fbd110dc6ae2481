//! An RPC client and an arbitrary server, on any number of connections: whatever the server sends, each request ends exactly
//! once, by its deadline.
#![no_main]

use std::time::Duration;

use farfork_fabric::transport::Stream;
use farfork_fuzz::calls::{Speaker, streams};
use farfork_fuzz::stage::Stage;
use farfork_rpc::sim::SimConnector;
use farfork_rpc::{Client, OutgoingRequest, RequestPayload, SessionId};
use farfork_wire::rpc::VersionRange;
use libfuzzer_sys::fuzz_target;

/// Deadline of each request: time for a few connections that do not answer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

const REQUESTS: usize = 6;

fuzz_target!(|input: &[u8]| {
    let stage = Stage::default();
    let listener = stage.world.listen(stage.address).expect("the address is free");
    let start = stage.world.local_time(stage.friend);
    let connector = Box::new(SimConnector::new(&stage.world, stage.friend, stage.address, None));
    let mut count = 0;
    let new_id = move || {
        count += 1;
        SessionId::from_bytes([count; 16])
    };
    let mut client = Client::with_session_ids(connector, false, start, Box::new(new_id));
    let sessions = [(); 2].map(|()| client.open_session(8).expect("there is room"));
    for tag in 0..REQUESTS {
        let call =
            OutgoingRequest { handler: 1, tag: tag as u64, deadline: Some(start + WAIT_TIMEOUT), checked: tag % 2 == 0 };
        let body = RequestPayload::Owned(vec![tag as u8; tag * 20_000]);
        client.submit(start, sessions[tag % 2], &call, body).expect("there is room");
    }
    let (mut answers, mut open_streams) = (streams(input, Speaker::Server).into_iter(), Vec::new());
    let mut ended = [0; REQUESTS];
    while client.unanswered_count() > 0 {
        let now = stage.world.local_time(stage.friend);
        client.poll(now, |completion| ended[completion.tag as usize] += 1);
        while let Some((mut stream, _)) = listener.accept() {
            let mut bytes = VersionRange::SUPPORTED.encode().to_vec();
            bytes.extend(answers.next().unwrap_or_default());
            let _ = stream.send(&[std::io::IoSlice::new(&bytes)]);
            open_streams.push(stream);
        }
        assert!(now < start + WAIT_TIMEOUT + Duration::from_secs(1), "something hangs");
        let until = client.next_timeout().map_or(start + WAIT_TIMEOUT, |at| stage.world.to_world_time(stage.friend, at));
        stage.world.step(until);
    }
    assert_eq!(ended, [1; REQUESTS]);
});
