//! A client of calls and whoever answers, on any number of connections: whatever comes, each request ends once, by its
//! deadline.
#![no_main]

use std::time::Duration;

use farfork_fabric::transport::Stream;
use farfork_fuzz::calls::{Speaker, streams};
use farfork_fuzz::stage::Stage;
use farfork_rpc::sim::Connector;
use farfork_rpc::{Body, Client, Outgoing, SessionId};
use farfork_wire::rpc::Versions;
use libfuzzer_sys::fuzz_target;

/// How long the client waits for an answer: a few silent connections long.
const PATIENCE: Duration = Duration::from_secs(20);

const REQUESTS: usize = 6;

fuzz_target!(|input: &[u8]| {
    let stage = Stage::default();
    let listener = stage.world.listen(stage.place).expect("the place is free");
    let start = stage.world.now_at(stage.friend);
    let connector = Box::new(Connector::new(&stage.world, stage.friend, stage.place, None));
    let mut count = 0;
    let new_id = move || {
        count += 1;
        SessionId::from_bytes([count; 16])
    };
    let mut client = Client::with_ids(connector, false, start, Box::new(new_id));
    let sessions = [(); 2].map(|()| client.open(8).expect("there is room"));
    for tag in 0..REQUESTS {
        let call = Outgoing { handler: 1, tag: tag as u64, deadline: Some(start + PATIENCE), checked: tag % 2 == 0 };
        let body = Body::Given(vec![tag as u8; tag * 20_000]);
        client.submit(start, sessions[tag % 2], &call, body).expect("there is room");
    }
    let (mut answers, mut standing) = (streams(input, Speaker::Server).into_iter(), Vec::new());
    let mut ended = [0; REQUESTS];
    while client.unanswered() > 0 {
        let now = stage.world.now_at(stage.friend);
        client.poll(now, |completion| ended[completion.tag as usize] += 1);
        while let Some((mut stream, _)) = listener.accept() {
            let mut bytes = Versions::OURS.encode().to_vec();
            bytes.extend(answers.next().unwrap_or_default());
            let _ = stream.send(&[std::io::IoSlice::new(&bytes)]);
            standing.push(stream);
        }
        assert!(now < start + PATIENCE + Duration::from_secs(1), "something hangs");
        let until = client.next_timeout().map_or(start + PATIENCE, |at| stage.world.right_time(stage.friend, at));
        stage.world.step(until);
    }
    assert_eq!(ended, [1; REQUESTS]);
});
