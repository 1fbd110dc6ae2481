//! Tests of a server thread whose connections together hold more than the limit. Connections that hold much are
//! refused; the others are still served.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{NodeId, SimStream};
use farfork_fabric::transport::Stream as _;
use farfork_wire::rpc::{
    ClientFrame, FrameHead, HELLO_BYTES, RequestHead, ServerFrame, SessionId, Status, VersionRange,
};

use crate::HandlerTable;
use crate::server::{ConnectionTable, SharedState, WorkerMessage};

/// Limit of the bytes held for all connections of the test's server.
const HELD_BYTES_MAX: usize = 6 << 20;

/// Length of each reply, in bytes.
const ANSWER_BYTES: usize = 300_000;

/// A thread of a server, run step by step.
struct TestWorker {
    world: World,
    nodes: [NodeId; 2],
    shared_state: Arc<SharedState>,
    connections: ConnectionTable,
}

impl TestWorker {
    fn new() -> Self {
        let world = World::new(1);
        let nodes = [world.add_node("client"), world.add_node("server")];
        let shared_state = Arc::new(SharedState::with_limit(1, HELD_BYTES_MAX).unwrap());
        let mut handlers = HandlerTable::default();
        handlers.add_handler(1, |_, reply| _ = reply.append_zeroed(ANSWER_BYTES));
        handlers.add_handler(2, |payload, reply| reply.write(&payload.len().to_le_bytes()));
        let of_world = world.clone();
        let connection_table =
            ConnectionTable::new(0, Arc::clone(&shared_state), handlers, Box::new(move || of_world.now()));
        Self { world, nodes, shared_state, connections: connection_table }
    }

    /// Connects a client that sends its hello and opens a session with this number.
    fn connect(&mut self, session: u8) -> SimStream {
        let (mut client, server) = self.world.connect_pair(self.nodes[0], self.nodes[1]);
        self.shared_state.send_message(0, WorkerMessage::NewConnection(Box::new(server), format!("client {session}")));
        let mut bytes = VersionRange::SUPPORTED.encode().to_vec();
        ClientFrame::Open { slot: 0, session: SessionId::from_bytes([session; 16]), epoch: 0, resumed: false }
            .append(&mut bytes);
        send(&mut client, &bytes);
        assert_eq!(self.exchange_frames(&mut client).len(), 1);
        client
    }

    /// Runs both sides for a while. Returns the frames that the client received.
    fn exchange_frames(&mut self, client: &mut SimStream) -> Vec<ServerFrame> {
        let until = self.world.now() + Duration::from_millis(50);
        let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 18]);
        while self.world.now() < until {
            let now = self.now();
            let again = self.connections.begin_round();
            self.connections.handle_messages(now);
            again
                .into_iter()
                .chain(self.connections.ready_connections())
                .for_each(|token| self.connections.run_turn(token, now));
            self.connections.sweep(now);
            while let Ok(Some(count)) = client.receive(&mut [IoSliceMut::new(&mut part)]) {
                bytes.extend_from_slice(&part[..count]);
            }
            self.world.run_until(self.world.now() + Duration::from_micros(100), || false);
        }
        let greeted = bytes.starts_with(&VersionRange::SUPPORTED.encode());
        let mut rest = &bytes[if greeted { HELLO_BYTES } else { 0 }..];
        let mut answers = Vec::new();
        while let Some(frame) = ServerFrame::decode(rest).unwrap() {
            answers.push(frame.head);
            rest = &rest[frame.head_bytes + frame.payload_bytes..];
        }
        answers
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn submit_request(
        &mut self,
        client: &mut SimStream,
        handler: u32,
        id: u64,
        oldest_pending_distance: u32,
    ) -> Status {
        let head =
            RequestHead { slot: 0, handler, id, oldest_pending_distance, remaining_us: 0, has_payload_crc: false };
        let mut frame = vec![0; head.head_bytes()];
        head.seal(&mut frame, None);
        send(client, &frame);
        match self.exchange_frames(client)[..] {
            [ServerFrame::Reply(head)] if head.id == id => head.status,
            ref other => panic!("{other:?}"),
        }
    }
}

fn send(client: &mut SimStream, bytes: &[u8]) {
    assert_eq!(client.send(&[IoSlice::new(bytes)]).unwrap(), Some(bytes.len()));
}

#[test]
fn only_clients_that_use_much_memory_are_refused() {
    let mut thread = TestWorker::new();
    let (mut greedy, mut modest) = (thread.connect(1), thread.connect(2));
    let statuses: Vec<Status> = (0..40).map(|id| thread.submit_request(&mut greedy, 1, id, id as u32)).collect();
    let served = statuses.iter().take_while(|status| **status == Status::Answered).count();
    assert!((10..35).contains(&served), "{served} were served");
    assert!(statuses[served..].iter().all(|status| *status == Status::Overloaded));
    for id in 0..10 {
        assert_eq!(thread.submit_request(&mut modest, 1, id, 0), Status::Answered, "it acknowledges");
    }
    assert_eq!(thread.submit_request(&mut greedy, 1, 40, 0), Status::Answered, "it has acknowledged everything");
}

#[test]
fn a_large_payload_waits_for_memory_and_delays_no_other_client() {
    let mut thread = TestWorker::new();
    let (mut greedy, mut sender, mut modest) = (thread.connect(1), thread.connect(2), thread.connect(3));
    (0..40).for_each(|id| _ = thread.submit_request(&mut greedy, 1, id, id as u32));
    // Four mebibytes, of which the server accepts a part.
    let head =
        RequestHead { slot: 0, handler: 2, id: 0, oldest_pending_distance: 0, remaining_us: 0, has_payload_crc: true };
    let payload = vec![7; 4 << 20];
    let mut frame = vec![0; head.head_bytes()];
    head.seal(&mut frame, Some(&payload));
    frame.extend_from_slice(&payload);
    let mut rest = &frame[..];
    for _ in 0..20 {
        let sent = sender.send(&[IoSlice::new(rest)]).unwrap().unwrap_or(0);
        rest = &rest[sent..];
        assert!(thread.exchange_frames(&mut sender).is_empty());
    }
    let taken = frame.len() - rest.len();
    assert!((1 << 20..3 << 20).contains(&taken), "{taken} bytes were taken");
    assert_eq!(thread.submit_request(&mut modest, 1, 0, 0), Status::Answered);
    // The acknowledgement frees space: the server receives the rest after its next sweep.
    assert_eq!(thread.submit_request(&mut greedy, 1, 40, 0), Status::Answered);
    let mut answers = Vec::new();
    for _ in 0..60 {
        let sent = sender.send(&[IoSlice::new(rest)]).unwrap().unwrap_or(0);
        rest = &rest[sent..];
        answers.extend(thread.exchange_frames(&mut sender));
    }
    assert!(matches!(answers[..], [ServerFrame::Reply(head)] if head.status == Status::Answered), "{answers:?}");
}
