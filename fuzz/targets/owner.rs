//! An owner and a malicious peer: whatever the peer sends, the owner continues to serve other nodes.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use farfork_fabric::{Exporter, MessageQueue, RegionRegistry, read_blocking, sim};
use farfork_fuzz::script;
use farfork_fuzz::stage::{EXTENT_BYTES, Memory, Stage, key};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::encode_hello;
use farfork_wire::frame::request::append_open;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (stage, messages) = (Stage::default(), Arc::new(MessageQueue::new().expect("a descriptor")));
    let (registry, key) = (RegionRegistry::new(Some(Arc::clone(&messages))), key());
    let _registration = registry.register(&key, Arc::new(Memory::default())).expect("the name is free");
    let exporter: Arc<dyn Exporter> = registry.clone();
    let server = sim::SimServer::start(&stage.world, stage.address, &exporter).expect("the address is free");
    let mut attempt = stage.world.dial(stage.stranger, stage.address);
    let soon = stage.world.now() + Duration::from_secs(1);
    stage.world.run_until(soon, || attempt.is_ready());
    let mut stream = attempt.poll().expect("the owner listens").expect("it has ended");
    let mut bytes = Vec::new();
    // The first byte selects which parts of the protocol the peer follows.
    let (manners, input) = input.split_first().unwrap_or((&0, &[]));
    if manners & 1 == 0 {
        bytes.extend_from_slice(&encode_hello());
    }
    if manners & 2 == 0 {
        append_open(&mut bytes, 0, &key.seed, &key.token);
    }
    bytes.extend(script::stream(input));
    stage.talk(&mut stream, &bytes);

    let mut friend = sim::connect(&stage.world, stage.friend, stage.address, None);
    let (deadline, mut into) = (friend.now() + Duration::from_secs(10), vec![0; EXTENT_BYTES]);
    read_blocking(&mut *friend, &key, ExtentId(1), 0, &mut into, deadline).expect("other nodes are served");
    while messages.receive().is_some() {}
    drop(server);
});
