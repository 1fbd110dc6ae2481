//! A requester and an arbitrary server: whatever the server sends, each request ends exactly once, by its deadline.
#![no_main]

use std::time::Duration;

use farfork_fabric::{MessageRequest, ReadMode, ReadRequest, Span, WriteRequest, sim};
use farfork_fuzz::script;
use farfork_fuzz::stage::{Stage, key};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::encode_hello;
use libfuzzer_sys::fuzz_target;

/// How long the requester waits for an answer.
const WAIT_TIMEOUT: Duration = Duration::from_millis(400);

fuzz_target!(|input: &[u8]| {
    let stage = Stage::default();
    let listener = stage.world.listen(stage.address).expect("the address is free");
    let mut requester = sim::connect(&stage.world, stage.friend, stage.address, None);
    let (deadline, key) = (requester.now() + WAIT_TIMEOUT, key());
    let span = |extent, bytes| Span { extent: ExtentId(extent), offset: 3, bytes };
    for (tag, mode, spans) in [
        (0, ReadMode::Exact, vec![span(0, 4)]),
        (1, ReadMode::Clip, vec![span(1, 40)]),
        (2, ReadMode::Exact, vec![span(0, 2), span(1, 3)]),
    ] {
        let request = ReadRequest { tag, key: key.clone(), mode, spans, deadline };
        requester.submit_read(request).expect("it is within the limits");
    }
    let write = WriteRequest { tag: 3, key: key.clone(), spans: vec![span(0, 2)], data: vec![1, 2], deadline };
    requester.submit_write(write).expect("it is within the limits");
    requester.submit_message(MessageRequest { tag: 4, bytes: vec![5], deadline }).expect("it is within the limits");
    let mut bytes = encode_hello().to_vec();
    bytes.extend(script::stream(input));

    let (mut completions, mut ended) = (Vec::new(), [0; 5]);
    let mut streams = Vec::new();
    while requester.unanswered_count() > 0 {
        requester.poll(requester.now(), &mut completions);
        completions.drain(..).for_each(|completion| ended[completion.tag as usize] += 1);
        // The first connection gets an answer, later ones do not.
        while let Some((mut stream, _)) = listener.accept() {
            if streams.is_empty() {
                let _ = farfork_fabric::transport::Stream::send(&mut stream, &[std::io::IoSlice::new(&bytes)]);
            }
            streams.push(stream);
        }
        assert!(requester.now() < deadline + Duration::from_secs(1), "something hangs");
        let until = requester.next_timeout().map_or(deadline, |at| stage.world.to_world_time(stage.friend, at));
        stage.world.step(until);
    }
    assert_eq!(ended, [1; 5]);
});
