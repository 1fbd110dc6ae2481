//! The requester's end: one stream at a time, made anew whenever it fails while there is something to ask.
//!
//! ```text
//!        ┌────────────────────────── failed: wait, longer each time ──────────────────────────┐
//!        ▼                                                                                    │
//!      Down ── something to ask, waited ──▶ Connecting ── connected ──▶ Securing ── open ──▶ Up ── failed, silent,
//!        ▲                                       │                          │                │     damaged
//!        └───────── refused, no answer ──────────┴──────────────────────────┘     greeting, requests ▶ ◀ replies
//! ```
//!
//! It waits for nothing itself: that is its rim's business, and its user's.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::change::ConnectionName;
use farfork_wire::frame::reply::{Grant, Refusal};
use farfork_wire::frame::{FrameError, Header};

use super::connecting::State;
use super::rim::Rim;
use super::trouble::Trouble;
use crate::buffer::{Buffer, Pool};
use crate::protocol::{Ask, Outcome, Patience, Requester};
use crate::transport::{Dialer, Security};
use crate::{Address, Completion, FabricError, LinkError, Reply, SeedKey};

/// Most bytes that one poll receives, so that a fast owner does not hold up the caller's other work: some 20 µs, with
/// decryption. A pager hears its children's faults in between.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

/// What became of asking for grants: `None` when there was no answer in time.
#[derive(Debug)]
pub(crate) struct GrantAnswer {
    pub(crate) key: Arc<SeedKey>,
    pub(crate) grants: Option<Vec<Grant>>,
    pub(crate) template: Option<OwnedFd>,
}

/// What a link is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Where the owner is.
    pub(crate) address: Address,
    /// What connects to it.
    pub(crate) dialer: Box<dyn Dialer>,
    /// What protects the connection, if anything does.
    pub(crate) security: Option<Arc<dyn Security>>,
    /// What it is waited for with.
    pub(crate) rim: Box<dyn Rim>,
    /// What the owner knows it by.
    pub(crate) name: ConnectionName,
}

/// A connection to one owner over streams.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) parts: Parts,
    pub(super) state: State,
    pub(super) requester: Requester,
    pub(super) pool: Pool,
    pub(super) patience: Patience,
    trouble: Trouble,
    grant_answers: Vec<GrantAnswer>,
    pub(super) closing: bool,
    /// When a poll left something in the stream that its socket does not tell of.
    unread_since: Option<Instant>,
    /// When the owner of this stream was last found to be trusted still.
    pub(super) checked_at: Option<Instant>,
}

impl Link {
    /// A connection that is not made yet.
    pub(crate) fn new(parts: Parts) -> Self {
        let requester = Requester::new(parts.name);
        Self {
            parts,
            state: State::Down { retry_at: None },
            requester,
            pool: Pool::default(),
            patience: Patience::default(),
            trouble: Trouble::default(),
            grant_answers: Vec::new(),
            closing: false,
            unread_since: None,
            checked_at: None,
        }
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

    /// The socket that requests go through now.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Up(session) => session.stream().socket(),
            _ => None,
        }
    }

    /// What became of asking for grants.
    pub(crate) fn take_grant_answers(&mut self) -> Vec<GrantAnswer> {
        std::mem::take(&mut self.grant_answers)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Down { retry_at } if self.requester.is_waiting() => *retry_at,
            State::Down { .. } => None,
            State::Connecting { give_up_at, .. } | State::Securing { give_up_at, .. } => Some(*give_up_at),
            State::Up(_) => self.silent_at(),
        };
        own.into_iter().chain(self.unread_since).chain(self.requester.next_deadline()).min()
    }

    /// Where there is no descriptor to wait for: whether there is something to poll for.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.state {
            State::Down { .. } => false,
            State::Connecting { attempt, .. } => attempt.is_ready(),
            State::Securing { stream, .. } => stream.is_ready(true, stream.has_unsent()),
            State::Up(session) => session.stream().is_ready(true, session.interest().send),
        }
    }

    /// Whether it was closed and nothing is left to do.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing && matches!(self.state, State::Down { .. }) && !self.requester.is_waiting()
    }

    /// Does all that can be done now.
    pub(crate) fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if let Err(cause) = self.advance(now, completions) {
            self.fail(cause, now, completions);
        }
        while let Some((ask, sent)) = self.requester.expire(now) {
            let error = self.trouble.no_answer(
                &self.parts.address,
                sent && ask.is_change(),
                self.requester.silent_since(),
                now,
            );
            self.end(ask, Err(error), completions);
        }
        let idle = match &self.state {
            State::Up(session) => !session.is_sending(),
            _ => true,
        };
        if self.closing && idle && !self.requester.is_waiting() {
            self.requester.disconnected();
            self.state = State::Down { retry_at: None };
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
        if matches!(self.state, State::Securing { .. }) {
            self.secure(now)?;
        }
        if matches!(self.state, State::Up(_)) {
            self.check(now)?;
            let was_quiet = self.is_quiet();
            let sent = self.transmit(now);
            // The answer to the first question cannot be there yet: to look for it would cost as much as to send it.
            if !was_quiet || self.requester.silent_since().is_none() || sent.is_err() {
                // What came before the stream failed counts: a refusal to talk, say.
                self.receive(now, completions)?;
            }
            sent?;
            if self.silent_at().is_some_and(|at| at <= now) {
                self.patience.was_silent();
                return Err(LinkError::Silent);
            }
        }
        Ok(())
    }

    /// Whether nothing is owed, and the stream keeps nothing that its socket does not tell of.
    fn is_quiet(&self) -> bool {
        let keeps = matches!(&self.state, State::Up(session) if session.stream().keeps_received());
        self.requester.silent_since().is_none() && self.unread_since.is_none() && !keeps
    }

    fn transmit(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Up(session) = &mut self.state else { return Ok(()) };
        session.transmit(&mut self.pool, |out| self.requester.encode_next(now, out))?;
        self.parts.rim.watch(session.stream().socket(), session.interest()).map_err(LinkError::Broken)
    }

    /// Receives what there is, within the limit.
    fn receive(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut received_bytes = 0;
        self.unread_since = None;
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
        if let State::Up(session) = &self.state {
            self.unread_since = session.stream().keeps_received().then_some(now);
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
            Some((ask, Outcome::Done(reply))) => self.end(ask, Ok(reply), completions),
            Some(_) => unreachable!("a requester pairs asks with the outcomes that answer them"),
            None => {}
        }
        Ok(())
    }

    /// Gives the stream up. Who is of another version will not be another one with the next stream.
    pub(super) fn fail(&mut self, cause: LinkError, now: Instant, completions: &mut Vec<Completion>) {
        tracing::debug!(address = %self.parts.address, %cause, "connection failed");
        let silent_since = self.requester.silent_since();
        self.requester.disconnected();
        self.unread_since = None;
        self.checked_at = None;
        self.state = State::Down { retry_at: Some(now + self.patience.failed()) };
        if let LinkError::Frame(version @ FrameError::Version { .. }) = &cause {
            let error = FabricError::Incompatible { address: self.parts.address.clone(), cause: version.clone() };
            for (ask, sent) in self.requester.take_all() {
                let perhaps = || self.trouble.no_answer(&self.parts.address, true, None, now);
                let error = if sent && ask.is_change() { perhaps() } else { error.clone() };
                self.end(ask, Err(error), completions);
            }
        }
        let waiting_since = self.requester.is_waiting().then(|| silent_since.unwrap_or(now));
        self.trouble.failed(cause, waiting_since);
    }

    fn end(&mut self, ask: Ask, result: Result<Reply, FabricError>, completions: &mut Vec<Completion>) {
        match (ask.tag(), ask) {
            (Some(tag), _) => completions.push(Completion { tag, result }),
            (None, Ask::Grants { key, .. }) => {
                self.grant_answers.push(GrantAnswer { key, grants: None, template: None });
            }
            (None, _) => unreachable!("only grants are asked for by nobody"),
        }
    }

    fn silent_at(&self) -> Option<Instant> {
        self.requester.silent_since().map(|since| since + self.patience.silence())
    }

    fn refused(&self, ask: &Ask, refusal: Refusal) -> FabricError {
        let address = self.parts.address.clone();
        match ask.key() {
            Some(key) => FabricError::Refused { address, seed: key.seed.clone(), refusal },
            None => FabricError::NotTaken { address, refusal },
        }
    }
}
