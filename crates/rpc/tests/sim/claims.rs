//! Tests of sessions that move between connections of different threads. The test sends frames itself, step by step,
//! because the timing matters.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{NodeId, SimAddress, SimStream};
use farfork_fabric::transport::Stream as _;
use farfork_rpc::sim::SimServer;
use farfork_rpc::{SessionId, Status};
use farfork_wire::rpc::{ClientFrame, FrameHead, HELLO_BYTES, OpenOutcome, RequestHead, ServerFrame, VersionRange};

use crate::works::{AT_ONCE, Works, answer_to, body_of};

const SESSION: [u8; 16] = [9; 16];

/// A world with a server of two threads, which get connections in turn.
struct ClaimScene {
    world: World,
    client: NodeId,
    server_address: SimAddress,
    works: Works,
    _server: SimServer,
}

impl ClaimScene {
    fn new() -> Self {
        let world = World::new(1);
        let (owner, client) = (world.add_node("server"), world.add_node("client"));
        let server_address = SimAddress { node: owner, port: 7002 };
        let works = Works::default();
        let handlers = works.clone();
        let server = SimServer::start(&world, server_address, 2, None, move || handlers.handlers()).unwrap();
        Self { world, client, server_address, works, _server: server }
    }

    fn pass(&self, time: Duration) {
        self.world.run_until(self.world.now() + time, || false);
    }

    /// Connects, sends a hello and opens the session.
    fn open(&self, epoch: u32) -> SimStream {
        let mut attempt = self.world.dial(self.client, self.server_address);
        self.world.run_until(self.world.now() + Duration::from_secs(1), || attempt.is_ready());
        let mut stream = attempt.poll().unwrap().unwrap();
        let mut bytes = VersionRange::SUPPORTED.encode().to_vec();
        ClientFrame::Open { slot: 0, session: SessionId::from_bytes(SESSION), epoch, resumed: epoch > 0 }
            .append(&mut bytes);
        send(&mut stream, &bytes);
        stream
    }

    /// Receives the frames that the server has sent on a connection, after its hello.
    fn hear(&self, stream: &mut SimStream) -> Vec<(ServerFrame, Vec<u8>)> {
        self.pass(Duration::from_millis(5));
        let mut bytes = vec![0; 1 << 20];
        let mut count = 0;
        while let Ok(Some(more)) = stream.receive(&mut [IoSliceMut::new(&mut bytes[count..])])
            && more > 0
        {
            count += more;
        }
        let greeted = bytes[..count].starts_with(&VersionRange::SUPPORTED.encode());
        let mut rest = &bytes[if greeted { HELLO_BYTES } else { 0 }..count];
        let mut answers = Vec::new();
        while let Some(frame) = ServerFrame::decode(rest).unwrap() {
            let (answer, remaining) = rest.split_at(frame.head_bytes + frame.payload_bytes);
            answers.push((frame.head, answer[frame.head_bytes..].to_vec()));
            rest = remaining;
        }
        answers
    }
}

fn send(stream: &mut SimStream, bytes: &[u8]) {
    assert_eq!(stream.send(&[IoSlice::new(bytes)]).unwrap(), Some(bytes.len()));
}

fn request(id: u64) -> Vec<u8> {
    let head = RequestHead {
        slot: 0,
        handler: AT_ONCE,
        id,
        oldest_pending_distance: id as u32,
        remaining_us: 0,
        has_payload_crc: false,
    };
    let mut frame = vec![0; head.head_bytes()];
    frame.extend_from_slice(&body_of(id));
    head.seal(&mut frame, None);
    frame
}

fn is_open(answers: &[(ServerFrame, Vec<u8>)], with_epoch: u32) -> bool {
    let wanted = ServerFrame::Opened { slot: 0, epoch: with_epoch, outcome: OpenOutcome::Opened };
    answers.first().is_some_and(|(answer, _)| *answer == wanted)
}

fn is_answer(answers: &[(ServerFrame, Vec<u8>)], to: u64) -> bool {
    let is_it = |(answer, payload): &(ServerFrame, Vec<u8>)| {
        matches!(answer, ServerFrame::Reply(head) if head.id == to && head.status == Status::Answered)
            && *payload == answer_to(to, AT_ONCE)
    };
    answers.iter().any(is_it)
}

#[test]
fn a_session_moves_to_another_thread_with_its_replies() {
    let scene = ClaimScene::new();
    let mut first = scene.open(0);
    assert!(is_open(&scene.hear(&mut first), 0));
    send(&mut first, &request(1));
    assert!(is_answer(&scene.hear(&mut first), 1));
    let mut second = scene.open(1);
    assert!(is_open(&scene.hear(&mut second), 1));
    send(&mut second, &request(1));
    assert!(is_answer(&scene.hear(&mut second), 1), "the cached reply is sent again");
    assert!(scene.works.has_executed(1));
}

#[test]
fn a_session_survives_a_claimant_that_disconnects() {
    let scene = ClaimScene::new();
    let mut first = scene.open(0);
    assert!(is_open(&scene.hear(&mut first), 0));
    send(&mut first, &request(1));
    assert!(is_answer(&scene.hear(&mut first), 1));
    // Close the second connection before the first connection's thread has released the session.
    drop(scene.open(1));
    scene.pass(Duration::from_millis(20));
    let mut third = scene.open(2);
    assert!(is_open(&scene.hear(&mut third), 2), "no other connection has the session");
    send(&mut third, &request(1));
    assert!(is_answer(&scene.hear(&mut third), 1), "the cached reply is sent again");
}
