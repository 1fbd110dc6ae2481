//! The requester's end: one socket at a time, made anew whenever it fails while there is something to ask.
//!
//! ```text
//!        ┌──────────────────────── failed: wait, longer each time ───────────────────────┐
//!        ▼                                                                               │
//!      Down ── something to ask, waited ──▶ Connecting ── connected ──▶ Up ── failed, silent, damaged
//!                                               │                       greeting, requests ▶ ◀ replies
//!                                               └── refused, no answer ──▶ Down
//! ```
//!
//! Callers wait on one descriptor, an epoll that holds the socket of the moment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::reply::{Grant, Refusal};
use farfork_wire::frame::{FrameError, Header};
use rustix::event::epoll;

use super::session::Session;
use super::socket;
use super::trouble::Trouble;
use crate::buffer::{Buffer, Pool};
use crate::protocol::{Ask, Outcome, Patience, Requester};
use crate::{Address, Completion, FabricError, LinkError, SeedKey};

/// Most bytes that one poll receives, so that a fast owner does not hold up the caller's other work.
const RECEIVED_BYTES_MAX: usize = 2 << 20;

/// What became of asking for grants: `None` when there was no answer in time.
#[derive(Debug)]
pub(crate) struct GrantAnswer {
    pub(crate) key: Arc<SeedKey>,
    pub(crate) grants: Option<Vec<Grant>>,
    pub(crate) template: Option<OwnedFd>,
}

/// A connection to one owner over stream sockets.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    epoll: OwnedFd,
    state: State,
    requester: Requester,
    pool: Pool,
    patience: Patience,
    trouble: Trouble,
    grant_answers: Vec<GrantAnswer>,
}

#[derive(Debug)]
enum State {
    Down { retry_at: Option<Instant> },
    Connecting { socket: OwnedFd, give_up_at: Instant },
    Up(Box<Session>),
}

impl Link {
    /// A connection that is not made yet.
    pub(crate) fn new(address: Address) -> io::Result<Self> {
        Ok(Self {
            address,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            state: State::Down { retry_at: None },
            requester: Requester::default(),
            pool: Pool::default(),
            patience: Patience::default(),
            trouble: Trouble::default(),
            grant_answers: Vec::new(),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn unanswered_reads(&self) -> usize {
        self.requester.unanswered_reads()
    }

    pub(crate) fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    pub(crate) fn forget_all(&mut self) {
        self.requester.take_all().for_each(drop);
        self.grant_answers.clear();
    }

    /// Takes something to ask; the caller has checked the spans, and how much is unanswered.
    pub(crate) fn ask(&mut self, ask: Ask) {
        self.requester.ask(ask);
    }

    /// What became of asking for grants.
    pub(crate) fn take_grant_answers(&mut self) -> Vec<GrantAnswer> {
        std::mem::take(&mut self.grant_answers)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Down { retry_at } if self.requester.is_waiting() => *retry_at,
            State::Down { .. } => None,
            State::Connecting { give_up_at, .. } => Some(*give_up_at),
            State::Up(_) => self.silent_at(),
        };
        own.into_iter().chain(self.requester.next_deadline()).min()
    }

    /// Does all that can be done now.
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if let Err(cause) = self.advance(now, completions) {
            self.fail(cause, now, completions);
        }
        while let Some(ask) = self.requester.expire(now) {
            let error = self.trouble.unreachable(&self.address, self.requester.silent_since(), now);
            self.end(ask, Err(error), completions);
        }
    }

    /// Begins to connect, without waiting for something to ask.
    pub(crate) fn connect(&mut self, now: Instant) {
        if let Err(cause) = self.begin_connect(now) {
            self.fail(cause, now, &mut Vec::new());
        }
    }

    fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        let due = |at: &Option<Instant>| at.is_none_or(|at| at <= now);
        if matches!(&self.state, State::Down { retry_at } if due(retry_at)) && self.requester.is_waiting() {
            self.trouble.is_waited_for(now);
            self.begin_connect(now)?;
        }
        if matches!(self.state, State::Connecting { .. }) {
            self.finish_connect(now)?;
        }
        if matches!(self.state, State::Up(_)) {
            // What came before the socket failed counts: a refusal to talk, say.
            let sent = self.transmit(now);
            self.receive(now, completions)?;
            sent?;
            if self.silent_at().is_some_and(|at| at <= now) {
                self.patience.was_silent();
                return Err(LinkError::Silent);
            }
        }
        Ok(())
    }

    fn begin_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let socket = socket::begin_connect(&self.address).map_err(LinkError::Connect)?;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(0), Session::FIRST_INTEREST)
            .map_err(|errno| LinkError::Connect(errno.into()))?;
        self.state = State::Connecting { socket, give_up_at: now + self.patience.connect() };
        Ok(())
    }

    fn finish_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Connecting { socket, give_up_at } = &self.state else { return Ok(()) };
        if !socket::connected(socket).map_err(LinkError::Connect)? {
            return if *give_up_at <= now { Err(LinkError::ConnectTimeout) } else { Ok(()) };
        }
        let State::Connecting { socket, .. } = std::mem::replace(&mut self.state, State::Down { retry_at: None })
        else {
            return Ok(());
        };
        self.state = State::Up(Box::new(Session::new(socket, &mut self.pool)));
        Ok(())
    }

    fn transmit(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Up(session) = &mut self.state else { return Ok(()) };
        session.transmit(&self.epoll, &mut self.pool, |out| self.requester.encode_next(now, out))
    }

    /// Receives what there is, within the limit.
    fn receive(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut received_bytes = 0;
        while received_bytes < RECEIVED_BYTES_MAX {
            let State::Up(session) = &mut self.state else { return Ok(()) };
            let Some(received) = session.receive()? else { return Ok(()) };
            self.requester.heard(now);
            self.handle_frames(completions)?;
            if received.drained {
                return Ok(());
            }
            received_bytes += received.bytes;
        }
        Ok(())
    }

    fn handle_frames(&mut self, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        while let State::Up(session) = &mut self.state {
            let Some((header, mut body, descriptor)) = session.next_frame(&mut self.pool)? else { break };
            self.handle_frame(&header, &mut body, descriptor, completions)?;
            self.pool.put(body);
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        header: &Header,
        body: &mut Buffer,
        template: Option<OwnedFd>,
        completions: &mut Vec<Completion>,
    ) -> Result<(), LinkError> {
        let answer = self.requester.handle_frame(header, body)?;
        self.patience.answered();
        self.trouble.is_over();
        match answer {
            Some((Ask::Grants { key, .. }, Outcome::Granted(grants))) => {
                self.grant_answers.push(GrantAnswer { key, grants: Some(grants), template });
            }
            Some((ask, Outcome::Refused(refusal))) => {
                let error = self.refused(&ask, refusal);
                self.end(ask, Err(error), completions);
            }
            Some((Ask::Read(request), Outcome::Data(reply))) => {
                completions.push(Completion { tag: request.tag, result: Ok(reply) });
            }
            Some(_) => unreachable!("a requester pairs asks with the outcomes that answer them"),
            None => {}
        }
        Ok(())
    }

    /// Gives the socket up. Who is of another version will not be another one with the next socket.
    fn fail(&mut self, cause: LinkError, now: Instant, completions: &mut Vec<Completion>) {
        tracing::debug!(address = %self.address, %cause, "connection failed");
        let silent_since = self.requester.silent_since();
        self.requester.disconnected();
        self.state = State::Down { retry_at: Some(now + self.patience.failed()) };
        if let LinkError::Frame(version @ FrameError::Version { .. }) = &cause {
            let error = FabricError::Incompatible { address: self.address.clone(), cause: version.clone() };
            for ask in self.requester.take_all() {
                self.end(ask, Err(error.clone()), completions);
            }
        }
        let waiting_since = self.requester.is_waiting().then(|| silent_since.unwrap_or(now));
        self.trouble.failed(cause, waiting_since);
    }

    fn end(&mut self, ask: Ask, result: Result<crate::Reply, FabricError>, completions: &mut Vec<Completion>) {
        match ask {
            Ask::Read(request) => completions.push(Completion { tag: request.tag, result }),
            Ask::Grants { key, .. } => {
                self.grant_answers.push(GrantAnswer { key, grants: None, template: None });
            }
        }
    }

    fn silent_at(&self) -> Option<Instant> {
        self.requester.silent_since().map(|since| since + self.patience.silence())
    }

    fn refused(&self, ask: &Ask, refusal: Refusal) -> FabricError {
        FabricError::Refused { address: self.address.clone(), seed: ask.key().seed.clone(), refusal }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
