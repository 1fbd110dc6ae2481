//! A thread of a server: waits for the sockets of its connections, accepts new ones, sleeps and looks again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::Spin;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Connection, Interest};
use super::hall::Hall;
use super::handlers::Handlers;
use super::hub::{Hub, Letter};
use super::listener::{Acceptor, Listener};

/// Events of one wait.
const EVENTS_MAX: usize = 256;

const MAILBOX: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// One thread of a server.
pub(super) struct Worker {
    number: usize,
    hub: Arc<Hub>,
    hall: Hall,
    epoll: OwnedFd,
    listener: Option<Listener>,
    /// Only where it may look again before it sleeps.
    spin: Option<Spin>,
}

impl Worker {
    pub(super) fn new(number: usize, hub: Arc<Hub>, handlers: Handlers, spins: bool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, hub.wake_of(number), epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        let hall = Hall::new(number, Arc::clone(&hub), handlers, Box::new(Instant::now));
        Ok(Self { number, hub, hall, epoll, listener: None, spin: spins.then(|| Spin::new(Instant::now())) })
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
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&self.timeout(now))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "an RPC server cannot wait for its connections"),
            }
            now = Instant::now();
            let again = self.hall.begin_round();
            for event in &events {
                match event.data.u64() {
                    MAILBOX => self.hall.read_letters(now),
                    LISTENER => self.accept(now),
                    peer => self.hall.turn(peer - FIRST_PEER, now),
                }
            }
            again.iter().for_each(|token| self.hall.turn(*token, now));
            self.hall.sweep(now);
            self.resume_listening(now);
            self.watch(now);
            now = self.rest(now);
        }
    }

    /// Ends a round: remembers whether it was worth looking, and lets others have the processor where it was not.
    fn rest(&mut self, began: Instant) -> Instant {
        let Some(spin) = &mut self.spin else { return began };
        if !self.hall.take_worked() {
            std::thread::yield_now();
            return began;
        }
        let now = Instant::now();
        spin.came(began);
        spin.done(now);
        now
    }

    /// How long to wait at most.
    fn timeout(&self, now: Instant) -> Timespec {
        let looks_again = || self.spin.as_ref().is_some_and(|spin| spin.look_again(now));
        let wait = if self.hall.has_more() || looks_again() {
            Duration::ZERO
        } else {
            let paused_until = self.listener.as_ref().and_then(|listener| listener.paused_until);
            let until = [Some(self.hall.next_timeout()), paused_until].into_iter().flatten().min();
            until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        };
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        let hub = &self.hub;
        let adopt = |number: usize, stream, from| hub.post(number % hub.workers(), Letter::Adopt(stream, from));
        if let Err(errno) = listener.accept(adopt) {
            tracing::warn!(%errno, "an RPC server cannot accept connections for now");
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.pause(now);
        }
    }

    fn resume_listening(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        if listener.paused_until.is_some_and(|until| until <= now) {
            let data = epoll::EventData::new_u64(LISTENER);
            match epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN) {
                Ok(()) => listener.paused_until = None,
                Err(_) => listener.pause(now),
            }
        }
    }

    /// Has the kernel wait for what the connections wait for now.
    fn watch(&mut self, now: Instant) {
        for token in self.hall.take_changed() {
            let Some(connection) = self.hall.connection_mut(token) else { continue };
            if let Err(cause) = watch(&self.epoll, token, connection) {
                tracing::warn!(peer = %connection.name, %cause, worker = self.number, "an RPC connection cannot be waited for");
                self.hall.end(token, now);
            }
        }
    }
}

fn watch(epoll: &OwnedFd, token: u64, connection: &mut Connection) -> io::Result<()> {
    let interest = connection.interest();
    let Interest { receive, send } = interest;
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, receive);
    flags.set(epoll::EventFlags::OUT, send);
    let socket = connection.socket().ok_or(io::ErrorKind::Unsupported)?;
    let data = epoll::EventData::new_u64(token + FIRST_PEER);
    match connection.watched {
        None => epoll::add(epoll, socket, data, flags)?,
        Some(watched) if watched != interest => epoll::modify(epoll, socket, data, flags)?,
        Some(_) => {}
    }
    connection.watched = Some(interest);
    Ok(())
}
