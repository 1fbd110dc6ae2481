//! The thread that accepts connections and completes their handshakes, so that a flood of handshakes does not delay
//! connections that are served. It passes authenticated connections to the workers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::command_queue::{AcceptedStream, CommandQueue, ServerCommand};
use super::event_source::Interest;
use super::listener::{ACCEPT_PAUSE, EpollListener};
use super::rate_limited_log::RateLimitedLog;
use super::server::ListenerConfig;
use super::server_connection::HELLO_TIMEOUT;
use crate::LinkError;

/// Maximum number of connections in the handshake: enough for all nodes of a large cluster at once. Each uses some
/// kilobytes. If there are more, the oldest is closed.
const PENDING_MAX: usize = 1024;

/// Interval between checks for handshakes that take too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

const EVENTS_MAX: usize = 64;
const COMMAND_TOKEN: u64 = 0;
const LISTENER_TOKEN: u64 = 1;
const FIRST_PENDING_TOKEN: u64 = 2;

/// A connection in the handshake.
struct PendingConnection {
    accepted: AcceptedStream,
    interest: Interest,
}

//   accept -> pending, PENDING_MAX at most, each for HELLO_TIMEOUT -- handshake done -> command queue of a worker
//               +- refused, too slow, or the oldest of too many: a log line that names the peer

/// State of the accepting thread.
pub(crate) struct HandshakeAcceptor {
    config: ListenerConfig,
    commands: Arc<CommandQueue>,
    epoll: OwnedFd,
    listener: EpollListener,
    /// Connections by token. Tokens ascend, so the oldest connection is first.
    pending: BTreeMap<u64, PendingConnection>,
    next_token: u64,
    workers: Vec<Arc<CommandQueue>>,
    admitted_count: usize,
    swept_at: Instant,
    log: RateLimitedLog,
}

impl HandshakeAcceptor {
    /// Creates the state, for a nonblocking, listening socket.
    pub(crate) fn new(
        config: ListenerConfig,
        socket: OwnedFd,
        commands: Arc<CommandQueue>,
        workers: Vec<Arc<CommandQueue>>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &commands.wakeup_fd, epoll::EventData::new_u64(COMMAND_TOKEN), epoll::EventFlags::IN)?;
        let listener = EpollListener::new(&epoll, LISTENER_TOKEN, socket)?;
        let now = Instant::now();
        Ok(Self {
            config,
            commands,
            epoll,
            listener,
            pending: BTreeMap::new(),
            next_token: FIRST_PENDING_TOKEN,
            workers,
            admitted_count: 0,
            swept_at: now,
            log: RateLimitedLog::new(now),
        })
    }

    /// Accepts connections until a command ends it.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.wait_timeout().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "epoll_wait failed in the fabric server's acceptor"),
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    // `Drain` and `Stop` both end this thread: only workers have requests to complete.
                    COMMAND_TOKEN if self.commands.drain().0 != ServerCommand::Serve => return,
                    COMMAND_TOKEN => {}
                    LISTENER_TOKEN => self.accept(now),
                    token => self.continue_handshake(token, now),
                }
            }
            self.sweep(now);
        }
    }

    /// Closes all pending connections.
    pub(crate) fn drop_connections(&mut self) {
        self.pending.clear();
    }

    /// Returns the timeout for epoll_wait(2); `None` while there are no connections.
    fn wait_timeout(&self) -> Option<Timespec> {
        let wait = match (self.listener.is_paused(), self.pending.is_empty()) {
            (true, _) => ACCEPT_PAUSE,
            (false, true) => return None,
            (false, false) => SWEEP_INTERVAL,
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn accept(&mut self, now: Instant) {
        for socket in self.listener.accept(&self.epoll, now) {
            self.add_pending(socket, now);
        }
    }

    /// Adds a new connection.
    fn add_pending(&mut self, socket: OwnedFd, now: Instant) {
        let (stream, from) = match self.config.wrap_socket(socket) {
            Ok(accepted) => accepted,
            Err(error) => return self.log.log_disconnect(now, "a new connection", &error),
        };
        let interest = Interest { receive: true, send: false };
        let Some(socket) = stream.socket() else { return };
        let number = self.next_token;
        if epoll::add(&self.epoll, socket, epoll::EventData::new_u64(number), interest.to_epoll_flags()).is_err() {
            return;
        }
        self.next_token += 1;
        self.pending.insert(
            number,
            PendingConnection { accepted: AcceptedStream { stream, peer_name: from, accepted_at: now }, interest },
        );
        if self.pending.len() > PENDING_MAX
            && let Some((_, silent)) = self.pending.pop_first()
        {
            self.log.log_disconnect(
                now,
                &silent.accepted.peer_name,
                &"it has not authenticated, and too many handshakes are pending",
            );
        }
        self.continue_handshake(number, now);
    }

    /// Continues the handshake of a connection.
    fn continue_handshake(&mut self, number: u64, now: Instant) {
        let Some(pending_connection) = self.pending.get_mut(&number) else { return };
        let handshake = pending_connection.accepted.stream.continue_handshake().map_err(LinkError::Handshake);
        match handshake.and_then(|over| {
            if over { Ok(true) } else { pending_connection.watch(&self.epoll, number).map(|()| false) }
        }) {
            Ok(true) => self.hand_to_worker(number),
            Ok(false) => {}
            Err(cause) => {
                if let Some(pending_connection) = self.pending.remove(&number) {
                    self.log.log_disconnect(now, &pending_connection.accepted.peer_name, &cause);
                }
            }
        }
    }

    /// Passes a connection whose handshake is complete to a worker.
    fn hand_to_worker(&mut self, number: u64) {
        let Some(pending_connection) = self.pending.remove(&number) else { return };
        if let Some(socket) = pending_connection.accepted.stream.socket() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        self.workers[self.admitted_count % self.workers.len()].push_stream(pending_connection.accepted);
        self.admitted_count += 1;
    }

    /// Closes connections whose handshake takes too long, and resumes accepting after a pause.
    fn sweep(&mut self, now: Instant) {
        self.listener.resume(&self.epoll, now);
        if now.duration_since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        while let Some(first) = self.pending.first_entry()
            && now.saturating_duration_since(first.get().accepted.accepted_at) >= HELLO_TIMEOUT
        {
            let silent = first.remove();
            self.log.log_disconnect(now, &silent.accepted.peer_name, &"it has not authenticated in time");
        }
    }
}

impl PendingConnection {
    /// Updates the events in epoll(7) to those that the handshake waits for.
    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> Result<(), LinkError> {
        let interest = Interest { receive: true, send: self.accepted.stream.has_unsent() };
        if interest != self.interest
            && let Some(socket) = self.accepted.stream.socket()
        {
            let modified = epoll::modify(epoll, socket, epoll::EventData::new_u64(number), interest.to_epoll_flags());
            modified.map_err(|errno| LinkError::Broken(errno.into()))?;
            self.interest = interest;
        }
        Ok(())
    }
}
