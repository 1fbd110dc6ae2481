//! A test's client as an actor of a simulated world. It sends random requests, cancels some, closes and opens sessions,
//! and records the end of each request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_fabric::sim::World;
use farfork_fabric::sim::world::{Actor, NodeId, SimAddress};
use farfork_rpc::sim::SimConnector;
use farfork_rpc::{
    CallError, Client, Completion, OutgoingRequest, RequestPayload, SessionHandle, SessionId, Status, SubmitError,
};

use crate::works::{AT_ONCE, LATER, LONG, Works, answer_to, body_of};

const SESSIONS: usize = 3;

/// Maximum number of unanswered requests of a session.
const WINDOW: u64 = 32;

/// Longest time between two random actions, in microseconds.
const ASK_INTERVAL_US_MAX: u64 = 40_000;

/// Longest payload that the head's checksum covers. Longer payloads need their own checksum, because the world flips
/// bits.
const COVERED_BYTES: usize = 256;

/// A client, and the requests that it has sent.
pub(crate) struct Caller {
    world: World,
    node: NodeId,
    client: Client,
    sessions: Vec<SessionHandle>,
    /// The handler of each request, by number.
    submitted: BTreeMap<u64, u32>,
    ended: BTreeMap<u64, Result<(), CallError>>,
    next_number: u64,
    /// Time of the next random action; `None` while the test chooses the requests.
    ask_at: Option<Instant>,
}

/// A shared reference to a caller. The test and the world, as an actor, have one each.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Caller>>);

impl Shared {
    /// Starts a caller on a node. It sends requests to the server at `server_address`.
    pub(crate) fn start(world: &World, number: u64, node: NodeId, server_address: SimAddress) -> Self {
        let now = world.local_time(node);
        let of_world = world.clone();
        let new_id = move || {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&of_world.random_below(u64::MAX).to_le_bytes());
            bytes[8..].copy_from_slice(&of_world.random_below(u64::MAX).to_le_bytes());
            SessionId::from_bytes(bytes)
        };
        let connector = Box::new(SimConnector::new(world, node, server_address, None));
        let mut client = Client::with_session_ids(connector, false, now, Box::new(new_id));
        let sessions = (0..SESSIONS).map(|_| client.open_session(WINDOW).unwrap()).collect();
        let caller = Caller {
            world: world.clone(),
            node,
            client,
            sessions,
            submitted: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_number: number << 32,
            ask_at: Some(now),
        };
        let shared = Self(Arc::new(Mutex::new(caller)));
        world.add_actor(node, Box::new(shared.clone()));
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Caller> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops random actions. From now on, the caller only waits for replies.
    pub(crate) fn stop_asking(&self) {
        self.lock().ask_at = None;
    }

    /// Sends requests without deadlines. Returns the number of the first one.
    pub(crate) fn ask_calmly(&self, count: u64) -> u64 {
        let mut caller = self.lock();
        let now = caller.world.local_time(caller.node);
        let first = caller.next_number;
        (0..count).for_each(|_| caller.ask(now, None));
        first
    }

    /// Number of requests that have not ended.
    pub(crate) fn unanswered(&self) -> usize {
        self.lock().client.unanswered_count()
    }

    /// Number of requests that have ended with a reply.
    pub(crate) fn answered(&self) -> usize {
        self.lock().ended.values().filter(|outcome| outcome.is_ok()).count()
    }

    /// Checks the outcomes of all requests. Requests with `first_calm_number` or a greater number must have replies.
    pub(crate) fn check(&self, works: &Works, first_calm_number: u64) {
        let caller = self.lock();
        assert_eq!(caller.submitted.len(), caller.ended.len(), "each request has ended");
        for (number, outcome) in &caller.ended {
            let executed = works.has_executed(*number);
            match outcome {
                Ok(()) => assert!(executed, "request {number} was answered, but not executed"),
                Err(CallError::Status(Status::Overloaded | Status::NoHandler)) => {
                    panic!("request {number} got a status that no handler or limit can cause")
                }
                Err(error) => {
                    assert!(*number < first_calm_number, "request {number} ended though nothing was wrong: {error}")
                }
            }
        }
    }
}

impl Actor for Shared {
    fn run_turn(&mut self, now: Instant) {
        let mut caller = self.lock();
        if caller.ask_at.is_some_and(|at| at <= now) {
            let pause = Duration::from_micros(caller.world.random_below(ASK_INTERVAL_US_MAX));
            caller.ask_at = Some(now + pause);
            caller.act(now);
        }
        caller.poll(now);
    }

    fn is_ready(&self) -> bool {
        self.lock().client.is_ready()
    }

    fn next_timeout(&self) -> Option<Instant> {
        let caller = self.lock();
        [caller.client.next_timeout(), caller.ask_at].into_iter().flatten().min()
    }
}

impl Caller {
    /// Does one random action.
    fn act(&mut self, now: Instant) {
        let which = self.world.random_below(SESSIONS as u64) as usize;
        match self.world.random_below(100) {
            0..10 => {
                let tag = self.next_number - self.world.random_below(40).min(self.submitted.len() as u64);
                self.client.cancel(self.sessions[which], tag);
            }
            10..13 => {
                self.client.close_session(self.sessions[which]);
                self.sessions[which] = self.client.open_session(WINDOW).unwrap();
            }
            _ => {
                for _ in 0..self.world.random_below(4) {
                    let timeout = Duration::from_millis(1 + self.world.random_below(20_000));
                    let deadline = self.world.random_bool(0.3).then(|| now + timeout);
                    self.ask(now, deadline);
                }
            }
        }
    }

    fn ask(&mut self, now: Instant, deadline: Option<Instant>) {
        let number = self.next_number;
        let handler = [AT_ONCE, AT_ONCE, LATER, LONG][self.world.random_below(4) as usize];
        let session = self.sessions[self.world.random_below(SESSIONS as u64) as usize];
        let body = body_of(number);
        let longest = body.len().max(answer_to(number, handler).len());
        let call = OutgoingRequest { handler, tag: number, deadline, checked: longest > COVERED_BYTES };
        let is_owned = self.world.random_bool(0.5);
        let body = if is_owned { RequestPayload::Owned(body) } else { RequestPayload::Borrowed(&body) };
        match self.client.submit(now, session, &call, body) {
            Ok(()) => {
                self.submitted.insert(number, handler);
                self.next_number += 1;
            }
            Err(SubmitError::Full) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn poll(&mut self, now: Instant) {
        let Self { client, submitted, ended, .. } = self;
        client.poll(now, |completion: Completion<'_>| {
            let number = completion.tag;
            let outcome = completion.result.map(|payload| {
                assert_eq!(&*payload, answer_to(number, submitted[&number]), "the bytes of answer {number}");
            });
            let before = ended.insert(number, outcome);
            assert!(before.is_none(), "request {number} ends twice");
        });
    }
}
