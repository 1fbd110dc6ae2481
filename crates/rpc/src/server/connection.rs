//! One client's connection and its stream: receives, passes frames to the protocol, and sends queued bytes.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use farfork_fabric::transport::Stream;
use farfork_wire::rpc::RpcFrameError;

use super::protocol::{RequestExecutor, ServerProtocol};
use super::session::ServerSession;
use crate::frame_decoder::StagingBuffer;
use crate::retransmit::SLICES_MAX;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum DisconnectCause {
    #[error("it broke: {0}")]
    Broken(#[from] io::Error),
    #[error("its client closed it")]
    Closed,
    #[error(transparent)]
    Frame(#[from] RpcFrameError),
}

impl DisconnectCause {
    /// Whether the client violated the protocol, or may not connect. Such an end is logged as a warning; the other
    /// causes are normal.
    pub(super) fn is_peer_fault(&self) -> bool {
        match self {
            Self::Frame(_) => true,
            Self::Broken(cause) => matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidData),
            Self::Closed => false,
        }
    }
}

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// Nothing was received.
    Idle,
    /// Bytes were received or handled; there may be more.
    Received,
}

/// The events that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interest {
    /// Bytes to receive.
    pub(super) receive: bool,
    /// Space to send.
    pub(super) send: bool,
}

/// One client's connection.
#[derive(Debug)]
pub(super) struct ServerConnection {
    stream: Box<dyn Stream>,
    pub(super) protocol: ServerProtocol,
    /// Whether the handshake of the stream is complete.
    is_handshake_done: bool,
    /// The client's name, for the log.
    pub(super) peer_name: String,
    /// The last round in which the connection had a turn.
    pub(super) last_round: u64,
    /// The interest that is registered with epoll(7) for its socket; `None` for a new connection.
    pub(super) registered_interest: Option<Interest>,
    /// Bytes of this connection that are counted in the shared state.
    pub(super) accounted_bytes: usize,
}

impl ServerConnection {
    pub(super) fn new(stream: Box<dyn Stream>, from: String, now: Instant) -> Self {
        Self {
            protocol: ServerProtocol::new(now),
            is_handshake_done: false,
            peer_name: from,
            last_round: 0,
            registered_interest: None,
            accounted_bytes: 0,
            stream,
        }
    }

    /// The socket to wait for, if there is one.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.socket()
    }

    /// Whether a turn would find something to do, for a stream without a socket.
    pub(super) fn is_ready(&self) -> bool {
        let Interest { receive, send } = self.interest();
        self.stream.is_ready(receive, send)
    }

    /// Receives once, unless received frames still wait, and handles the received frames.
    pub(super) fn run_turn(
        &mut self,
        now: Instant,
        clock: &dyn Fn() -> Instant,
        staging: &mut StagingBuffer,
        service: &mut impl RequestExecutor,
    ) -> Result<TurnOutcome, DisconnectCause> {
        if !self.is_handshake_done {
            self.is_handshake_done = self.stream.continue_handshake()?;
            if !self.is_handshake_done {
                return Ok(TurnOutcome::Idle);
            }
            if let Some(proved) = self.stream.peer_identity() {
                self.peer_name = format!("{proved} at {}", self.peer_name);
            }
        }
        let had_work = self.protocol.has_backlog();
        if !had_work && !self.protocol.can_receive() {
            return Ok(TurnOutcome::Idle);
        }
        self.protocol.restore_partial(staging);
        if !had_work {
            match self.stream.receive(&mut self.protocol.receive_buffers(staging)) {
                Ok(Some(count)) if count > 0 => self.protocol.mark_received(staging, count, now),
                other => {
                    self.protocol.save_partial(staging);
                    return if other?.is_some() { Err(DisconnectCause::Closed) } else { Ok(TurnOutcome::Idle) };
                }
            }
        }
        let handled = self.protocol.handle_received(staging, clock, service);
        if let Err(violation) = handled {
            // The client still gets the replies to earlier requests, and the server's hello.
            let _ = self.send_queued(now);
            return Err(violation.into());
        }
        Ok(TurnOutcome::Received)
    }

    /// Returns the events that the connection waits for: bytes to receive, unless too many replies are queued; space to
    /// send, while replies are queued.
    pub(super) fn interest(&self) -> Interest {
        let has_unsent = self.is_handshake_done && self.protocol.unsent_bytes() > 0;
        Interest { receive: self.protocol.can_receive(), send: has_unsent || self.stream.has_unsent() }
    }

    /// Checks whether the client is still trusted.
    pub(super) fn check_client_trusted(&self) -> io::Result<()> {
        self.stream.check_peer_trusted()
    }

    /// Sends queued bytes, as far as possible without waiting.
    pub(super) fn send_queued(&mut self, now: Instant) -> Result<(), DisconnectCause> {
        if !self.is_handshake_done {
            return Ok(());
        }
        while self.protocol.unsent_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.protocol.slices(&mut slices);
            let Some(sent) = self.stream.send(&slices[..count])? else { return Ok(()) };
            self.protocol.mark_sent(sent, now);
        }
        if self.stream.has_unsent() {
            self.stream.send(&[])?;
        }
        Ok(())
    }

    pub(super) fn into_sessions(self) -> impl Iterator<Item = Box<ServerSession>> {
        self.protocol.into_sessions()
    }
}
