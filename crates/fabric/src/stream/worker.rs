//! One thread of a server: accepts (the first one does), and gives each connection its turn.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::peer::{Peer, Turn};
use super::server::StreamKind;
use super::socket;
use crate::buffer::Pool;
use crate::{Exporter, Spin};

/// Most connections of a thread: two for each pager, of some hundred nodes. More are closed at once.
const PEERS_MAX: usize = 2048;

/// Most connections accepted before those that exist get their turn.
const ACCEPTS_MAX: usize = 64;

/// The pause after accept(2) failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often stalled connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

const EVENTS_MAX: usize = 64;
const MAILBOX: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// How other threads reach a worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    wake: OwnedFd,
    accepted: Mutex<Vec<OwnedFd>>,
    stopped: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, accepted: Mutex::default(), stopped: AtomicBool::new(false) })
    }

    /// Ends the worker.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    fn hand_over(&self, socket: OwnedFd) {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        self.wake();
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<OwnedFd> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.accepted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A listening socket, and the workers that its connections go to in turn.
struct Listener {
    socket: OwnedFd,
    mailboxes: Vec<Arc<Mailbox>>,
    accepted: usize,
    paused_until: Option<Instant>,
}

/// One thread of a server.
pub(crate) struct Worker {
    kind: StreamKind,
    exporter: Arc<dyn Exporter>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    listener: Option<Listener>,
    peers: HashMap<u64, Peer>,
    next_peer: u64,
    /// Connections that have requests left from their last turn.
    ready: Vec<u64>,
    pool: Pool,
    spin: Spin,
    swept_at: Instant,
}

impl Worker {
    pub(crate) fn new(kind: StreamKind, exporter: Arc<dyn Exporter>, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        Ok(Self {
            kind,
            exporter,
            mailbox,
            epoll,
            listener: None,
            peers: HashMap::new(),
            next_peer: FIRST_PEER,
            ready: Vec::new(),
            pool: Pool::default(),
            spin: Spin::new(Instant::now()),
            swept_at: Instant::now(),
        })
    }

    /// Makes it the one that accepts.
    pub(crate) fn listen(&mut self, socket: OwnedFd, mailboxes: Vec<Arc<Mailbox>>) -> io::Result<()> {
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        self.listener = Some(Listener { socket, mailboxes, accepted: 0, paused_until: None });
        Ok(())
    }

    /// Works until it is stopped.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.mailbox.stopped.load(Ordering::Acquire) {
            if let Err(errno) = self.wait(&mut events) {
                return tracing::error!(%errno, "the fabric's server cannot wait for its connections");
            }
            let now = Instant::now();
            let left_over = std::mem::take(&mut self.ready);
            for event in &events {
                match event.data.u64() {
                    MAILBOX => self.mailbox.take().into_iter().for_each(|socket| self.adopt(socket, now)),
                    LISTENER => self.accept(now),
                    peer => self.turn(peer, now),
                }
            }
            for peer in left_over {
                if !self.ready.contains(&peer) {
                    self.turn(peer, now);
                }
            }
            self.sweep(now);
            if !events.is_empty() {
                self.spin.done(Instant::now());
            }
        }
    }

    /// Waits for something to do: looks for it for a while, where that pays, then sleeps.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), Errno> {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        events.clear();
        loop {
            let looks = self.ready.is_empty() && self.spin.look_again(Instant::now());
            let timeout = if looks { Some(AT_ONCE) } else { self.timeout() };
            match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
                Ok(0) if looks => std::thread::yield_now(),
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => break,
                Err(errno) => return Err(errno),
            }
        }
        self.spin.came(Instant::now());
        Ok(())
    }

    /// How long to wait at most: for ever while there is nobody to look after.
    fn timeout(&self) -> Option<Timespec> {
        let paused = self.listener.as_ref().is_some_and(|listener| listener.paused_until.is_some());
        let wait = match (self.ready.is_empty(), paused) {
            (false, _) => Duration::ZERO,
            (true, true) => ACCEPT_PAUSE,
            (true, false) if self.peers.is_empty() => return None,
            (true, false) => SWEEP_INTERVAL,
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = &mut self.listener else { return };
        for _ in 0..ACCEPTS_MAX {
            match accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    listener.mailboxes[listener.accepted % listener.mailboxes.len()].hand_over(socket);
                    listener.accepted += 1;
                }
                Err(Errno::AGAIN) => return,
                // The peer gave up, or a signal came: the next one may be good.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "the fabric's server cannot accept connections for now");
                    let _ = epoll::delete(&self.epoll, &listener.socket);
                    listener.paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes a new connection.
    fn adopt(&mut self, socket: OwnedFd, now: Instant) {
        if self.peers.len() >= PEERS_MAX {
            return tracing::warn!("the fabric's server has {PEERS_MAX} connections on a thread and closes a new one");
        }
        if self.kind == StreamKind::Tcp && socket::set_tcp_options(&socket).is_err() {
            return;
        }
        let token = self.next_peer;
        if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(token), Peer::FIRST_INTEREST).is_err() {
            return;
        }
        self.next_peer += 1;
        self.peers.insert(token, Peer::new(socket, self.kind == StreamKind::Unix, now, &mut self.pool));
        self.turn(token, now);
    }

    fn turn(&mut self, token: u64, now: Instant) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        match peer.turn(now, &*self.exporter, &mut self.pool, &self.epoll, token) {
            Ok(Turn::Waits) => {}
            Ok(Turn::HasMore) => self.ready.push(token),
            Err(cause) => {
                tracing::debug!(%cause, "the fabric's server ends a connection");
                self.peers.remove(&token);
            }
        }
    }

    /// Ends connections that do not get on, and accepts again after a pause.
    fn sweep(&mut self, now: Instant) {
        if let Some(listener) = self.listener.as_mut().filter(|it| it.paused_until.is_some_and(|until| until <= now)) {
            let data = epoll::EventData::new_u64(LISTENER);
            if epoll::add(&self.epoll, &listener.socket, data, epoll::EventFlags::IN).is_ok() {
                listener.paused_until = None;
            }
        }
        if now.duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.peers.retain(|_, peer| !peer.is_stalled(now));
        }
    }
}
