//! A client, a server and what lies between them, driven by random numbers from a seed.

use std::collections::HashMap;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use farfork_wire::rpc::Status;

use super::path::{Chance, Path, Pipe};
use crate::client::{Body, CallError, Completion, Core, Outgoing, SessionKey, SubmitError};
use crate::inbound::{Payload, Staging};
use crate::server::{Claimed, Location, Peer, Registry, Reply, Service, Ticket, Wish};
use crate::spool::SLICES_MAX;

const AT_ONCE: u32 = 1;
const LATER: u32 = 2;
const LONG: u32 = 3;
const SESSIONS: u64 = 3;

/// What the handlers do, and remember.
#[derive(Debug, Default)]
struct Works {
    executed: HashMap<u64, u32>,
    later: Vec<(Ticket, u64)>,
}

impl Service for Works {
    fn call(&mut self, handler: u32, ticket: Ticket, payload: Payload<'_>, reply: &mut Reply<'_>) {
        let number = u64::from_le_bytes(*payload.first_chunk().unwrap());
        assert_eq!(&*payload, body_of(number), "a request's bytes arrive");
        *self.executed.entry(number).or_default() += 1;
        match handler {
            AT_ONCE => reply.write(&answer_to(number, handler)),
            LATER => {
                reply.later(Default::default());
                self.later.push((ticket, number));
            }
            LONG => reply.give(answer_to(number, handler)),
            _ => reply.end(Status::NoHandler, ""),
        }
    }
}

/// The bytes of a request: mostly short.
fn body_of(number: u64) -> Vec<u8> {
    let bytes = if number.is_multiple_of(31) { 40_000 } else { number as usize % 600 };
    let filler = (0..bytes).map(|at| (at as u64 * 7 + number) as u8);
    number.to_le_bytes().into_iter().chain(filler).collect()
}

fn answer_to(number: u64, handler: u32) -> Vec<u8> {
    let bytes = if handler == LONG { 40_000 } else { number as usize % 900 };
    (0..bytes).map(|at| (at as u64 * 13 + number) as u8).collect()
}

/// How a request ended.
type Outcome = Result<(), CallError>;

pub(super) struct World {
    chance: Chance,
    pub(super) faults: bool,
    now: Instant,
    client: Core,
    sessions: Vec<SessionKey>,
    staging: Staging,
    /// The last one is the client's, while it has one.
    paths: Vec<Path>,
    connected: bool,
    paths_made: u64,
    registry: Registry,
    works: Works,
    asked: HashMap<u64, u32>,
    ended: HashMap<u64, Vec<Outcome>>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let now = Instant::now();
        let mut ids = Chance::new(!seed);
        let new_id = move || {
            let (high, low) = (ids.next(), ids.next());
            farfork_wire::rpc::SessionId::from_bytes((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
        };
        let mut client = Core::new(now, Box::new(new_id));
        let sessions = (0..SESSIONS).map(|_| client.open(32).unwrap()).collect();
        Self {
            chance: Chance::new(seed),
            faults: true,
            now,
            client,
            sessions,
            staging: Staging::default(),
            paths: Vec::new(),
            connected: false,
            paths_made: 0,
            registry: Registry::default(),
            works: Works::default(),
            asked: HashMap::new(),
            ended: HashMap::new(),
        }
    }

    /// Does one thing.
    pub(super) fn step(&mut self) {
        match self.chance.below(100) {
            0..30 => self.ask(),
            30..45 => self.send_from_client(),
            45..60 => self.serve(),
            60..75 => self.receive(2000),
            75..83 => self.finish_later(),
            83..90 => self.pass(200),
            90 if self.faults => self.pass(80_000),
            91 | 92 if self.faults => self.lose(),
            93 if self.faults => self.cancel(),
            94 if self.faults && self.chance.one_in(4) => self.corrupt(),
            95 if self.faults && self.chance.one_in(4) => self.restart(),
            96 => self.registry.expire(self.now),
            _ => self.connect(),
        }
        let advanced = self.client.advance(self.now);
        if advanced.is_err() {
            self.disconnect();
        }
        self.note_ended();
    }

    fn pass(&mut self, limit_ms: u64) {
        self.now += Duration::from_millis(self.chance.below(limit_ms));
    }

    fn ask(&mut self) {
        let number = self.asked.len() as u64;
        let handler = [AT_ONCE, AT_ONCE, LATER, LONG][self.chance.below(4) as usize];
        let session = self.sessions[self.chance.below(SESSIONS) as usize];
        let patience = Duration::from_millis(1 + self.chance.below(20_000));
        let deadline = (self.faults && self.chance.one_in(3)).then(|| self.now + patience);
        let call = Outgoing { handler, tag: number, deadline, checked: true };
        let (given, body) = (self.chance.one_in(2), body_of(number));
        let body = if given { Body::Given(body) } else { Body::Copied(&body) };
        match self.client.submit(self.now, session, &call, body) {
            Ok(()) => drop(self.asked.insert(number, handler)),
            Err(SubmitError::Full) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn cancel(&mut self) {
        let tag = self.chance.below(self.asked.len().max(1) as u64);
        let session = self.sessions[self.chance.below(SESSIONS) as usize];
        self.client.cancel(session, tag);
    }

    fn connect(&mut self) {
        if self.connected || !self.client.wants_connection() {
            return;
        }
        self.paths_made += 1;
        let (number, peer) = (self.paths_made, Peer::new(self.now));
        self.paths.push(Path { number, to_server: Pipe::default(), to_client: Pipe::default(), peer });
        self.connected = true;
        self.client.connected(self.now);
    }

    /// The client's end is gone; the server still gets what was on its way, later.
    fn disconnect(&mut self) {
        if std::mem::take(&mut self.connected) {
            self.client.disconnected();
            self.paths.last_mut().unwrap().to_server.ended = true;
        }
    }

    fn lose(&mut self) {
        if self.connected && self.chance.one_in(2) {
            // Some of what was sent never arrives.
            let pipe = &mut self.paths.last_mut().unwrap().to_server;
            let kept = self.chance.below(pipe.bytes.len() as u64 + 1) as usize;
            pipe.bytes.truncate(kept);
        }
        self.disconnect();
    }

    fn corrupt(&mut self) {
        let Some(path) = self.paths.last_mut() else { return };
        let pipe = if self.chance.one_in(2) { &mut path.to_server } else { &mut path.to_client };
        pipe.flip(&mut self.chance);
    }

    /// The server begins anew, and knows nothing of what was.
    fn restart(&mut self) {
        self.disconnect();
        self.paths.clear();
        self.registry = Registry::default();
        self.works.later.clear();
    }

    fn send_from_client(&mut self) {
        if !self.connected {
            return;
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self.client.slices(&mut slices);
        let limit = 1 + self.chance.below(200_000) as usize;
        let sent = self.paths.last_mut().unwrap().to_server.put(&slices[..count], limit);
        self.client.sent(sent);
    }

    /// One of the connections, an old one perhaps, gets on at the server.
    fn serve(&mut self) {
        if self.paths.is_empty() {
            return;
        }
        let index = self.chance.below(self.paths.len() as u64) as usize;
        let limit = 1 + self.chance.below(100_000) as usize;
        if !self.serve_path(index, limit) {
            let path = self.paths.remove(index);
            self.end_path(path, index == self.paths.len());
        }
    }

    fn end_path(&mut self, path: Path, was_last: bool) {
        path.peer.into_sessions().for_each(|session| self.registry.park(session, self.now));
        if was_last && std::mem::take(&mut self.connected) {
            self.client.disconnected();
        }
    }

    fn serve_path(&mut self, index: usize, limit: usize) -> bool {
        let (now, path) = (self.now, &mut self.paths[index]);
        path.peer.load(&mut self.staging);
        if path.peer.may_receive() {
            let Some(count) = path.to_server.take(limit, &mut path.peer.spaces(&mut self.staging)) else {
                path.peer.keep(&mut self.staging);
                return false;
            };
            path.peer.received(&mut self.staging, count, now);
        }
        if path.peer.handle(&mut self.staging, &|| now, &mut self.works).is_err() {
            return false;
        }
        let number = path.number;
        for wish in path.peer.take_wishes() {
            match wish {
                Wish::Claim(claim) => self.claim(number, &claim),
                Wish::Close(session) => self.registry.remove(&session),
            }
        }
        self.send_from_server(number);
        true
    }

    fn claim(&mut self, number: u64, claim: &crate::server::Claim) {
        let here = Location { worker: 0, peer: number };
        let mut claimed = self.registry.claim(claim, here);
        if let Claimed::Held(holder) = claimed {
            assert_ne!(holder, here);
            let index = self.paths.iter().position(|path| path.number == holder.peer).expect("a holder is connected");
            let path = self.paths.remove(index);
            self.end_path(path, false);
            claimed = self.registry.claim(claim, here);
        }
        let path = self.paths.iter_mut().find(|path| path.number == number).unwrap();
        match claimed {
            Claimed::Granted(session) => path.peer.grant(claim.slot, session),
            Claimed::Refused(outcome) => path.peer.refuse(claim, outcome),
            Claimed::Held(_) => panic!("its holder has ended"),
        }
    }

    fn send_from_server(&mut self, number: u64) {
        let Some(path) = self.paths.iter_mut().find(|path| path.number == number) else { return };
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = path.peer.slices(&mut slices);
        let sent = path.to_client.put(&slices[..count], usize::MAX);
        path.peer.sent(sent, self.now);
    }

    fn finish_later(&mut self) {
        if self.works.later.is_empty() {
            return;
        }
        let index = self.chance.below(self.works.later.len() as u64) as usize;
        let (ticket, number) = self.works.later.swap_remove(index);
        let mut answer = Some(answer_to(number, LATER));
        for path in &mut self.paths {
            let Some(payload) = answer.take() else { break };
            answer = path.peer.complete(ticket, Status::Answered, payload).err();
        }
        if let (Some(payload), Some(crate::server::Whereabouts::Parked(session))) =
            (answer, self.registry.find(&ticket.session))
        {
            session.complete(ticket, Status::Answered, payload, None);
        }
    }

    fn receive(&mut self, limit: u64) {
        if !self.connected {
            return;
        }
        let number = self.paths.last().unwrap().number;
        self.send_from_server(number);
        let limit = 1 + self.chance.below(limit * limit) as usize;
        let Self { client, staging, paths, ended, asked, .. } = self;
        client.load(staging);
        let pipe = &mut paths.last_mut().unwrap().to_client;
        let count = pipe.take(limit, &mut client.spaces(staging)).unwrap();
        let mut on_end = |completion: Completion<'_>| note(ended, asked, completion);
        if client.received(staging, count, self.now, &mut on_end).is_err() {
            self.disconnect();
        }
    }

    fn note_ended(&mut self) {
        let Self { client, ended, asked, .. } = self;
        client.drain_ended(&mut |completion| note(ended, asked, completion));
    }

    /// The path works from now on: all that waits ends.
    pub(super) fn heal(&mut self) {
        self.faults = false;
        for _ in 0..5000 {
            if self.client.unanswered() == 0 {
                break;
            }
            self.connect();
            self.send_from_client();
            (0..self.paths.len()).for_each(|_| self.serve());
            self.finish_later();
            self.receive(2000);
            self.now += Duration::from_millis(10);
            if self.client.advance(self.now).is_err() {
                self.disconnect();
            }
            self.note_ended();
        }
    }

    pub(super) fn check(&self) {
        assert_eq!(self.client.unanswered(), 0, "nothing hangs");
        for number in self.asked.keys() {
            let outcomes = self.ended.get(number).map_or(&[][..], Vec::as_slice);
            assert_eq!(outcomes.len(), 1, "request {number} ends once: {outcomes:?}");
            let executed = self.works.executed.get(number).copied().unwrap_or(0);
            assert!(executed <= 1, "request {number} was executed {executed} times");
            assert!(outcomes[0].is_err() || executed == 1, "request {number} was answered, but not executed");
        }
    }

    pub(super) fn check_all_answered(&self) {
        assert!(self.ended.values().flatten().all(Result::is_ok), "{:?}", self.ended);
        assert_eq!(self.ended.len(), self.asked.len());
    }
}

fn note(ended: &mut HashMap<u64, Vec<Outcome>>, asked: &HashMap<u64, u32>, completion: Completion<'_>) {
    let outcome = completion.result.map(|payload| {
        assert_eq!(&*payload, answer_to(completion.tag, asked[&completion.tag]), "an answer's bytes arrive");
    });
    ended.entry(completion.tag).or_default().push(outcome);
}
