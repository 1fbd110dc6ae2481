//! A worker thread of a server: waits for the sockets of its connections with epoll(7), and gives each connection its
//! turn.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::command_queue::{AcceptedStream, CommandQueue, ServerCommand};
use super::cpu_policy::CpuPolicy;
use super::rate_limited_log::RateLimitedLog;
use super::server_connection::{ServerConnection, TurnOutcome};
use super::watched_connection::WatchedConnection;
use crate::buffer::BufferPool;
use crate::protocol::OwnerContext;
use crate::{AdaptiveSpin, LinkError};

/// Maximum number of connections of a thread: two for each pager of several hundred nodes. Further connections are
/// closed at once.
const CONNECTIONS_MAX: usize = 2048;

/// Maximum number of a thread's connections that have not sent a hello. A requester sends its hello within a round
/// trip. If there are more, the oldest of them is closed.
const UNGREETED_MAX: usize = 512;

/// Interval between checks for stalled connections and untrusted peers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which a draining worker checks its time limit.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

const EVENTS_MAX: usize = 64;
const COMMAND_TOKEN: u64 = 0;
const FIRST_CONNECTION_TOKEN: u64 = 1;

/// One thread of a server.
pub(crate) struct Worker {
    /// Whether all peers are on this host.
    same_host: bool,
    shared: OwnerContext,
    commands: Arc<CommandQueue>,
    epoll: OwnedFd,
    connections: HashMap<u64, WatchedConnection>,
    /// Connections that have not sent a hello, the oldest first.
    ungreeted: BTreeSet<u64>,
    next_token: u64,
    /// Connections whose last turn left requests or bytes.
    ready: Vec<u64>,
    pool: BufferPool,
    spin: AdaptiveSpin,
    cpu_policy: CpuPolicy,
    swept_at: Instant,
    log: RateLimitedLog,
    command: ServerCommand,
}

impl Worker {
    pub(crate) fn new(same_host: bool, shared: OwnerContext, commands: Arc<CommandQueue>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &commands.wakeup_fd, epoll::EventData::new_u64(COMMAND_TOKEN), epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Self {
            same_host,
            shared,
            commands,
            epoll,
            connections: HashMap::new(),
            ungreeted: BTreeSet::new(),
            next_token: FIRST_CONNECTION_TOKEN,
            ready: Vec::new(),
            pool: BufferPool::default(),
            spin: AdaptiveSpin::new(now),
            cpu_policy: CpuPolicy::default(),
            swept_at: now,
            log: RateLimitedLog::new(now),
            command: ServerCommand::Serve,
        })
    }

    /// Drops all connections.
    pub(crate) fn drop_connections(&mut self) {
        self.connections.clear();
        self.ungreeted.clear();
        self.ready.clear();
        self.pool = BufferPool::default();
    }

    /// Runs until a command ends it.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.cpu_policy.apply_initial();
        loop {
            if let Err(errno) = self.wait(&mut events) {
                return tracing::error!(%errno, "epoll_wait failed in a fabric server thread");
            }
            let now = Instant::now();
            let left_over = std::mem::take(&mut self.ready);
            for event in &events {
                match event.data.u64() {
                    COMMAND_TOKEN => self.handle_commands(now),
                    peer => self.run_turn(peer, now),
                }
            }
            for peer in left_over {
                if !self.ready.contains(&peer) {
                    self.run_turn(peer, now);
                }
            }
            if self.is_finished(now) {
                return;
            }
            self.sweep(now);
            if !events.is_empty() {
                self.spin.start_wait(Instant::now());
            }
        }
    }

    /// Waits for events: spins for a while if spinning had success recently, then sleeps.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), Errno> {
        const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        events.clear();
        loop {
            let looks = self.ready.is_empty() && self.spin.should_spin(Instant::now());
            let timeout = if looks { Some(NO_WAIT) } else { self.wait_timeout() };
            match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
                Ok(0) if looks => self.spin.yield_cpu(),
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => break,
                Err(errno) => return Err(errno),
            }
        }
        self.spin.record_event(Instant::now());
        Ok(())
    }

    /// Returns the timeout for epoll_wait(2); `None` while there are no connections.
    fn wait_timeout(&self) -> Option<Timespec> {
        let wait = match self.command {
            _ if !self.ready.is_empty() => Duration::ZERO,
            ServerCommand::Drain(_) => DRAIN_CHECK_INTERVAL,
            _ if self.connections.is_empty() => return None,
            _ => SWEEP_INTERVAL,
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn handle_commands(&mut self, now: Instant) {
        let (order, admitted) = self.commands.drain();
        self.command = order;
        match order {
            ServerCommand::Serve => admitted.into_iter().for_each(|accepted| self.add_connection(accepted, now)),
            ServerCommand::Drain(_) => self.start_draining(now),
            ServerCommand::Stop => {}
        }
    }

    /// Adds a new connection.
    fn add_connection(
        &mut self,
        AcceptedStream { stream, peer_name: from, accepted_at }: AcceptedStream,
        now: Instant,
    ) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let cause = format!("this thread already serves {CONNECTIONS_MAX} connections");
            return self.log.log_disconnect(now, &from, &cause);
        }
        let peer = ServerConnection::new(stream, from, self.same_host, accepted_at, &mut self.pool);
        let (token, interest) = (self.next_token, peer.interest());
        let Some(socket) = peer.stream().socket() else { return };
        if epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), interest.to_epoll_flags()).is_err() {
            return;
        }
        self.next_token += 1;
        self.connections.insert(token, WatchedConnection { connection: peer, interest });
        self.ungreeted.insert(token);
        if self.ungreeted.len() > UNGREETED_MAX
            && let Some(silent) = self.ungreeted.pop_first()
        {
            self.disconnect(silent, now, "it has sent no hello, and too many connections are silent");
        }
        self.run_turn(token, now);
    }

    fn run_turn(&mut self, token: u64, now: Instant) {
        let Some(watched) = self.connections.get_mut(&token) else { return };
        let turn_outcome = watched.connection.run_turn(now, &self.shared, &mut self.pool);
        let peer = &watched.connection;
        self.cpu_policy.record_turn(
            peer.served_bytes(),
            || sockopt::socket_incoming_cpu(peer.stream().socket()?).ok(),
            now,
        );
        if watched.connection.has_greeted() {
            self.ungreeted.remove(&token);
        }
        if let Some(refused) = watched.connection.take_last_refusal() {
            self.log.log_refusal(now, watched.connection.peer_name(), &refused);
        }
        let outcome = turn_outcome.and_then(|turn_outcome| {
            watched.update_interest(&self.epoll, token)?;
            Ok(turn_outcome)
        });
        match outcome {
            Ok(TurnOutcome::Idle) => {}
            Ok(TurnOutcome::HasMore) => self.ready.push(token),
            Err(cause @ (LinkError::Closed | LinkError::Broken(_) | LinkError::Superseded)) => {
                tracing::debug!(peer = watched.connection.peer_name(), %cause, "a connection of the fabric's server ends");
                self.remove(token);
            }
            Err(cause) => self.disconnect(token, now, cause),
        }
    }

    /// Closes a connection, and logs the cause.
    fn disconnect(&mut self, token: u64, now: Instant, cause: impl std::fmt::Display) {
        if let Some(watched) = self.remove(token) {
            self.log.log_disconnect(now, watched.connection.peer_name(), &cause);
        }
    }

    fn remove(&mut self, token: u64) -> Option<WatchedConnection> {
        self.ungreeted.remove(&token);
        self.connections.remove(&token)
    }

    /// Closes connections that make no progress or have an untrusted peer.
    fn sweep(&mut self, now: Instant) {
        if now.duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            let stalled = self
                .connections
                .iter()
                .filter(|(_, watched)| watched.connection.is_stalled(now))
                .map(|(token, _)| *token);
            for token in stalled.collect::<Vec<_>>() {
                self.disconnect(token, now, "it reads no replies, sends only part of a request, or has sent no hello");
            }
            let untrusted = |(token, watched): (&u64, &WatchedConnection)| {
                Some((*token, watched.connection.stream().check_peer_trusted().err()?))
            };
            for (token, cause) in self.connections.iter().filter_map(untrusted).collect::<Vec<_>>() {
                self.disconnect(token, now, cause);
            }
        }
    }

    /// Stops receiving on all connections.
    fn start_draining(&mut self, now: Instant) {
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            if let Some(watched) = self.connections.get_mut(&token) {
                watched.connection.stop_receiving();
            }
            self.run_turn(token, now);
        }
    }

    /// While draining, removes the connections that are drained. Returns whether the worker must end.
    fn is_finished(&mut self, now: Instant) -> bool {
        match self.command {
            ServerCommand::Serve => false,
            ServerCommand::Stop => true,
            ServerCommand::Drain(until) => {
                self.connections.retain(|_, watched| !watched.connection.is_drained());
                self.connections.is_empty() || until <= now
            }
        }
    }
}
