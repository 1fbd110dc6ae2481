//! How a link comes to a stream: it connects, and both sides prove who they are; then, now and then, whether that still
//! holds. [`super::link`] draws the states.

use std::time::{Duration, Instant};

use super::link::Link;
use super::rim::Interest;
use super::session::Session;
use crate::LinkError;
use crate::transport::{Attempt, Stream};

/// Between two looks whether the owner is still trusted, as often as its credentials are read anew: more would tell
/// nothing more.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How far a link is.
#[derive(Debug)]
pub(super) enum State {
    Down { retry_at: Option<Instant> },
    Connecting { attempt: Box<dyn Attempt>, give_up_at: Instant },
    Securing { stream: Box<dyn Stream>, give_up_at: Instant },
    Up(Box<Session>),
}

impl Link {
    /// Begins to connect, without waiting for something to ask.
    pub(crate) fn connect(&mut self, now: Instant) {
        if let Err(cause) = self.begin_connect(now) {
            self.fail(cause, now, &mut Vec::new());
        }
    }

    pub(super) fn begin_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let attempt = self.parts.dialer.dial().map_err(LinkError::Connect)?;
        self.parts.rim.attach(attempt.socket(), Interest::SEND).map_err(LinkError::Connect)?;
        self.state = State::Connecting { attempt, give_up_at: now + self.patience.connect() };
        Ok(())
    }

    pub(super) fn finish_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Connecting { attempt, give_up_at } = &mut self.state else { return Ok(()) };
        let Some(stream) = attempt.finish().map_err(LinkError::Connect)? else {
            return if *give_up_at <= now { Err(LinkError::ConnectTimeout) } else { Ok(()) };
        };
        let stream = match &self.parts.security {
            Some(security) => security.client(stream, &self.parts.address).map_err(LinkError::Handshake)?,
            None => stream,
        };
        self.state = State::Securing { stream, give_up_at: now + self.patience.handshake() };
        Ok(())
    }

    pub(super) fn secure(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Securing { stream, give_up_at } = &mut self.state else { return Ok(()) };
        if !stream.shake().map_err(LinkError::Handshake)? {
            let interest = Interest { receive: true, send: stream.has_unsent() };
            self.parts.rim.watch(stream.socket(), interest).map_err(LinkError::Broken)?;
            return if *give_up_at <= now { Err(LinkError::HandshakeTimeout) } else { Ok(()) };
        }
        let State::Securing { stream, .. } = std::mem::replace(&mut self.state, State::Down { retry_at: None }) else {
            return Ok(());
        };
        self.state = State::Up(Box::new(Session::new(stream, &mut self.pool)));
        Ok(())
    }

    /// Neither asks an owner that was revoked, nor believes what it says. A link that is not polled does neither.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), LinkError> {
        let State::Up(session) = &self.state else { return Ok(()) };
        if self.checked_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL) {
            self.checked_at = Some(now);
            session.stream().check().map_err(LinkError::Untrusted)?;
        }
        Ok(())
    }
}
