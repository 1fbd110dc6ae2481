//! A thread of a server: waits for the sockets of its connections, accepts new connections, and spins before it sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::AdaptiveSpin;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Interest, ServerConnection};
use super::connection_table::ConnectionTable;
use super::handlers::HandlerTable;
use super::listener::{Acceptor, Listener};
use super::shared_state::{SharedState, WorkerMessage};

/// Maximum number of events that one epoll_wait(2) returns.
const EVENTS_MAX: usize = 256;

const MESSAGE_TOKEN: u64 = 0;
const LISTENER_TOKEN: u64 = 1;
const FIRST_CONNECTION_TOKEN: u64 = 2;

/// One thread of a server.
pub(super) struct Worker {
    number: usize,
    shared: Arc<SharedState>,
    connections: ConnectionTable,
    epoll: OwnedFd,
    listener: Option<Listener>,
    /// State of adaptive spinning; `None` if the thread may not spin before it sleeps.
    spin: Option<AdaptiveSpin>,
}

impl Worker {
    pub(super) fn new(
        number: usize,
        shared_state: Arc<SharedState>,
        handlers: HandlerTable,
        spins: bool,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            shared_state.wakeup_fd(number),
            epoll::EventData::new_u64(MESSAGE_TOKEN),
            epoll::EventFlags::IN,
        )?;
        let connection_table =
            ConnectionTable::new(number, Arc::clone(&shared_state), handlers, Box::new(Instant::now));
        Ok(Self {
            number,
            shared: shared_state,
            connections: connection_table,
            epoll,
            listener: None,
            spin: spins.then(|| AdaptiveSpin::new(Instant::now())),
        })
    }

    /// Makes this the thread that accepts connections.
    pub(super) fn listen(&mut self, socket: OwnedFd, acceptor: Arc<dyn Acceptor>) -> io::Result<()> {
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(LISTENER_TOKEN), epoll::EventFlags::IN)?;
        self.listener = Some(Listener::new(socket, acceptor));
        Ok(())
    }

    /// Runs until the server stops.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut now = Instant::now();
        while !self.shared.is_stopped() {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&self.wait_timeout(now))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "epoll_wait failed in an RPC server thread"),
            }
            now = Instant::now();
            let again = self.connections.begin_round();
            for event in &events {
                match event.data.u64() {
                    MESSAGE_TOKEN => self.connections.handle_messages(now),
                    LISTENER_TOKEN => self.accept(now),
                    peer => self.connections.run_turn(peer - FIRST_CONNECTION_TOKEN, now),
                }
            }
            again.iter().for_each(|token| self.connections.run_turn(*token, now));
            self.connections.sweep(now);
            self.resume_listening(now);
            self.update_registrations(now);
            now = self.end_round(now);
        }
    }

    /// Ends a round. After a round that received bytes, the thread spins for the next event; otherwise it yields the
    /// CPU.
    fn end_round(&mut self, began: Instant) -> Instant {
        let Some(spin) = &mut self.spin else { return began };
        if !self.connections.take_did_work() {
            std::thread::yield_now();
            return began;
        }
        let now = Instant::now();
        spin.record_event(began);
        spin.start_wait(now);
        now
    }

    /// Returns the timeout for epoll_wait(2).
    fn wait_timeout(&self, now: Instant) -> Timespec {
        let looks_again = || self.spin.as_ref().is_some_and(|spin| spin.should_spin(now));
        let wait = if self.connections.has_requeued() || looks_again() {
            Duration::ZERO
        } else {
            let paused_until = self.listener.as_ref().and_then(|listener| listener.paused_until);
            let until = [Some(self.connections.next_timeout()), paused_until].into_iter().flatten().min();
            until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        };
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        let shared_state = &self.shared;
        let on_accept = |number: usize, stream, from| {
            shared_state.send_message(number % shared_state.worker_count(), WorkerMessage::NewConnection(stream, from))
        };
        if let Err(errno) = listener.accept(on_accept) {
            tracing::warn!(%errno, "an RPC server cannot accept connections for now");
            let _ = epoll::delete(&self.epoll, &listener.socket);
            listener.pause(now);
        }
    }

    fn resume_listening(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        if listener.paused_until.is_some_and(|until| until <= now) {
            let data = epoll::EventData::new_u64(LISTENER_TOKEN);
            match epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN) {
                Ok(()) => listener.paused_until = None,
                Err(_) => listener.pause(now),
            }
        }
    }

    /// Registers the events that the connections wait for now.
    fn update_registrations(&mut self, now: Instant) {
        for token in self.connections.take_interest_changed() {
            let Some(connection) = self.connections.connection_mut(token) else { continue };
            if let Err(cause) = register_interest(&self.epoll, token, connection) {
                tracing::warn!(peer = %connection.peer_name, %cause, worker = self.number, "cannot register an RPC connection with epoll");
                self.connections.remove_connection(token, now);
            }
        }
    }
}

fn register_interest(epoll: &OwnedFd, token: u64, connection: &mut ServerConnection) -> io::Result<()> {
    let interest = connection.interest();
    let Interest { receive, send } = interest;
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, receive);
    flags.set(epoll::EventFlags::OUT, send);
    let socket = connection.socket().ok_or(io::ErrorKind::Unsupported)?;
    let data = epoll::EventData::new_u64(token + FIRST_CONNECTION_TOKEN);
    match connection.registered_interest {
        None => epoll::add(epoll, socket, data, flags)?,
        Some(watched) if watched != interest => epoll::modify(epoll, socket, data, flags)?,
        Some(_) => {}
    }
    connection.registered_interest = Some(interest);
    Ok(())
}
