//! The setup of a link's stream: connects, authenticates both sides, and periodically rechecks that the owner is still
//! trusted. A diagram in `link.rs` shows the states.

use std::time::{Duration, Instant};

use super::event_source::Interest;
use super::framed_stream::FramedStream;
use super::link::Link;
use crate::LinkError;
use crate::transport::{ConnectAttempt, Stream};

/// Interval between checks that the owner is still trusted. Credentials are reloaded at the same interval, so more frequent
/// checks would find nothing new.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a link.
#[derive(Debug)]
pub(super) enum LinkState {
    Down { retry_at: Option<Instant> },
    Connecting { attempt: Box<dyn ConnectAttempt>, give_up_at: Instant },
    Handshaking { stream: Box<dyn Stream>, give_up_at: Instant },
    Up(Box<FramedStream>),
}

impl Link {
    /// Starts to connect, even if no request is queued.
    pub(crate) fn connect(&mut self, now: Instant) {
        if let Err(cause) = self.begin_connect(now) {
            self.handle_failure(cause, now, &mut Vec::new());
        }
    }

    pub(super) fn begin_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let attempt = self.config.dialer.dial().map_err(LinkError::Connect)?;
        self.config.event_source.set_socket(attempt.socket(), Interest::SEND_ONLY).map_err(LinkError::Connect)?;
        self.state = LinkState::Connecting { attempt, give_up_at: now + self.backoff.connect_timeout() };
        Ok(())
    }

    pub(super) fn finish_connect(&mut self, now: Instant) -> Result<(), LinkError> {
        let LinkState::Connecting { attempt, give_up_at } = &mut self.state else { return Ok(()) };
        let Some(stream) = attempt.poll().map_err(LinkError::Connect)? else {
            return if *give_up_at <= now { Err(LinkError::ConnectTimeout) } else { Ok(()) };
        };
        let stream = match &self.config.security {
            Some(security) => security.wrap_client(stream, &self.config.address).map_err(LinkError::Handshake)?,
            None => stream,
        };
        self.state = LinkState::Handshaking { stream, give_up_at: now + self.backoff.handshake_timeout() };
        Ok(())
    }

    pub(super) fn continue_handshake(&mut self, now: Instant) -> Result<(), LinkError> {
        let LinkState::Handshaking { stream, give_up_at } = &mut self.state else { return Ok(()) };
        if !stream.continue_handshake().map_err(LinkError::Handshake)? {
            let interest = Interest { receive: true, send: stream.has_unsent() };
            self.config.event_source.set_interest(stream.socket(), interest).map_err(LinkError::Broken)?;
            return if *give_up_at <= now { Err(LinkError::HandshakeTimeout) } else { Ok(()) };
        }
        let LinkState::Handshaking { stream, .. } =
            std::mem::replace(&mut self.state, LinkState::Down { retry_at: None })
        else {
            return Ok(());
        };
        self.state = LinkState::Up(Box::new(FramedStream::new(stream, &mut self.pool)));
        Ok(())
    }

    /// Checks that the owner is still trusted: a revoked owner gets no requests, and its replies are not accepted. A
    /// link that is not polled needs no check, because it neither sends nor receives.
    pub(super) fn recheck_trust(&mut self, now: Instant) -> Result<(), LinkError> {
        let LinkState::Up(session) = &self.state else { return Ok(()) };
        if self.checked_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL) {
            self.checked_at = Some(now);
            session.stream().check_peer_trusted().map_err(LinkError::TrustRevoked)?;
        }
        Ok(())
    }
}
