//! An owner and a stranger: whatever the stranger sends, the owner serves its friends.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use farfork_fabric::{Exporter, Inbox, Registry, read_blocking, sim};
use farfork_fuzz::script;
use farfork_fuzz::stage::{EXTENT_BYTES, Memory, Stage, key};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::encode_hello;
use farfork_wire::frame::request::append_open;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (stage, inbox) = (Stage::default(), Arc::new(Inbox::new().expect("a descriptor")));
    let (registry, key) = (Registry::new(Some(Arc::clone(&inbox))), key());
    let _registration = registry.register(&key, Arc::new(Memory::default())).expect("the name is free");
    let exporter: Arc<dyn Exporter> = registry.clone();
    let server = sim::Server::start(&stage.world, stage.place, &exporter).expect("the place is free");
    let mut dialling = stage.world.dial(stage.stranger, stage.place);
    let soon = stage.world.now() + Duration::from_secs(1);
    stage.world.run_until(soon, || dialling.is_ready());
    let mut stream = dialling.finish().expect("somebody listens").expect("it has ended");
    let mut bytes = Vec::new();
    // The first byte says how far the stranger behaves.
    let (manners, input) = input.split_first().unwrap_or((&0, &[]));
    if manners & 1 == 0 {
        bytes.extend_from_slice(&encode_hello());
    }
    if manners & 2 == 0 {
        append_open(&mut bytes, 0, &key.seed, &key.token);
    }
    bytes.extend(script::stream(input));
    stage.talk(&mut stream, &bytes);

    let mut friend = sim::connect(&stage.world, stage.friend, stage.place, None);
    let (deadline, mut into) = (friend.clock() + Duration::from_secs(10), vec![0; EXTENT_BYTES]);
    read_blocking(&mut *friend, &key, ExtentId(1), 0, &mut into, deadline).expect("others are served");
    while inbox.receive().is_some() {}
    drop(server);
});
