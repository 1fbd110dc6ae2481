//! One client's connection at the server: frames in, handlers called, replies out. Pure: bytes and time are arguments.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use farfork_wire::rpc::{Answer, Ask, FrameError, OpenOutcome, RequestHead, SessionId, Versions};

use super::desk::Desk;
use super::registry::Claim;
use super::reply::{Reply, Ticket};
use super::session::Session;
use crate::inbound::{Inbound, Payload, Staging};
use crate::spool::SLICES_MAX;

/// Bytes that may wait for a client before its further requests do. One more reply may exceed it.
const UNSENT_BYTES_MAX: usize = 4 << 20;

/// Most bytes that are held for a connection: replies of all its sessions that were not acknowledged, what its sessions
/// remember, and what has come of a payload. Beyond, its requests are refused; four sessions may keep as much as one may.
pub(crate) const HELD_BYTES_MAX: usize = 128 << 20;

/// How long a connection may go without a greeting.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long replies may wait without any being taken, or a long payload without any of it coming.
const STALL_MAX: Duration = Duration::from_secs(30);

/// What executes requests.
pub(crate) trait Service {
    /// Executes a request. When the reply is to come later, `reply` says so, and the ticket names the request then.
    fn call(&mut self, handler: u32, ticket: Ticket, payload: Payload<'_>, reply: &mut Reply<'_>);
}

/// What a connection wants of the registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A session.
    Claim(Claim),
    /// The end of one.
    Close(SessionId),
}

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Peer {
    inbound: Inbound<Ask>,
    desk: Desk,
    greeted: bool,
    /// Whether there may be frames that were received but not understood.
    backlog: bool,
    /// Most bytes that may be held for it now.
    held_bytes_max: usize,
    received_at: Instant,
    /// When it last got on: when it came, when something was received or taken.
    progress_at: Instant,
    wishes: Vec<Wish>,
}

impl Peer {
    /// A connection that has just come; the greeting is the first to be sent.
    pub(crate) fn new(now: Instant) -> Self {
        let mut desk = Desk::default();
        desk.append(|out| out.extend_from_slice(&Versions::OURS.encode()));
        Self {
            inbound: Inbound::default(),
            desk,
            greeted: false,
            backlog: false,
            held_bytes_max: HELD_BYTES_MAX,
            received_at: now,
            progress_at: now,
            wishes: Vec::new(),
        }
    }

    /// Whether it has greeted.
    pub(crate) fn has_greeted(&self) -> bool {
        self.greeted
    }

    /// Bytes that are held for it.
    pub(crate) fn held_bytes(&self) -> usize {
        self.desk.held_bytes() + self.inbound.held_bytes()
    }

    /// Says how many bytes may be held for it from now on.
    pub(crate) fn set_held_bytes_max(&mut self, bytes: usize) {
        self.held_bytes_max = bytes;
    }

    /// Whether it may receive: not while too many replies wait, or requests that were received before, or while the rest
    /// of a payload has no room.
    pub(crate) fn may_receive(&self) -> bool {
        !self.backlog && !self.is_full() && !self.waits_for_room()
    }

    /// Whether a payload is coming that there is no room for now. What gives room is never behind it in the stream: other
    /// connections' acknowledgements, or the end of some that do not get on.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.inbound.is_amid_body() && self.held_bytes() >= self.held_bytes_max
    }

    /// Whether frames that were received before can be handled now.
    pub(crate) fn has_work(&self) -> bool {
        self.backlog && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.desk.unsent_bytes() >= UNSENT_BYTES_MAX
    }

    /// Prepares the staging area for what was kept; then come [`Peer::spaces`].
    pub(crate) fn load(&mut self, staging: &mut Staging) {
        self.inbound.load(staging);
    }

    /// Where to receive into.
    pub(crate) fn spaces<'a>(&'a mut self, staging: &'a mut Staging) -> [IoSliceMut<'a>; 2] {
        self.inbound.spaces(staging)
    }

    /// Takes note of what was received.
    pub(crate) fn received(&mut self, staging: &mut Staging, count: usize, now: Instant) {
        self.inbound.received(staging, count);
        self.received_at = now;
        self.progress_at = now;
        self.backlog = true;
    }

    /// Empties the staging area where nothing was received.
    pub(crate) fn keep(&mut self, staging: &mut Staging) {
        self.inbound.keep(staging);
    }

    /// Handles frames while there is room for replies; leaves the staging area empty.
    ///
    /// # Errors
    /// The client violates the protocol: the connection must end, once what waits was sent.
    pub(crate) fn handle(
        &mut self,
        staging: &mut Staging,
        clock: &dyn Fn() -> Instant,
        service: &mut impl Service,
    ) -> Result<(), FrameError> {
        let handled = self.handle_frames(staging, clock, service);
        self.inbound.keep(staging);
        handled
    }

    fn handle_frames(
        &mut self,
        staging: &mut Staging,
        clock: &dyn Fn() -> Instant,
        service: &mut impl Service,
    ) -> Result<(), FrameError> {
        if !self.greeted {
            let Some(theirs) = self.inbound.hello(staging)? else {
                self.backlog = false;
                return Ok(());
            };
            Versions::OURS.agree(theirs)?;
            self.greeted = true;
        }
        while !self.is_full() {
            let Some((ask, payload)) = self.inbound.next(staging)? else {
                self.backlog = false;
                break;
            };
            match ask {
                Ask::Request(head) => {
                    let is_overdue = || is_overdue(&head, self.received_at, clock);
                    self.desk.request(&head, payload, self.held_bytes_max, is_overdue, service)?;
                }
                Ask::Open { slot, session, epoch, resumed } => {
                    self.desk.expect(slot)?;
                    self.wishes.push(Wish::Claim(Claim { slot, session, epoch, resumed }));
                }
                Ask::Cancel { slot, id } => self.desk.cancel(slot, id)?,
                Ask::Acknowledge { slot, below } => self.desk.acknowledge(slot, below)?,
                Ask::Close { slot } => self.wishes.push(Wish::Close(self.desk.close(slot)?)),
                Ask::Ping => self.desk.append(|out| Answer::Pong.append(out)),
            }
        }
        Ok(())
    }

    /// What it wants of the registry, since the last time.
    pub(crate) fn take_wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// Gives it a session that it claimed.
    pub(crate) fn grant(&mut self, slot: u16, session: Box<Session>) {
        self.desk.grant(slot, session);
    }

    /// Tells it that it cannot have a session that it claimed.
    pub(crate) fn refuse(&mut self, claim: &Claim, outcome: OpenOutcome) {
        self.desk.refuse(claim.slot, claim.epoch, outcome);
    }

    /// Ends a request that was to be answered later; gives the answer back where the session is not here.
    pub(crate) fn complete(
        &mut self,
        ticket: Ticket,
        status: farfork_wire::rpc::Status,
        payload: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        self.desk.complete(ticket, status, payload)
    }

    /// Bytes that are still to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.desk.unsent_bytes()
    }

    /// The bytes to send next, as slices.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        self.desk.slices(slices)
    }

    /// Takes note that `count` bytes were sent.
    pub(crate) fn sent(&mut self, count: usize, now: Instant) {
        self.desk.sent(count);
        self.progress_at = now;
    }

    /// Whether it did not get on for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.progress_at);
        let owes = self.desk.unsent_bytes() > 0 || self.inbound.is_amid();
        (!self.greeted && since >= HELLO_WAIT_MAX) || (owes && since >= STALL_MAX)
    }

    /// Its sessions, for the registry, once the connection has ended.
    pub(crate) fn into_sessions(self) -> impl Iterator<Item = Box<Session>> {
        self.desk.into_sessions()
    }
}

fn is_overdue(head: &RequestHead, received_at: Instant, clock: &dyn Fn() -> Instant) -> bool {
    let remaining = Duration::from_micros(u64::from(head.remaining_us));
    head.remaining_us > 0 && clock().saturating_duration_since(received_at) >= remaining
}
