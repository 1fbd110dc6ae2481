//! A thread of a server: waits for its connections, lets each take turns, looks after those that do not get on.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::Spin;
use farfork_fabric::transport::Stream;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Connection, Turn};
use super::handlers::{Handlers, Serving};
use super::hub::{Hub, Letter};
use super::listener::{ACCEPT_PAUSE, Acceptor, Listener};
use super::peer::Wish;
use super::registry::{Claim, Claimed, Location};
use super::reply::Returns;
use crate::inbound::Staging;

/// Events of one wait.
const EVENTS_MAX: usize = 256;

/// Most connections of a thread. With few file descriptors the process's limit is reached before.
const PEERS_MAX: usize = 1 << 14;

/// Between two looks for connections that do not get on, and sessions that nobody came back to.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Between two attempts to get a session from a connection of another thread.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

const MAILBOX: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// One thread of a server.
pub(super) struct Worker {
    number: usize,
    hub: Arc<Hub>,
    handlers: Handlers,
    epoll: OwnedFd,
    listener: Option<Listener>,
    connections: HashMap<u64, Connection>,
    next_token: u64,
    staging: Staging,
    /// Connections to turn to again before sleeping: their streams may have more than their sockets show.
    again: Vec<u64>,
    round: u64,
    /// Whether anything came in this round.
    worked: bool,
    /// Sessions that connections of other threads must give up first.
    claims: Vec<(u64, Claim)>,
    /// Only where it may look again before it sleeps.
    spin: Option<Spin>,
    swept_at: Instant,
}

impl Worker {
    pub(super) fn new(number: usize, hub: Arc<Hub>, handlers: Handlers, spins: bool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, hub.wake_of(number), epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Self {
            number,
            hub,
            handlers,
            epoll,
            listener: None,
            connections: HashMap::new(),
            next_token: FIRST_PEER,
            staging: Staging::default(),
            again: Vec::new(),
            round: 0,
            worked: false,
            claims: Vec::new(),
            spin: spins.then(|| Spin::new(now)),
            swept_at: now,
        })
    }

    /// Makes it the one that accepts.
    pub(super) fn listen(&mut self, socket: OwnedFd, acceptor: Arc<dyn Acceptor>) -> io::Result<()> {
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        self.listener = Some(Listener::new(socket, acceptor));
        Ok(())
    }

    /// Works until the server ends.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut now = Instant::now();
        while !self.hub.is_stopped() {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.timeout(now).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "an RPC server cannot wait for its connections"),
            }
            now = Instant::now();
            self.round += 1;
            let again = std::mem::take(&mut self.again);
            for event in &events {
                match event.data.u64() {
                    MAILBOX => self.read_letters(now),
                    LISTENER => self.accept(now),
                    token => self.turn(token, now),
                }
            }
            again.iter().for_each(|token| self.turn(*token, now));
            self.sweep(now);
            now = self.rest(now);
        }
    }

    /// Ends a round: remembers whether it was worth looking, and lets others have the processor where it was not.
    fn rest(&mut self, began: Instant) -> Instant {
        let Some(spin) = &mut self.spin else { return began };
        if !std::mem::take(&mut self.worked) {
            std::thread::yield_now();
            return began;
        }
        let now = Instant::now();
        spin.came(began);
        spin.done(now);
        now
    }

    /// How long to wait at most.
    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let looks_again = || self.spin.as_ref().is_some_and(|spin| spin.look_again(now));
        let wait = if !self.again.is_empty() || looks_again() {
            Duration::ZERO
        } else if !self.claims.is_empty() {
            CLAIM_PAUSE
        } else if self.listener.as_ref().is_some_and(|listener| listener.paused_until.is_some()) {
            ACCEPT_PAUSE
        } else {
            SWEEP_INTERVAL
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        let hub = &self.hub;
        let adopt = |number: usize, stream| hub.post(number % hub.workers(), Letter::Adopt(stream));
        if let Err(errno) = listener.accept(adopt) {
            tracing::warn!(%errno, "an RPC server cannot accept connections for now");
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.paused_until = Some(now + ACCEPT_PAUSE);
        }
    }

    fn read_letters(&mut self, now: Instant) {
        for letter in self.hub.take_letters(self.number) {
            match letter {
                Letter::Adopt(stream) => self.adopt(stream, now),
                Letter::Close(token) => self.end(token, now),
                Letter::Answer { peer, ticket, status, payload } => {
                    let here = self.connections.get_mut(&peer);
                    let completed = match here {
                        Some(connection) => connection.peer.complete(ticket, status, payload),
                        None => Err(payload),
                    };
                    match completed {
                        Ok(()) => self.flush(peer, now),
                        // The session has moved on meanwhile.
                        Err(payload) => self.hub.take(ticket, status, payload),
                    }
                }
            }
        }
    }

    /// Takes a new connection.
    fn adopt(&mut self, stream: Box<dyn Stream>, now: Instant) {
        if self.connections.len() >= PEERS_MAX {
            return tracing::warn!("an RPC server has {PEERS_MAX} connections on a thread and closes a new one");
        }
        let token = self.next_token;
        self.next_token += 1;
        if let Ok(connection) = Connection::new(stream, &self.epoll, token, now) {
            self.connections.insert(token, connection);
            self.turn(token, now);
        }
    }

    fn turn(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if std::mem::replace(&mut connection.turned_in, self.round) == self.round {
            return;
        }
        let mut serving = Serving { handlers: &mut self.handlers, returns: &self.hub };
        match connection.turn(now, &mut self.staging, &mut serving) {
            Ok(turn) => {
                if turn != Turn::Idle {
                    self.again.push(token);
                    self.worked = true;
                }
                self.grant_wishes(token, now);
            }
            Err(cause) => {
                cause.log(&connection.name);
                return self.end(token, now);
            }
        }
        self.flush(token, now);
    }

    fn flush(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match connection.flush(now, &self.epoll, token) {
            // Requests that waited for room.
            Ok(()) if connection.peer.has_work() => self.again.push(token),
            Ok(()) => {}
            Err(cause) => {
                cause.log(&connection.name);
                self.end(token, now);
            }
        }
    }

    fn grant_wishes(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        for wish in connection.peer.take_wishes() {
            match wish {
                Wish::Claim(claim) => self.claim(token, &claim, now),
                Wish::Close(session) => self.hub.registry().remove(&session),
            }
        }
    }

    /// Gives a session to a connection, or makes the one end that has it.
    fn claim(&mut self, token: u64, claim: &Claim, now: Instant) {
        let here = Location { worker: self.number, peer: token };
        let mut claimed = self.hub.registry().claim(claim, here);
        if let Claimed::Held(holder) = &claimed
            && holder.worker == self.number
        {
            self.end(holder.peer, now);
            if *holder == here {
                return tracing::warn!("a client opened a session twice on one connection");
            }
            claimed = self.hub.registry().claim(claim, here);
        }
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match claimed {
            Claimed::Granted(session) => connection.peer.grant(claim.slot, session),
            Claimed::Refused(outcome) => connection.peer.refuse(claim, outcome),
            Claimed::Held(holder) => {
                self.hub.post(holder.worker, Letter::Close(holder.peer));
                self.claims.push((token, *claim));
            }
        }
    }

    /// Ends a connection; its sessions wait for their client.
    fn end(&mut self, token: u64, now: Instant) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let mut registry = self.hub.registry();
        connection.into_sessions().for_each(|session| registry.park(session, now));
    }

    fn sweep(&mut self, now: Instant) {
        for (token, claim) in std::mem::take(&mut self.claims) {
            self.claim(token, &claim, now);
            self.flush(token, now);
        }
        if let Some(listener) = self.listener.as_mut().filter(|it| it.paused_until.is_some_and(|until| until <= now)) {
            let data = epoll::EventData::new_u64(LISTENER);
            if epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN).is_ok() {
                listener.paused_until = None;
            }
        }
        if now.duration_since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        let mut ended = Vec::new();
        for (token, connection) in &self.connections {
            if connection.peer.is_stalled(now) {
                tracing::info!(peer = %connection.name, "an RPC connection does not get on and is closed");
                ended.push(*token);
            } else if let Err(cause) = connection.check() {
                tracing::warn!(peer = %connection.name, %cause, "an RPC client may not be here any more");
                ended.push(*token);
            }
        }
        ended.into_iter().for_each(|token| self.end(token, now));
        if self.number == 0 {
            self.hub.registry().expire(now);
        }
    }
}
