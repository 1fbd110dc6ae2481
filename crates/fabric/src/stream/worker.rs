//! One thread of a server: the rim where its connections' streams meet an epoll, and each gets its turn.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::complaints::Complaints;
use super::conduct::Conduct;
use super::mailbox::{Entered, Mailbox, Order};
use super::peer::{Peer, Turn};
use super::seated::Seated;
use crate::buffer::Pool;
use crate::protocol::Shared;
use crate::{LinkError, Spin};

/// Most connections of a thread: two for each pager, of some hundred nodes. More are closed at once.
const PEERS_MAX: usize = 2048;

/// Most connections of a thread that have not greeted. A requester greets within a round trip; where more connect and
/// say nothing, the one that has said nothing for longest goes.
const STRANGERS_MAX: usize = 512;

/// How often stalled connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How often a worker that finishes looks at its limit.
const FINISH_INTERVAL: Duration = Duration::from_millis(20);

const EVENTS_MAX: usize = 64;
const MAILBOX: u64 = 0;
const FIRST_PEER: u64 = 1;

/// One thread of a server.
pub(crate) struct Worker {
    /// Whether all that connects is on this host.
    same_host: bool,
    shared: Shared,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    peers: HashMap<u64, Seated>,
    /// Those that have not greeted; the one that came first is first.
    strangers: BTreeSet<u64>,
    next_peer: u64,
    /// Connections that have requests left from their last turn.
    ready: Vec<u64>,
    pool: Pool,
    spin: Spin,
    conduct: Conduct,
    swept_at: Instant,
    complaints: Complaints,
    order: Order,
}

impl Worker {
    pub(crate) fn new(same_host: bool, shared: Shared, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Self {
            same_host,
            shared,
            mailbox,
            epoll,
            peers: HashMap::new(),
            strangers: BTreeSet::new(),
            next_peer: FIRST_PEER,
            ready: Vec::new(),
            pool: Pool::default(),
            spin: Spin::new(now),
            conduct: Conduct::default(),
            swept_at: now,
            complaints: Complaints::new(now),
            order: Order::Work,
        })
    }

    /// Loses all connections.
    pub(crate) fn clear(&mut self) {
        self.peers.clear();
        self.strangers.clear();
        self.ready.clear();
        self.pool = Pool::default();
    }

    /// Works until it is ordered to end.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.conduct.begin();
        loop {
            if let Err(errno) = self.wait(&mut events) {
                return tracing::error!(%errno, "the fabric's server cannot wait for its connections");
            }
            let now = Instant::now();
            let left_over = std::mem::take(&mut self.ready);
            for event in &events {
                match event.data.u64() {
                    MAILBOX => self.take_mail(now),
                    peer => self.turn(peer, now),
                }
            }
            for peer in left_over {
                if !self.ready.contains(&peer) {
                    self.turn(peer, now);
                }
            }
            if self.has_ended(now) {
                return;
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
                Ok(0) if looks => self.spin.give_way(),
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
        let wait = match self.order {
            _ if !self.ready.is_empty() => Duration::ZERO,
            Order::Finish(_) => FINISH_INTERVAL,
            _ if self.peers.is_empty() => return None,
            _ => SWEEP_INTERVAL,
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn take_mail(&mut self, now: Instant) {
        let (order, admitted) = self.mailbox.take();
        self.order = order;
        match order {
            Order::Work => admitted.into_iter().for_each(|entered| self.adopt(entered, now)),
            Order::Finish(_) => self.finish(now),
            Order::Stop => {}
        }
    }

    /// Takes a new connection.
    fn adopt(&mut self, Entered { stream, from, came_at }: Entered, now: Instant) {
        if self.peers.len() >= PEERS_MAX {
            let cause = format!("{PEERS_MAX} connections are served by this thread already");
            return self.complaints.ended(now, &from, &cause);
        }
        let peer = Peer::new(stream, from, self.same_host, came_at, &mut self.pool);
        let (token, interest) = (self.next_peer, peer.interest());
        let Some(socket) = peer.stream().socket() else { return };
        if epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), interest.flags()).is_err() {
            return;
        }
        self.next_peer += 1;
        self.peers.insert(token, Seated { peer, interest });
        self.strangers.insert(token);
        if self.strangers.len() > STRANGERS_MAX
            && let Some(silent) = self.strangers.pop_first()
        {
            self.end(silent, now, "it has not said anything, and others wait");
        }
        self.turn(token, now);
    }

    fn turn(&mut self, token: u64, now: Instant) {
        let Some(seated) = self.peers.get_mut(&token) else { return };
        let turn = seated.peer.turn(now, &self.shared, &mut self.pool);
        let peer = &seated.peer;
        self.conduct.served(peer.served_bytes(), || sockopt::socket_incoming_cpu(peer.stream().socket()?).ok(), now);
        if seated.peer.has_greeted() {
            self.strangers.remove(&token);
        }
        if let Some(refused) = seated.peer.take_refused() {
            self.complaints.refused(now, seated.peer.from(), &refused);
        }
        let watched = turn.and_then(|turn| {
            seated.watch(&self.epoll, token)?;
            Ok(turn)
        });
        match watched {
            Ok(Turn::Waits) => {}
            Ok(Turn::HasMore) => self.ready.push(token),
            Err(cause @ (LinkError::Closed | LinkError::Broken(_) | LinkError::Superseded)) => {
                tracing::debug!(peer = seated.peer.from(), %cause, "a connection of the fabric's server ends");
                self.remove(token);
            }
            Err(cause) => self.end(token, now, cause),
        }
    }

    /// Ends a connection that did what it must not, or did nothing.
    fn end(&mut self, token: u64, now: Instant, cause: impl std::fmt::Display) {
        if let Some(seated) = self.remove(token) {
            self.complaints.ended(now, seated.peer.from(), &cause);
        }
    }

    fn remove(&mut self, token: u64) -> Option<Seated> {
        self.strangers.remove(&token);
        self.peers.remove(&token)
    }

    /// Ends connections that do not get on.
    fn sweep(&mut self, now: Instant) {
        if now.duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            let stalled = self.peers.iter().filter(|(_, seated)| seated.peer.is_stalled(now)).map(|(token, _)| *token);
            for token in stalled.collect::<Vec<_>>() {
                self.end(token, now, "it takes no replies, or has not said what it speaks");
            }
            let unwelcome = |(token, seated): (&u64, &Seated)| Some((*token, seated.peer.stream().check().err()?));
            for (token, cause) in self.peers.iter().filter_map(unwelcome).collect::<Vec<_>>() {
                self.end(token, now, cause);
            }
        }
    }

    /// From now on nothing more is received.
    fn finish(&mut self, now: Instant) {
        let tokens: Vec<u64> = self.peers.keys().copied().collect();
        for token in tokens {
            if let Some(seated) = self.peers.get_mut(&token) {
                seated.peer.finish();
            }
            self.turn(token, now);
        }
    }

    /// Whether there is nothing left to do.
    fn has_ended(&mut self, now: Instant) -> bool {
        match self.order {
            Order::Work => false,
            Order::Stop => true,
            Order::Finish(until) => {
                self.peers.retain(|_, seated| !seated.peer.is_done());
                self.peers.is_empty() || until <= now
            }
        }
    }
}
