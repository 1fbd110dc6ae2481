//! Where connections wait that have not shown who they are: a thread of its own, which accepts and shakes hands, so that a
//! flood of handshakes takes no turn of those that are served. Who has shown it goes to one of the workers.
//!
//! ```text
//!   accept ─▶ guests, GUESTS_MAX at most, each for HELLO_WAIT_MAX ── handshake is over ─▶ mailbox of a worker
//!               └ refused, too slow, or the oldest of too many: a line in the log, which names the peer
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::complaints::Complaints;
use super::listener::{ACCEPT_PAUSE, Listener};
use super::mailbox::{Entered, Mailbox, Order};
use super::peer::HELLO_WAIT_MAX;
use super::rim::Interest;
use super::server::Door;
use crate::LinkError;

/// Most connections within the handshake: all nodes of a large cluster that come at once, some kilobytes each. Where more
/// come, the one that has taken longest goes.
const GUESTS_MAX: usize = 1024;

/// How often those are looked for that take too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

const EVENTS_MAX: usize = 64;
const MAILBOX: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_GUEST: u64 = 2;

/// A connection within the handshake.
struct Guest {
    entered: Entered,
    interest: Interest,
}

/// The thread's state.
pub(crate) struct Porch {
    door: Door,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    listener: Listener,
    /// By number, so that the one that came first is first.
    guests: BTreeMap<u64, Guest>,
    next_guest: u64,
    workers: Vec<Arc<Mailbox>>,
    admitted: usize,
    swept_at: Instant,
    complaints: Complaints,
}

impl Porch {
    /// Accepts at a nonblocking, listening socket.
    pub(crate) fn new(
        door: Door,
        socket: OwnedFd,
        mailbox: Arc<Mailbox>,
        workers: Vec<Arc<Mailbox>>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        let listener = Listener::new(&epoll, LISTENER, socket)?;
        let now = Instant::now();
        Ok(Self {
            door,
            mailbox,
            epoll,
            listener,
            guests: BTreeMap::new(),
            next_guest: FIRST_GUEST,
            workers,
            admitted: 0,
            swept_at: now,
            complaints: Complaints::new(now),
        })
    }

    /// Lets in until it is ordered to end.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.timeout().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return tracing::error!(%errno, "the fabric's server cannot wait for connections"),
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    // Only workers have something to finish.
                    MAILBOX if self.mailbox.take().0 != Order::Work => return,
                    MAILBOX => {}
                    LISTENER => self.accept(now),
                    guest => self.shake(guest, now),
                }
            }
            self.sweep(now);
        }
    }

    /// Shows everybody out.
    pub(crate) fn clear(&mut self) {
        self.guests.clear();
    }

    /// How long to wait at most: for ever while there is nobody to look after.
    fn timeout(&self) -> Option<Timespec> {
        let wait = match (self.listener.is_paused(), self.guests.is_empty()) {
            (true, _) => ACCEPT_PAUSE,
            (false, true) => return None,
            (false, false) => SWEEP_INTERVAL,
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    fn accept(&mut self, now: Instant) {
        for socket in self.listener.accept(&self.epoll, now) {
            self.receive(socket, now);
        }
    }

    /// Takes a new connection.
    fn receive(&mut self, socket: OwnedFd, now: Instant) {
        let (stream, from) = match self.door.enter(socket) {
            Ok(entered) => entered,
            Err(error) => return self.complaints.ended(now, "a new one", &error),
        };
        let interest = Interest { receive: true, send: false };
        let Some(socket) = stream.socket() else { return };
        let number = self.next_guest;
        if epoll::add(&self.epoll, socket, epoll::EventData::new_u64(number), interest.flags()).is_err() {
            return;
        }
        self.next_guest += 1;
        self.guests.insert(number, Guest { entered: Entered { stream, from, came_at: now }, interest });
        if self.guests.len() > GUESTS_MAX
            && let Some((_, silent)) = self.guests.pop_first()
        {
            self.complaints.ended(now, &silent.entered.from, &"it has not shown who it is, and others wait");
        }
        self.shake(number, now);
    }

    /// Takes a step of a guest's handshake.
    fn shake(&mut self, number: u64, now: Instant) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        let shaken = guest.entered.stream.shake().map_err(LinkError::Handshake);
        match shaken.and_then(|over| if over { Ok(true) } else { guest.watch(&self.epoll, number).map(|()| false) }) {
            Ok(true) => self.admit(number),
            Ok(false) => {}
            Err(cause) => {
                if let Some(guest) = self.guests.remove(&number) {
                    self.complaints.ended(now, &guest.entered.from, &cause);
                }
            }
        }
    }

    /// The handshake is over: the connection is a worker's.
    fn admit(&mut self, number: u64) {
        let Some(guest) = self.guests.remove(&number) else { return };
        if let Some(socket) = guest.entered.stream.socket() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        self.workers[self.admitted % self.workers.len()].hand_over(guest.entered);
        self.admitted += 1;
    }

    /// Ends handshakes that do not get on, and accepts again after a pause.
    fn sweep(&mut self, now: Instant) {
        self.listener.resume(&self.epoll, now);
        if now.duration_since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        while let Some(first) = self.guests.first_entry()
            && now.saturating_duration_since(first.get().entered.came_at) >= HELLO_WAIT_MAX
        {
            let silent = first.remove();
            self.complaints.ended(now, &silent.entered.from, &"it has not shown who it is in time");
        }
    }
}

impl Guest {
    /// Waits for what can help.
    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> Result<(), LinkError> {
        let interest = Interest { receive: true, send: self.entered.stream.has_unsent() };
        if interest != self.interest
            && let Some(socket) = self.entered.stream.socket()
        {
            let modified = epoll::modify(epoll, socket, epoll::EventData::new_u64(number), interest.flags());
            modified.map_err(|errno| LinkError::Broken(errno.into()))?;
            self.interest = interest;
        }
        Ok(())
    }
}
